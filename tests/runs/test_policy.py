"""An exported policy acts as the trained one, with NumPy alone; and it can be watched at play."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig
from fedpohcs.core.learning import LearningConfig, PPOConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import LEARNERS
from fedpohcs.core.trajectory import Episode
from fedpohcs.core.trees import named_arrays
from fedpohcs.execution import make_executor
from fedpohcs.execution.clients import LocalExecutor
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.learners.filters import stored_filters
from fedpohcs.runs.export import export_policy
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.playing import play_clients, play_episodes
from fedpohcs.runs.policy import from_arrays, load_policy, read_arrays
from fedpohcs.runs.stored import Stored, stored_arrays
from fedpohcs.worlds.pictures import ROAD, Panel, _fleet_frame, _landscape

CARS = replace(
    preset("mountain-cars"),
    rounds=1,
    federation=FederationConfig(num_clients=3, num_candidates=2, num_selected=1, evaluation_episodes=2),
    learner=PPOConfig(hidden_sizes=(8,), filter_warmup_steps=2000, observation_clip=1.0),
)


def store(path: Path, executor: LocalExecutor, *, filters: bool = True) -> Path:
    """A run folder with the fresh policy of an executor, and its filters as a finished run has them."""
    folder = RunFolder.create(path, executor.config)
    folder.save_policy(named_arrays(executor.initial_params()), 1)
    if filters:
        with np.load(path / "policy.npz") as arrays:
            everything = dict(arrays) | stored_filters(executor.state.filters)
        np.savez(path / "policy.npz", **everything)
    return path


@pytest.fixture(scope="module")
def cars() -> InProcessExecutor:
    return InProcessExecutor(CARS)


@pytest.fixture(scope="module")
def run(cars: InProcessExecutor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("cars") / "run", cars)


@pytest.fixture(scope="module")
def tabular_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store(tmp_path_factory.mktemp("tabular") / "run", InProcessExecutor(preset("tabular")), filters=False)


def jax_mean(executor: InProcessExecutor, observation: np.ndarray, client: int) -> np.ndarray:
    """The mean action by the code that trains."""
    import jax

    from fedpohcs.learners.filters import filter_observation
    from fedpohcs.learners.networks import action_distribution

    filters = jax.tree.map(lambda x: x[client], executor.state.filters)
    filtered = filter_observation(filters, observation, executor.config.learner.observation_limit)
    return np.asarray(action_distribution(executor.initial_params().policy, filtered).mean)


OBSERVATIONS = np.random.default_rng(0).uniform((-1.2, -0.07), (0.6, 0.07), (50, 2)).astype(np.float32)


def test_exported_policy_acts_as_the_trained_one_for_every_client(
    cars: InProcessExecutor, run: Path, tmp_path: Path
) -> None:
    export_policy(run, tmp_path / "policy.npz")
    policy = load_policy(tmp_path / "policy.npz")
    for client in range(3):
        expected = jax_mean(cars, OBSERVATIONS, client)
        np.testing.assert_allclose(policy.act(OBSERVATIONS, client), expected, atol=1e-5)
        np.testing.assert_allclose(policy.act(OBSERVATIONS[7], client), expected[7], atol=1e-5)
    assert not np.allclose(policy.act(OBSERVATIONS, 0), policy.act(OBSERVATIONS, 2), atol=1e-4)
    assert policy.about["world"] == "mountain-cars"


def test_drawn_actions_have_the_policys_spread(run: Path, tmp_path: Path) -> None:
    export_policy(run, tmp_path / "policy.npz")
    policy = load_policy(tmp_path / "policy.npz")
    drawn = policy.act(np.repeat(OBSERVATIONS[:1], 4000, axis=0), 0, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(float(policy.act(OBSERVATIONS[0], 0)[0]), abs=0.06)
    assert drawn.std() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("client", [3, -1])
def test_a_client_that_the_file_does_not_have_is_refused(run: Path, tmp_path: Path, client: int) -> None:
    export_policy(run, tmp_path / "policy.npz")
    with pytest.raises(ValueError, match="must be at least 0 and below 3"):
        load_policy(tmp_path / "policy.npz").act(OBSERVATIONS[0], client)


def test_a_device_that_never_trained_rescales_by_all_observations_of_all_clients() -> None:
    """Of three streams of different lengths, with a held-out client that does not count."""
    streams = [np.random.default_rng(n).normal(n, n + 1, (50 * (n + 1), 2)) for n in range(4)]
    arrays = {
        "policy/layers/0/kernel": np.ones((2, 1), np.float32),
        "policy/layers/0/bias": np.zeros(1, np.float32),
        "policy/log_std": np.zeros(1, np.float32),
        "filters/mean": np.array([seen.mean(0) for seen in streams], np.float32),
        "filters/variance": np.array([seen.var(0) for seen in streams], np.float32),
        "filters/count": np.array([len(seen) for seen in streams], np.float32),
    }
    policy = from_arrays(arrays, {"filtered": True, "num_clients": 3})
    together = np.concatenate(streams[:3])
    expected = (OBSERVATIONS - together.mean(0)) / together.std(0)
    np.testing.assert_allclose(policy.rescale(OBSERVATIONS), expected, rtol=1e-4, atol=1e-5)


def test_a_filtered_policy_without_its_filters_is_neither_exported_nor_loaded(
    cars: InProcessExecutor, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = store(tmp_path / "run", cars, filters=False)
    for name in ("policy.npz", "policy.onnx"):
        assert main(["export", str(bare), str(tmp_path / name)]) == 2
        assert "has no observation filters, its clients keep them. On a device" in capsys.readouterr().err
        assert not (tmp_path / name).exists()
    export_policy(run, tmp_path / "whole.npz")
    kept = {name: array for name, array in read_arrays(tmp_path / "whole.npz").items() if "filters" not in name}
    np.savez(tmp_path / "older.npz", **kept)
    with pytest.raises(ValueError, match="no filters are stored with it"):
        load_policy(tmp_path / "older.npz")


@pytest.mark.parametrize("change", [{"network": "own_network:make"}, {"kind": "own"}])
def test_policies_of_own_networks_and_learners_are_refused_in_one_line(
    change: dict[str, str], cars: InProcessExecutor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, known = store(tmp_path / "run", cars), LEARNERS.get("own")
    assert known is None
    LEARNERS["own"] = OwnConfig
    try:
        config = json.loads((run / "config.json").read_text())
        config["learner"] = {"kind": "own"} if "kind" in change else config["learner"] | change
        (run / "config.json").write_text(json.dumps(config))
        for name in ("policy.npz", "policy.onnx"):
            assert main(["export", str(run), str(tmp_path / name)]) == 2
            assert re.fullmatch(
                r"fedpohcs: learner\.\w+ \(=.*\) cannot be exported or played: .*\n", capsys.readouterr().err
            )
            assert not (tmp_path / name).exists()
    finally:
        del LEARNERS["own"]


@dataclass(frozen=True)
class OwnConfig(LearningConfig):
    algorithm: ClassVar[str] = "own:Learner"
    kind: str = "own"


def test_discrete_policy_needs_no_filters_and_draws_by_its_probabilities(tabular_run: Path, tmp_path: Path) -> None:
    export_policy(tabular_run, tmp_path / "policy.npz")
    policy = load_policy(tmp_path / "policy.npz")
    logits = policy.forward(np.eye(6, dtype=np.float32))
    assert policy.act(np.eye(6)).tolist() == logits.argmax(-1).tolist()
    drawn = policy.act(np.tile(np.eye(6)[0], (20_000, 1)), generator=np.random.default_rng(0))
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 20_000, probabilities, atol=0.015)


def test_the_loader_is_one_file_that_imports_numpy_and_nothing_else(run: Path, tmp_path: Path) -> None:
    import fedpohcs.runs.policy

    export_policy(run, tmp_path / "policy.npz")
    (tmp_path / "copied.py").write_text(Path(fedpohcs.runs.policy.__file__).read_text())
    code = (
        "import sys; from copied import load_policy; print(load_policy('policy.npz').act([-0.5, 0.0], client=1)[0]);"
        "print([m for m in ('jax', 'scipy', 'fedpohcs') if m in sys.modules]);"
        "from fedpohcs.runs.policy import load_policy; print([m for m in ('jax', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    action, *heavy = done.stdout.splitlines()
    expected = load_policy(tmp_path / "policy.npz").act([-0.5, 0.0], client=1)[0]
    assert float(action) == pytest.approx(float(expected))
    assert heavy == ["[]", "[]"]


def test_the_example_of_the_documentation_works(
    tabular_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "use-a-policy.md"
    (code,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    export_policy(tabular_run, tmp_path / "policy.npz")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, page.name, "exec"), names)
    assert names["action"] in range(3)


def test_a_policy_that_was_not_exported_is_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="fedpohcs export"):
        load_policy(run / "policy.npz")


@pytest.mark.parametrize("client", [0, 2])
def test_onnx_gives_the_same_actions(run: Path, tmp_path: Path, client: int) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx to check what we write without it")
    reference = pytest.importorskip("onnx.reference")
    export_policy(run, tmp_path / "policy.onnx", client)
    export_policy(run, tmp_path / "policy.npz")
    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [output.name for output in model.graph.output] == ["action", "mean", "log_std"]
    actions, means, log_std = reference.ReferenceEvaluator(model).run(None, {"observation": OBSERVATIONS})
    np.testing.assert_array_equal(actions, means)
    np.testing.assert_array_equal(log_std, np.zeros_like(actions))
    np.testing.assert_allclose(actions, load_policy(tmp_path / "policy.npz").act(OBSERVATIONS, client), atol=1e-5)


def test_onnx_of_a_discrete_policy_gives_logits(tabular_run: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx to check what we write without it")
    reference = pytest.importorskip("onnx.reference")
    assert main(["export", str(tabular_run), str(tmp_path / "policy.onnx")]) == 0
    export_policy(tabular_run, tmp_path / "policy.npz")
    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [output.name for output in model.graph.output] == ["action", "logits"]
    actions, logits = reference.ReferenceEvaluator(model).run(None, {"observation": np.eye(6, dtype=np.float32)})
    assert actions.tolist() == logits.argmax(1).tolist()
    np.testing.assert_allclose(logits, load_policy(tmp_path / "policy.npz").forward(np.eye(6)), atol=1e-5)


def test_episodes_are_played_with_the_clients_own_world_and_repeat_with_the_seed(run: Path) -> None:
    one, again, other = (play_episodes(run, client, 2, seed=3) for client in (0, 0, 2))
    assert [episode.total for episode in one] == [episode.total for episode in again]
    assert one[0].total != other[0].total
    assert one[0].total != one[1].total
    for episode in one:
        assert len(episode.observations) == len(episode.rewards) + 1 == len(episode.actions) + 1
        assert episode.terminated or len(episode.rewards) == 999
    shift = np.linspace(-1.5, 1.5, 4)[1]  # of the first of three cars at the medium level
    first = one[0]
    expected = 100 * first.terminated - 0.1 * ((first.actions + shift) ** 2).sum()
    assert first.total == pytest.approx(expected, rel=1e-4)


def test_played_returns_are_those_of_an_evaluation(cars: InProcessExecutor, run: Path) -> None:
    played = np.array([episode.total for episode in play_episodes(run, 1, 12)])
    evaluated = cars.evaluate(cars.initial_params(), 0, np.arange(3)).mean_return[1]
    assert abs(played.mean() - evaluated) < 4 * max(played.std(), 3)


def test_play_prints_returns_and_draws_the_car(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "deep" / "car.gif"
    assert main(["play", str(run), "--client", "2", "--episodes", "2", "-o", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["episode 1", "episode 2"]
    assert lines[2].startswith("mean return ")
    assert lines[3] == str(output)
    with Image.open(output) as picture:
        assert picture.format == "GIF"
        assert picture.n_frames > 10
        assert picture.size == (480, 300)


def test_play_without_a_client_plays_with_all_and_draws_two_policies_side_by_side(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "cars.gif"
    assert main(["play", f"{run}@last", "--beside", str(run), "-o", str(output)]) == 0
    before, after, name = capsys.readouterr().out.splitlines()
    assert before.startswith(f"{run}@last: 3 clients, mean return ")
    assert after.startswith(f"{run}: 3 clients, mean return ")
    assert name == str(output)
    with Image.open(output) as picture:
        assert picture.size == (960, 300)
        assert picture.n_frames > 10
    played = play_clients(run, seed=0)
    own = play_episodes(run, 2, 3, seed=0)[2]  # the same generator: seed 0, number 2
    assert played.episodes[2].total == own.total
    assert f"mean return {np.mean([episode.total for episode in played.episodes]):.2f}," in after
    assert played.title == "fedpohcs, after 1 rounds"


def test_the_policy_before_training_has_filters_that_have_seen_the_first_evaluation(
    cars: InProcessExecutor, run: Path
) -> None:
    arrays, number = stored_arrays(Stored(run, "0"), CARS)
    warmed_up = read_arrays(run / "policy.npz")  # the filters before any evaluation
    assert number == 0
    for name, expected in named_arrays(cars.initial_params()).items():
        assert np.array_equal(arrays[name], expected)
    assert (arrays["filters/count"] > warmed_up["filters/count"]).all()


def test_cars_that_arrive_are_counted_and_stay_at_the_flag() -> None:
    """Two cars at step 2: one arrived at step 1, the other is on its way."""
    arrived = Episode(np.array([[-0.5, 0], [0.5, 0]]), np.zeros((1, 1)), np.zeros(1), True, [])
    under_way = Episode(np.array([[-0.5, 0], [-0.6, 0], [-0.7, 0]]), np.zeros((2, 1)), np.zeros(2), False, [])
    panel = Panel("title", [arrived, under_way])
    assert panel.count_ended(1) == panel.count_ended(2) == 1
    assert panel.count_ended(0) == 0
    background = _landscape(road=ROAD)
    first, last = (np.asarray(_fleet_frame(background, panel, time)) for time in (1, 2))
    changed = np.argwhere((first != last).any(axis=2))[:, 1]  # columns of pixels, without the line of text
    moved = changed[changed > 0]
    assert moved.max() < 250  # the car at the flag, on the right, has not moved


@pytest.mark.parametrize("world", ["hoppers", "walkers", "half-cheetahs"])
def test_play_draws_a_mujoco_body_from_the_side(world: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    config = preset(world)
    few = replace(config.federation, num_clients=3, num_candidates=2, num_selected=1)
    small = replace(config, federation=few, learner=replace(config.learner, filter_warmup_steps=300))
    executor = make_executor(small)
    run = store(tmp_path / "run", executor)
    played = np.array([episode.total for episode in play_episodes(run, 2, 12)])
    evaluated = executor.evaluate(executor.initial_params(), 0, np.array([2])).mean_return[0]
    executor.close()
    assert abs(played.mean() - evaluated) < 4 * played.std()
    assert main(["play", str(run), "--client", "2", "--episodes", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(run / "client-2.gif")
    with Image.open(run / "client-2.gif") as picture:
        assert picture.n_frames > 5


def test_play_in_a_world_without_a_picture_prints_returns_alone(
    tabular_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", str(tabular_run), "--client", "1", "--episodes", "1", "--greedy"]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert main(["play", str(tabular_run), "--client", "1", "-o", str(tmp_path / "x.gif")]) == 2
    assert "no picture of the world tabular" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "RUN", "policy.txt"], "must end in .npz or .onnx"),
        (["export", "RUN", "policy.onnx", "--client", "3"], "client (=3) must be at least 0 and below 3"),
        (["export", "RUN", "policy.npz", "--sample"], "must not be given for npz"),
        (["export", "RUN@best", "policy.npz"], "has no such policy. There are: @last."),
        (["export", "RUN@7", "policy.npz"], "has no such policy. There are: @last."),
        (["export", "RUN@worst", "policy.npz"], "must end in @best, @best:COLUMN, @last or @ROUND"),
        (["export", "RUN", "policy.npz", "--client", "1"], "must not be given"),
        (["export", "nowhere", "policy.npz"], "is not a run folder"),
        (["play", "RUN", "--client", "-1"], "client (=-1) must be at least 0 and below num_clients (=3)"),
        (["play", "RUN", "--client", "3"], "client (=3) must be at least 0 and below num_clients (=3)"),
        (["play", "RUN", "--client", "1", "--episodes", "0"], "episodes (=0)"),
        (["play", "RUN", "--client", "1", "--beside", "RUN"], "must not be combined with client"),
        (["play", "RUN", "-o", "cars.png"], "must end in .gif"),
        (["play", "RUN", "--client", "1", "-o", "car.mp4"], "must end in .gif"),
        (["play", "nowhere", "--client", "1"], "is not a run folder"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("RUN", str(run)) for word in arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_finished_has_no_policy_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder.create(tmp_path / "run", CARS)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "policy.npz")]) == 2
    assert "has no such policy. There are: none yet." in capsys.readouterr().err


def test_exported_file_says_where_it_came_from(run: Path, tmp_path: Path) -> None:
    export_policy(run, tmp_path / "policy.npz")
    with np.load(tmp_path / "policy.npz") as arrays:
        about = json.loads(str(arrays["about"]))
        assert not any(name.startswith("critic") for name in arrays.files)
    assert about["num_clients"] == 3 and about["observation_limit"] == 1.0
