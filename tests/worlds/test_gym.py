"""Users' own Gymnasium environments, good and bad."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from fedpohcs.cli import main  # noqa: E402
from fedpohcs.core.config import ExperimentConfig  # noqa: E402
from fedpohcs.core.errors import UserError  # noqa: E402
from fedpohcs.core.presets import preset  # noqa: E402
from fedpohcs.core.registries import PRESETS  # noqa: E402
from fedpohcs.runs.experiment import run_experiment  # noqa: E402
from fedpohcs.runs.loading import load_run  # noqa: E402
from fedpohcs.worlds import make_world  # noqa: E402
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions  # noqa: E402
from fedpohcs.worlds.gym import GymConfig, GymEnvironment, GymWorld  # noqa: E402
from fedpohcs.worlds.host import ClientEpisodes, Quota, empty_trajectory  # noqa: E402
from fedpohcs.worlds.physics import KNOBS, find_knob  # noqa: E402
from fedpohcs.worlds.workers import make_player  # noqa: E402

OWN = '''
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete

class Line(gymnasium.Env):
    """A walk along a line; each client has a trouble of its own."""
    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(0.0, 10.0, (1,), np.float32)
    def __init__(self, trouble=""):
        self.trouble, self.actions = trouble, []
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.trouble == "raises in reset":
            raise OSError("no line")
        self.place, self.time = self.np_random.normal(size=2), 0
        return self.place, {}
    def step(self, action):
        self.time += 1
        self.actions.append(action)
        self.place = self.place + 0.1 * (action - 5)
        if self.trouble == "raises" and self.time == 3:
            raise ValueError("off the line")
        observation = np.full(2, np.nan) if self.trouble == "nan" and self.time == 4 else self.place
        if self.trouble == "shape":
            observation = np.zeros(3)
        reward = np.inf if self.trouble == "reward" and self.time == 2 else -abs(self.place[0])
        ends = self.trouble != "never ends" and self.time == 20
        return observation, reward, ends, False, {}

def fine(client):
    return Line()

def third_is_bad(client):
    return Line("raises") if client == 2 else Line()

def never(client):
    return Line("never ends")

def all_bad(client):
    return Line("raises in reset")

def missing(client):
    raise ValueError(f"no line {client}")

def other_size(client):
    line = Line()
    if client == 1:
        line.action_space = Discrete(3)
    return line

class InPlace(Line):
    """Writes every observation into the same float32 array."""
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    seen = np.zeros(2, np.float32)
    def step(self, action):
        observation, *rest = super().step(action)
        self.seen[:] = observation
        return self.seen, *rest

class Large(Line):
    def step(self, action):
        _, *rest = super().step(action)
        return np.full(2, 3e38), *rest

def in_place(client):
    return InPlace()

def large(client):
    return Large()

class Numbered(Line):
    """Every step pays the id of the client."""
    def __init__(self, client):
        super().__init__()
        self.client = client
    def step(self, action):
        observation, _, ends, cut, info = super().step(action)
        return observation, float(self.client), ends, cut, info

def numbered(client):
    return Numbered(client)

class Painted(Numbered):
    """Its picture is as red as steps were taken, and as green as the client's id says."""
    metadata = {"render_modes": ["rgb_array"]}
    def __init__(self, client, render_mode=None):
        super().__init__(client)
        self.render_mode = render_mode
    def render(self):
        return np.full((30, 48, 3), (10 * self.time, 50 * self.client, 0), np.uint8)

def painted(client, render_mode=None):
    return Painted(client, render_mode)

def trouble(name):
    return lambda client: Line(name)

raises, nan, shape, reward, raises_in_reset = map(trouble, ("raises", "nan", "shape", "reward", "raises in reset"))
not_an_environment = int

def left_or_right(observation):
    return (observation[:, 0] > 0).astype(int)

def rounded(observation):
    return observation.round()
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_lines.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("own_lines", None)


def config(env: str, **changes: object) -> ExperimentConfig:
    base = preset("gym")
    federation = replace(base.federation, num_clients=4, num_candidates=4, num_selected=3, evaluation_episodes=2)
    learner = replace(
        base.learner, hidden_sizes=(8,), local_iterations=2, steps_per_iteration=60, filter_warmup_steps=50
    )
    changes |= {"rounds": 1, "groups": 1, "federation": federation, "learner": learner}
    return replace(base, scenario=GymConfig(env), **changes)


