"""The host executor and the lockstep collector: what clients play is theirs alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("mujoco")

from fedpohcs.cli import main
from fedpohcs.core.errors import UserError
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import METRICS
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.execution.devices import configure_jax
from fedpohcs.execution.host import HostExecutor, first_of_episodes
from fedpohcs.learners.actors import policy_actor, sight_of
from fedpohcs.learners.filters import filter_observation, init_filters
from fedpohcs.learners.networks import PolicyParams, action_distribution, init_agent
from fedpohcs.metrics.packing import check_value
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.loading import load_run
from fedpohcs.worlds.host import ClientEpisodes, Play, Quota, episode_generator
from fedpohcs.worlds.mujoco import Hoppers, Parameter

WORLD = Hoppers("medium", 5)
POLICIES = [
    jax.tree.map(np.asarray, init_agent(jax.random.key(seed), 11, WORLD.actions, (8,), 1.0).policy) for seed in range(5)
]


def play(client: int, policy: PolicyParams) -> Play:
    actor = policy_actor(ActionNoise("normal", 3), policy, sight_of(init_filters(11), 5.0))
    return Play(client, actor, (0, 3, 7, client, 0))


def assert_same(one: ClientEpisodes, other: ClientEpisodes) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.trajectory, other.trajectory)


@pytest.mark.parametrize("quota", [Quota(min_steps=150), Quota(episodes=40), Quota(episodes=3, steps_per_episode=9)])
def test_what_a_client_plays_does_not_depend_on_its_company_or_on_what_was_played_before(quota: Quota) -> None:
    collector = WORLD.make_collector()
    plays = [play(client, POLICIES[client]) for client in (4, 0, 2)]
    together = collector.collect(plays, quota)
    again = collector.collect(plays[::-1], quota)[::-1]
    alone = [WORLD.make_collector().collect([one], quota)[0] for one in plays]
    for one, other, third in zip(together, again, alone, strict=True):
        assert_same(one, other)
        assert_same(one, third)


def test_episodes_are_those_of_playing_them_one_after_the_other() -> None:
    """The slow twin: one lane, one episode after the other, until there are more than 100 steps."""
    collector = WORLD.make_collector()
    simulator, mine = collector.simulator, play(3, POLICIES[3])  # pyright: ignore[reportAttributeAccessIssue]
    lane, rows, episode = np.array([3 * simulator.lanes_per_client]), [], 0
    while len(rows) <= 100:
        generator = episode_generator(mine, episode)
        observation, done, time = simulator.reset(lane, [generator]).astype(np.float32), False, 0
        while not done:
            if time % 50 == 0:
                noise = generator.standard_normal((50, 3), np.float32)
            filtered = filter_observation(init_filters(11), observation, 5.0)
            action = action_distribution(POLICIES[3], filtered).sample(noise[time % 50])
            moved = simulator.step(lane, action)
            rows.append((observation[0], action[0], moved.reward[0]))
            observation, done, time = moved.observation.astype(np.float32), bool(moved.terminated[0]), time + 1
        episode += 1
    (played,) = WORLD.make_collector().collect([mine], Quota(min_steps=100))
    for recorded, expected in zip(played.trajectory[:3], zip(*rows, strict=True), strict=True):
        np.testing.assert_allclose(recorded[:, 0], np.array(expected), rtol=1e-5, atol=1e-5)
    assert (played.trajectory.status == Status.TERMINATED).sum() == episode


def test_shared_and_own_policies_act_alike() -> None:
    shared = WORLD.make_collector().collect([play(client, POLICIES[0]) for client in (1, 2)], Quota(episodes=2))
    copies = [jax.tree.map(np.copy, POLICIES[0]) for _ in range(2)]
    own = WORLD.make_collector().collect(
        [play(client, policy) for client, policy in zip((1, 2), copies, strict=True)], Quota(episodes=2)
    )
    for one, other in zip(shared, own, strict=True):
        assert_same(one, other)


def test_cut_episodes_go_on_to_the_observation_after_the_cut() -> None:
    whole = WORLD.make_collector().collect([play(0, POLICIES[0])], Quota(episodes=3))[0].trajectory
    cut = WORLD.make_collector().collect([play(0, POLICIES[0])], Quota(episodes=3, steps_per_episode=4))[0].trajectory
    assert cut.status[:, 0].tolist() == [1, 1, 1, 3] * 3
    trimmed = first_of_episodes(whole, 4)
    np.testing.assert_array_equal(trimmed.observation, cut.observation)
    np.testing.assert_array_equal(trimmed.status, cut.status)
    ends = cut.last[:, 0]
    assert cut.next_observation is not None and trimmed.next_observation is not None
    np.testing.assert_array_equal(trimmed.next_observation[ends], cut.next_observation[ends])


def test_first_of_episodes_leaves_short_episodes_alone() -> None:
    status = np.array([[1], [2], [1], [1], [1], [3]], np.int8)
    numbers = np.arange(6.0)[:, None]
    trajectory = Trajectory(numbers[..., None], numbers, numbers, status, numbers[..., None] + 100)
    first = first_of_episodes(trajectory, 2)
    assert first.reward[:, 0].tolist() == [0, 1, 2, 3]
    assert first.status[:, 0].tolist() == [1, 2, 1, 3]
    assert first.next_observation is not None
    assert first.next_observation[3, 0, 0] == 4


def small_config(**changes: object):
    config = preset("hoppers")
    federation = replace(config.federation, num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=2)
    learner = replace(config.learner, local_iterations=2, steps_per_iteration=100, filter_warmup_steps=200)
    modelling = replace(config.modelling, episodes=3)
    return replace(
        config, **{"federation": federation, "learner": learner, "modelling": modelling, "rounds": 2, **changes}
    )


def test_training_depends_on_the_client_and_not_on_its_company() -> None:
    config = small_config()
    configure_jax(config.groups)
    one, other = HostExecutor(config), HostExecutor(config)
    params = one.initial_params()
    together, pair = one.train(params, 0, np.array([0, 2, 4])), other.train(params, 0, np.array([4, 1]))
    assert together.steps[2] == pair.steps[0] > 200
    np.testing.assert_allclose(
        together.params.policy.layers[0].kernel[2], pair.params.policy.layers[0].kernel[0], rtol=1e-3, atol=1e-5
    )
    assert not np.array_equal(together.params.policy.layers[0].kernel[2], params.policy.layers[0].kernel)


def test_evaluations_that_are_thinned_out_move_the_filters_as_far_as_whole_ones() -> None:
    config = small_config()
    learner = replace(config.learner, filter_evaluation_episodes=20)
    thin = replace(config, learner=learner, federation=replace(config.federation, evaluation_every=2))
    assert thin.filter_weight == 20  # two episodes every other round stand for forty
    configure_jax(config.groups)
    executor = HostExecutor(thin)
    warm = executor.state.filters.observation.seen.copy()
    assert (warm > 200).all()
    assert (warm % 20 == 0).all()  # every step counted
    evaluation = executor.evaluate(executor.initial_params(), 0, np.arange(5))
    np.testing.assert_allclose(executor.state.filters.observation.seen - warm, 20 * evaluation.steps)


class Unstable:
    """A simulator whose lanes diverge in chosen episodes: those that begin with one of these draws."""

    def __init__(self, simulator: Any, share: float) -> None:
        self.simulator, self.share = simulator, share
        self.lanes_per_client = simulator.lanes_per_client
        self.doomed: dict[int, bool] = {}
        self.age: dict[int, int] = {}

    def reset(self, lanes: np.ndarray, generators: list[np.random.Generator]) -> np.ndarray:
        for lane, generator in zip(lanes.tolist(), generators, strict=True):
            self.doomed[lane], self.age[lane] = generator.random() < self.share, 0
        return self.simulator.reset(lanes, generators)

    def step(self, lanes: np.ndarray, action: np.ndarray) -> Any:
        for lane in lanes.tolist():
            self.age[lane] += 1
            if self.doomed[lane] and self.age[lane] == 3:
                self.simulator.velocity[lane] = 1e20  # MuJoCo notices, and starts anew
        return self.simulator.step(lanes, action)

    def close(self) -> None:
        self.simulator.close()


def unstable(share: float) -> Any:
    collector: Any = WORLD.make_collector()
    collector.simulator = Unstable(collector.simulator, share)
    return collector


@pytest.mark.parametrize("quota", [Quota(episodes=6), Quota(min_steps=300)])
def test_episodes_that_diverge_are_counted_and_replaced(quota: Quota, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # where MuJoCo would write its log
    plays = [play(client, POLICIES[client]) for client in (0, 3)]
    together = unstable(0.4).collect(plays, quota)
    alone = [unstable(0.4).collect([one], quota)[0] for one in plays]
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other)
        assert one.num_lost == other.num_lost > 0
        assert one.failure is None
        assert np.isfinite(one.trajectory.observation).all()
        assert np.abs(one.trajectory.observation).max() < 100
    assert not list(tmp_path.iterdir())
    if quota.episodes:
        assert [int(one.trajectory.last.sum()) for one in together] == [6, 6]
    else:
        assert all(len(one.trajectory.reward) > 300 for one in together)


def test_a_client_whose_every_episode_diverges_is_given_up(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (played,) = unstable(1.0).collect([play(0, POLICIES[0])], Quota(episodes=2))
    assert played.failure is not None
    assert played.failure.startswith("the simulation went wrong in")
    assert len(played.trajectory.reward) == 0


def test_thinned_evaluation_leaves_the_rest_of_the_round_as_it_is(tmp_path: Path) -> None:
    """Rounds 0, 2 and 4 are evaluated; who is asked in between plays for the occasion."""
    federation = replace(small_config().federation, evaluation_every=2)
    for selector in ("fedpohcs", "power-of-choice", "gradient-norm"):
        modelling = replace(small_config().modelling, episodes=None)
        config = small_config(federation=federation, modelling=modelling, rounds=3, selector=selector)
        history = run_experiment(config, tmp_path / selector)
        evaluated = [len(record.evaluation.client) for record in history.records]
        assert evaluated == [5, 0, 5, 0]
        run = load_run(tmp_path / selector)
        returns = run.rounds["mean_return"]
        assert returns.tolist() == [returns[0], returns[0], returns[2], returns[2]]
        assert ",nan,nan,nan,nan," in (tmp_path / selector / "rounds.csv").read_text()
        np.testing.assert_array_equal(np.isnan(history.mean_returns), [False, True, False, True])
        assert run.rounds["evaluation_steps"].tolist()[1] == 0
        for record in history.records[1:]:
            assert all(np.isfinite(scores).all() for scores in record.selection.scores.values())


@pytest.mark.parametrize(("every", "episodes"), [(1, None), (2, None), (1, 3)])
def test_a_run_that_goes_on_another_day_writes_the_same_bytes(every: int, episodes: int | None, tmp_path: Path) -> None:
    federation = replace(small_config().federation, evaluation_every=every)
    modelling = replace(small_config().modelling, episodes=episodes)
    config = small_config(federation=federation, modelling=modelling, rounds=3)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=2), tmp_path / "parts")
    resume_experiment(tmp_path / "parts", rounds=3)
    for name in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_tables_are_made_of_episodes_played_apart_when_asked_for() -> None:
    config = small_config()
    configure_jax(config.groups)
    executor = HostExecutor(config)
    params, everyone = executor.initial_params(), np.arange(5)
    executor.evaluate(params, 0, everyone)
    assert not executor.history
    before = jax.tree.map(np.copy, executor.state)
    for _ in range(2):
        metrics = executor.measure(params, 0, everyone[:3], frozenset({"weighted_advantage"}))
        assert sorted(executor.history) == [0, 1, 2]
        assert {len(rounds) for rounds in executor.history.values()} == {1}
    assert [int(rounds[0].last.sum()) for rounds in executor.history.values()] == [3, 3, 3]
    assert len(metrics.column("weighted_advantage")) == 3
    jax.tree.map(np.testing.assert_array_equal, before, executor.state)


@pytest.mark.parametrize("episodes", [None, 3])
def test_every_metric_is_measured_in_worlds_stepped_outside_jax(episodes: int | None) -> None:
    modelling = replace(small_config().modelling, episodes=episodes, steps_per_episode=5)
    config = small_config(modelling=modelling)
    configure_jax(config.groups)
    executor = HostExecutor(config)
    params, clients = executor.initial_params(), np.array([3, 1])
    executor.evaluate(params, 0, np.arange(5))
    metrics = executor.measure(params, 0, clients, frozenset(METRICS))
    for row, client in enumerate(clients.tolist()):
        for name in METRICS:
            check_value(name, metrics.column(name)[row], config, params)
        modelled = np.flatnonzero(executor.history[client][-1].last[:, 0]) + 1
        assert len(modelled) == (episodes or 2)
        assert np.diff([0, *modelled]).max() == 5
        played = executor.latest[client]
        ends = np.flatnonzero(played.last[:, 0]) + 1
        assert len(ends) == 2
        returns = [rewards.sum() for rewards in np.split(played.reward[:, 0].astype(float), ends[:-1])]
        assert metrics.column("return_std")[row] == pytest.approx(np.std(returns))
        assert metrics.column("episode_length")[row] == np.diff([0, *ends]).mean() > 5


def test_without_mujoco_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr("fedpohcs.worlds.mujoco.find_spec", lambda name: None)
    assert main(["train", "hoppers", "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'fedpohcs[mujoco]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_parameter_out_of_range_is_named() -> None:
    with pytest.raises(UserError, match=r"leg_geom.size \(=-0.01\) makes no valid model"):
        WORLD.make_model(-0.01)
    with pytest.raises(UserError, match="paw_geom"):

        class Pawed(Hoppers):
            parameters = (Parameter("geom", "paw_geom", "size", 0),)

        Pawed("low", 2).make_collector()
