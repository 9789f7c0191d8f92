"""The policies that a run keeps: the best, every k-th, the last; of runs that are running, stopped or done."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.keeping import Keep, Keeper, parse_keep
from fedpohcs.runs.loading import load_run
from fedpohcs.runs.policy import load_policy, read_arrays
from fedpohcs.runs.stored import Stored, find_stored, stored_arrays

CONFIG = replace(preset("tabular", selector="fedavg"), rounds=8)
KEEP = parse_keep("best,best:worst_tenth,every:3")


class StopAfter:
    """An observer that ends a run, as a signal would."""

    def __init__(self, round_number: int) -> None:
        self.round = round_number

    def on_start(self, config: ExperimentConfig) -> None: ...

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.round:
            raise KeyboardInterrupt

    def on_finish(self) -> None: ...


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "run"
    run_experiment(CONFIG, path, keep=KEEP)
    return path


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run_experiment(CONFIG, tmp_path / "run", keep=KEEP, observers=[StopAfter(5)])
    return tmp_path / "run"


def kept(run: Path) -> dict[str, int]:
    """The round of every kept policy, by the name of its file."""
    return {path.name: int(read_arrays(path)["round"]) for path in sorted((run / "policies").iterdir())}


def test_the_best_rounds_and_every_third_are_kept(run: Path) -> None:
    rounds = load_run(run).rounds
    assert kept(run) == {
        "best.npz": int(rounds["mean_return"].argmax()),
        "best-worst_tenth.npz": int(rounds["worst_tenth"].argmax()),
        **{f"round-{number:06d}.npz": number for number in (0, 3, 6)},
    }


def test_a_kept_policy_is_the_one_that_a_shorter_run_ends_with(run: Path, tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, rounds=3), tmp_path / "short")
    last, third = read_arrays(tmp_path / "short" / "policy.npz"), read_arrays(run / "policies" / "round-000003.npz")
    assert last.keys() == third.keys()
    assert all(np.array_equal(last[name], third[name]) for name in last)


def test_a_resumed_run_keeps_the_same_policies(run: Path, stopped: Path) -> None:
    resume_experiment(stopped, keep=KEEP)
    for path in (run / "policies").iterdir():
        assert (stopped / "policies" / path.name).read_bytes() == path.read_bytes()
    assert (stopped / "policy.npz").read_bytes() == (run / "policy.npz").read_bytes()


def test_the_best_of_the_rounds_before_is_not_replaced_by_a_worse_one_after_resuming() -> None:
    rows = [{"round": n, "mean_return": value} for n, value in enumerate([1.0, 5.0, float("nan")])]
    keeper = Keeper(Keep(), rows)
    assert keeper.names({"round": 3, "mean_return": 4.0}) == []
    assert keeper.names({"round": 4, "mean_return": 5.0}) == []
    assert keeper.names({"round": 5, "mean_return": 5.1}) == ["best"]


def test_a_stopped_run_has_its_last_policy_and_one_that_goes_on_has_a_newer_one(run: Path, stopped: Path) -> None:
    arrays, number = stored_arrays(find_stored(stopped), CONFIG)
    assert number == 5
    longer = shutil.copytree(run, stopped.parent / "longer")
    with pytest.raises(KeyboardInterrupt):
        resume_experiment(longer, rounds=12, observers=[StopAfter(10)])
    newer, number = stored_arrays(Stored(longer), CONFIG)
    assert number == 10
    assert arrays.keys() == newer.keys() == read_arrays(run / "policy.npz").keys() - {"round"}


def test_the_last_policy_of_a_checkpoint_is_the_one_that_the_run_would_have_stored(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    expected = read_arrays(copy / "policy.npz")
    (copy / "policy.npz").unlink()
    found, number = stored_arrays(Stored(copy), CONFIG)
    assert number == CONFIG.rounds
    assert found.keys() == expected.keys() - {"round"}
    assert all(np.array_equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(("which", "round_number"), [("@best", None), ("@last", 8), ("", 8), ("@3", 3), ("@8", 8)])
def test_any_stored_policy_is_exported(run: Path, tmp_path: Path, which: str, round_number: int | None) -> None:
    assert main(["export", f"{run}{which}", str(tmp_path / "policy.npz")]) == 0
    best = int(load_run(run).rounds["mean_return"].argmax())
    assert load_policy(tmp_path / "policy.npz").about["round"] == (best if round_number is None else round_number)


def test_a_policy_that_is_not_there_is_refused_with_those_that_are(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"@last, @best:worst_tenth, @best, @0, @3, @6"):
        stored_arrays(Stored(run, "4"), CONFIG)
    assert main(["export", f"{run}@4", str(tmp_path / "policy.npz")]) == 2


def test_the_policy_before_training_is_made_again_to_the_byte(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    expected = read_arrays(copy / "policies" / "round-000000.npz")
    (copy / "policies" / "round-000000.npz").unlink()
    found, number = stored_arrays(Stored(copy, "0"), CONFIG)
    assert number == 0
    assert found.keys() == expected.keys() - {"round"}
    assert all(np.array_equal(found[name], expected[name]) for name in found)


def test_a_folder_whose_name_has_an_at_is_found(tmp_path: Path) -> None:
    (tmp_path / "run@home").mkdir()
    assert find_stored(tmp_path / "run@home") == Stored(tmp_path / "run@home")
    assert find_stored(f"{tmp_path}/run@home@best") == Stored(tmp_path / "run@home", "best")


@pytest.mark.parametrize("text", ["worst", "best:nothing", "every:0", "every:-1", "every:x", "best:mean_return:x"])
def test_bad_wishes_are_refused_before_anything_is_written(text: str, tmp_path: Path) -> None:
    assert main(["train", "tabular", "--rounds", "1", "--keep", text, "--out", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_nothing_but_the_last_is_kept_on_request(tmp_path: Path) -> None:
    assert main(["train", "tabular", "--rounds", "1", "--keep", "", "--out", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run" / "policies").exists()


def test_the_worst_tenth_and_the_number_of_evaluated_clients_are_stored(run: Path) -> None:
    found = load_run(run)
    returns = np.sort(found.client_returns, axis=1)
    np.testing.assert_allclose(found.rounds["worst_tenth"], returns[:, :2].mean(axis=1))  # of 12 clients, rounded up
    assert set(found.rounds["num_evaluated"].tolist()) == {12}