def world_of(env: str, num_clients: int = 1, environments: int = 16, level: str = "own") -> GymWorld:
    return GymWorld(level, num_clients, settings=GymConfig(env, environments))


def played_in(world: GymWorld, quota: Quota = Quota(episodes=1)) -> ClientEpisodes:  # noqa: B008
    with make_player(world) as player:
        return player.play_all([a_play(world)], quota)[0]


def a_play(world: GymWorld):
    import jax

    from fedpohcs.core.noise import ActionNoise
    from fedpohcs.learners.actors import policy_actor, sight_of
    from fedpohcs.learners.filters import init_filters
    from fedpohcs.learners.networks import init_agent
    from fedpohcs.worlds.host import Play

    agent = init_agent(jax.random.key(0), world.observation_size, world.actions, (4,), 1.0)
    policy = jax.tree.map(np.asarray, agent.policy)
    noise = ActionNoise("normal", world.actions.size)
    actor = policy_actor(noise, policy, sight_of(init_filters(world.observation_size), 5.0))
    return Play(0, actor, (0, 1, 2, 0))


def test_registered_environments_say_what_they_look_like() -> None:
    cart = world_of("CartPole-v1", 3)
    assert (cart.observation_size, cart.actions, cart.horizon) == (4, DiscreteActions(2), 500)
    pendulum = world_of("Pendulum-v1", 3)
    assert (pendulum.observation_size, pendulum.actions) == (3, ContinuousActions(1, -1.0, 1.0))
    lake = world_of("FrozenLake-v1", 3)
    assert lake.observation_size == 16  # a discrete observation is one-hot
    assert cart != pendulum


def test_actions_from_minus_one_to_one_span_the_range_of_the_environment() -> None:
    environment = GymEnvironment("own_lines:fine", 0)
    environment.reset(np.random.default_rng(0))
    for action in (-1.0, 0.0, 1.0, 7.0):
        environment.step(np.array([action], np.float32))
    np.testing.assert_allclose(environment.env.actions, [[0], [5], [10], [10]])


def opened(env: str, level: str, client: int) -> GymEnvironment:
    try:
        return world_of(env, level=level).open(client)
    except UserError as error:
        if "needs the packages" not in str(error):
            raise
        pytest.skip(str(error))


def some_steps(environment: GymEnvironment) -> list[np.ndarray]:
    """Observations under random actions."""
    generator, discrete = np.random.default_rng(1), isinstance(environment.actions, DiscreteActions)
    size = environment.actions.num_choices if discrete else environment.actions.size
    seen = [environment.reset(np.random.default_rng(0))]
    for _ in range(5):
        action = generator.integers(size) if discrete else generator.uniform(-1, 1, size).astype(np.float32)
        seen.append(environment.step(action)[0])
    environment.close()
    return seen


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Box2D crashes where its own warning is an error
@pytest.mark.parametrize("env", KNOBS)
def test_the_first_client_has_the_usual_physics_and_the_others_do_not(env: str) -> None:
    usual, first, second, third = (
        some_steps(opened(env, level, client))
        for level, client in (("own", 1), ("varied", 0), ("varied", 1), ("varied", 2))
    )
    np.testing.assert_array_equal(first, usual)
    assert not np.array_equal(first[1:], second[1:])
    assert not np.array_equal(second[1:], third[1:])


@pytest.mark.parametrize("env", KNOBS)
def test_the_physics_of_few_clients_and_of_many_are_spread_over_the_range(env: str) -> None:
    knob = find_knob(env)
    assert knob.low <= knob.usual <= knob.high
    for number in (8, 60):
        share = np.sort([(knob.value(client) - knob.low) / (knob.high - knob.low) for client in range(1, number)])
        assert 0 < share[0] < share[-1] < 1
        assert np.diff(share, prepend=0, append=1).max() < 2.5 / number


def test_a_length_of_a_pole_changes_what_depends_on_it() -> None:
    pole = opened("CartPole-v1", "varied", 3).env.unwrapped
    assert pole.polemass_length == pole.masspole * pole.length
    assert pole.length != 0.5


@pytest.mark.parametrize("env", ["FrozenLake-v1", "own_lines:fine"])
def test_physics_that_nobody_knows_to_vary_are_refused(env: str, tmp_path: Path, capsys) -> None:
    given = ["--env", env, "--level", "varied", "--out", str(tmp_path / "run")]
    assert main(["train", "gym", *given]) == 2
    assert f"scenario.env (={env!r}) has no physics that the level 'varied' could vary" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("BipedalWalker-v3", "Box2D", "box2d"), ("Hopper-v5", "mujoco", "mujoco"), ("Hopper-v5", "imageio", "mujoco")],
)
def test_a_missing_package_is_named_in_one_line(
    name: str, package: str, extra: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    for module in [module for module in sys.modules if module.startswith(f"gymnasium.envs.{extra}")]:
        monkeypatch.delitem(sys.modules, module)  # imported earlier, where the package is installed
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["train", f"gym/{name}", "--out", str(tmp_path / "run")]) == 2
    needs = f"needs the packages of Gymnasium's {extra}. Install them: pip install 'gymnasium[{extra}]'"
    assert capsys.readouterr().err == f"fedpohcs: scenario.env (={name!r}) {needs}\n"


def test_mujoco_neither_prints_its_warnings_nor_writes_them_into_the_folder_of_the_user(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    code = "from fedpohcs.worlds.gym import make_environment; make_environment('HalfCheetah-v5', 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.glob("*.TXT"))


def test_presets_are_named_by_their_environment_and_differ_in_physics() -> None:
    names = [name.removeprefix("gym/") for name in PRESETS if name.startswith("gym/")]
    assert sorted(names) == sorted(KNOBS)
    for name in names:
        found = preset(f"gym/{name}")
        assert (found.scenario.env, found.level) == (name, "varied")
        assert preset(f"gym/{name}", level="own").level == "own"


def test_observations_are_copied_from_an_environment_that_writes_them_in_place() -> None:
    trajectory = played_in(world_of("own_lines:in_place", 1, 1)).trajectory
    assert len(np.unique(trajectory.observation[:, 0, 0])) == len(trajectory.observation)


def test_large_observations_are_finite_although_their_sum_is_not() -> None:
    assert played_in(world_of("own_lines:large")).failure is None


def test_a_client_needs_at_least_one_environment() -> None:
    with pytest.raises(UserError, match=r"scenario.environments_per_client \(=0\) must be a finite number above 0"):
        GymConfig("CartPole-v1", 0)


def test_an_environment_that_never_ends_is_cut() -> None:
    played = played_in(world_of("own_lines:never", 1))
    assert len(played.trajectory.reward) == 1000
    assert played.trajectory.status[-1, 0] == 3


@pytest.mark.parametrize("environments", [1, 16])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "step 3: ValueError: off the line"),
        ("nan", "step 4: the observation holds numbers that are not finite"),
        ("shape", "step 1: the observation has shape (3,), but its space has (2,)"),
        ("reward", "step 2: the reward (=inf) is not a finite number"),
        ("raises_in_reset", "OSError: no line"),
    ],
)
def test_what_goes_wrong_is_said_with_episode_and_step(name: str, said: str, environments: int) -> None:
    world = world_of(f"own_lines:{name}", 1, environments)
    played = played_in(world)
    assert played.failure is not None
    assert played.failure.startswith("episode 2: ")
    assert said in played.failure
    assert played.num_lost == 3
    assert len(played.trajectory.reward) == 0
    assert played.trajectory.observation.shape == empty_trajectory(world).observation.shape


def test_a_client_that_fails_is_left_out_and_named_and_the_others_train(tmp_path: Path, caplog) -> None:
    history = run_experiment(config("own_lines:third_is_bad", selector="full"), tmp_path / "run")
    assert history.records[0].evaluation.client.tolist() == [0, 1, 3]
    assert history.records[1].rejected.tolist() == [2]
    assert (history.records[1].train_steps > 0).tolist() == [True, True, False, True]
    assert np.isfinite(history.mean_returns).all()
    assert any("client 2, round 1 is left out: episode" in message for message in caplog.messages)
    assert any("step 3: ValueError: off the line" in message for message in caplog.messages)
    run = load_run(tmp_path / "run")
    assert np.isnan(run.client_returns[:, 2]).all()


def test_held_out_clients_are_those_that_the_function_makes_for_the_next_ids() -> None:
    base = config("own_lines:numbered", selector="fedavg")
    history = run_experiment(replace(base, federation=replace(base.federation, held_out_clients=2)))
    assert history.records[1].evaluation.mean_return.tolist() == [0, 20, 40, 60]  # episodes have 20 steps
    assert history.records[1].held_out.client.tolist() == [4, 5]
    assert history.records[1].held_out.mean_return.tolist() == [80, 100]


def test_a_federation_of_failing_clients_ends_with_one_line(tmp_path: Path, capsys) -> None:
    assert main(["train", "gym", "--env", "own_lines:all_bad", "--clients", "2", "--out", str(tmp_path / "run")]) == 2
    assert "no client can play its environment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("CartPole-v99", "env (='CartPole-v99') is neither a registered environment nor a function"),
        ("no_such_module:make", "env (='no_such_module:make') names a module that cannot be imported"),
        ("own_lines:nothing", "env (='own_lines:nothing') is neither a registered environment nor a function"),
        ("own_lines:not_an_environment", "env (='own_lines:not_an_environment') must make a gymnasium.Env"),
    ],
)
def test_a_bad_env_is_refused_before_anything_is_written(env: str, said: str, tmp_path: Path, capsys) -> None:
    assert main(["train", "gym", "--env", env, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_world_must_be_told_its_environment_and_others_must_not() -> None:
    with pytest.raises(UserError, match=r"env \(=None\) must say which environments"):
        make_world(preset("gym"))
    with pytest.raises(UserError, match=r"must be of type WorldConfig, the settings of the world 'tabular'"):
        replace(preset("tabular"), scenario=GymConfig("CartPole-v1"))


def test_env_is_short_for_the_setting_of_the_world_and_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--env", "CartPole-v1"], ["--env=CartPole-v1"], ["--scenario.env", "CartPole-v1"]):
        assert main(["config", "gym", *given]) == 0
        assert "[scenario]" in (text := capsys.readouterr().out)
        assert 'env = "CartPole-v1"' in text
    assert main(["config", "tabular", "--env", "CartPole-v1"]) == 2
    assert capsys.readouterr().err == "fedpohcs: env (='CartPole-v1') is for the world 'gym', not for 'tabular'.\n"


def test_a_first_client_that_cannot_be_made_is_named() -> None:
    with pytest.raises(UserError, match=r"scenario.env .* cannot make client 0: ValueError: no line 0"):
        world_of("own_lines:missing", 2)


def test_clients_must_look_alike() -> None:
    world = world_of("own_lines:other_size", 2)
    with pytest.raises(UserError, match=r"actions \(=DiscreteActions\(num_choices=3\)\) must be that of client 0"):
        world.open(1)


def test_a_discretiser_of_ones_own_makes_the_cells_of_phase_one() -> None:
    modelling = replace(preset("gym").modelling, discretiser="own_lines:left_or_right", action_cell=100.0)
    history = run_experiment(config("own_lines:fine", selector="fedpohcs", modelling=modelling))
    assert np.isfinite(history.records[1].selection.scores["selection_metric"]).all()
    bad = replace(modelling, discretiser="own_lines:rounded")
    with pytest.raises(
        UserError, match=r"modelling.discretiser \(='float32\[\d+, 2\]'\) must give one row of integers"
    ):
        run_experiment(config("own_lines:fine", selector="fedpohcs", modelling=bad))


def test_the_example_learns_to_balance_poles_of_different_length(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(str(examples))
    spec = importlib.util.spec_from_file_location("cartpoles", examples / "cartpoles.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lengths = {module.make_client(client).unwrapped.length for client in range(20)}
    assert (min(lengths), max(lengths), len(lengths)) == (0.25, 2.0, 20)
    returns = module.main(rounds=2, num_clients=4).mean_returns
    assert returns[-1] > 3 * returns[0]


def test_environments_that_render_get_a_picture_of_the_first_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    run_experiment(config("own_lines:painted"), tmp_path / "run")
    assert main(["play", "run", "--client", "3", "--episodes", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "run/client-3.gif"
    with Image.open("run/client-3.gif") as picture:
        assert picture.n_frames == 21  # an episode has 20 steps
        for time in (0, 20):
            picture.seek(time)
            red, green, blue = picture.convert("RGB").getpixel((picture.width // 2, picture.height - 20))
            assert abs(red - 10 * time) < 12 and abs(green - 150) < 12 and blue < 12


def test_environments_that_do_not_render_are_played_without_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_experiment(config("own_lines:fine"), tmp_path / "run")
    assert main(["play", "run", "--client", "0", "--episodes", "1"]) == 0
    assert "mean return" in capsys.readouterr().out.splitlines()[-1]
    assert main(["play", "run", "--client", "0", "--episodes", "1", "-o", "x.gif"]) == 2
    assert "the environment does not render to arrays" in capsys.readouterr().err
    assert not Path("x.gif").exists()


def test_gymnasiums_own_environments_are_drawn_by_gymnasium(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    from PIL import Image

    run_experiment(config("CartPole-v1"), tmp_path / "run")
    assert main(["play", "run", "--client", "1", "--episodes", "1", "-o", "cart.gif"]) == 0
    with Image.open("cart.gif") as picture:
        picture.seek(picture.n_frames - 1)
        colours = np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)
    assert len(colours) > 5  # a cart, a pole and a line


CLASSIC_STEPS = {"Acrobot-v1": 40}  # chaotic: rounding grows


@pytest.mark.parametrize("level", ["own", "varied"])
@pytest.mark.parametrize("env", [env for env in KNOBS if "classic_control" in gymnasium.spec(env).entry_point])
def test_compiled_steps_are_those_of_gymnasium(env: str, level: str) -> None:
    world = world_of(env, num_clients=3, environments=4, level=level)
    lanes, discrete = world.make_lanes(), isinstance(world.actions, DiscreteActions)
    assert type(lanes).__name__ == "ClassicLanes"
    ours, generator = np.array([2, 4, 11]), np.random.default_rng(0)
    environments = [world.open(lane // 4) for lane in ours]
    seen = lanes.reset(ours, [np.random.default_rng(lane) for lane in ours])
    theirs = [one.reset(np.random.default_rng(lane)) for one, lane in zip(environments, ours, strict=True)]
    np.testing.assert_array_equal(seen, theirs)
    running = np.ones(3, bool)
    for _ in range(CLASSIC_STEPS.get(env, 120)):
        action = generator.integers(world.actions.num_choices, size=3) if discrete else generator.normal(0, 1, (3, 1))
        moved = lanes.step(ours, action.astype(np.int32 if discrete else np.float32))
        for row in np.flatnonzero(running):
            observation, reward, terminated, _, _ = environments[row].step(action[row])
            np.testing.assert_allclose(moved.observation[row], observation, rtol=1e-4, atol=2e-5)
            np.testing.assert_allclose(moved.reward[row], reward, rtol=1e-4, atol=1e-5)
            assert moved.terminated[row] == terminated
            running[row] = not terminated
    assert running.any() or env == "CartPole-v1"
    assert not moved.broken.any()


@pytest.mark.parametrize("env", ["Acrobot-v1", "MountainCar-v0"])
def test_compiled_episodes_end_where_those_of_gymnasium_do(env: str) -> None:
    """Full force in the direction of the movement: the car arrives, and the arm swings up."""
    world = world_of(env, environments=2)
    lanes, one, lane = world.make_lanes(), world.open(0), np.array([0])
    seen = lanes.reset(lane, [np.random.default_rng(5)])
    one.reset(np.random.default_rng(5))
    for steps in range(1, world.horizon + 1):
        push = np.int32(2 if seen[0, -1] >= 0 else 0)
        moved, theirs = lanes.step(lane, np.array([push])), one.step(push)
        seen = moved.observation
        assert (moved.terminated[0], moved.reward[0]) == (theirs[2], theirs[1])
        if theirs[2]:
            assert 10 < steps < world.horizon
            return
    pytest.fail("the episode did not end")
