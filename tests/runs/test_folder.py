import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeRun, made_up_records
from fedpohcs.core.config import ExperimentConfig, FederationConfig, from_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.trees import named_arrays
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import find_runs, load_run


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_run_folder_starts_with_config_origin_and_empty_tables(tmp_path: Path, config: ExperimentConfig) -> None:
    path = RunFolder.create(tmp_path / "a" / "b", config).path
    assert sorted(file.name for file in path.iterdir()) == [
        ".lock",
        "clients.csv",
        "config.json",
        "origin.json",
        "rounds.csv",
        "timings.csv",
    ]
    assert from_dict(json.loads((path / "config.json").read_text())) == config
    assert read(path / "rounds.csv") == []
    assert [entry.name for entry in path.parent.iterdir()] == ["b"]


def test_origin_says_what_the_run_was_made_with(tmp_path: Path, config: ExperimentConfig) -> None:
    path = RunFolder.create(tmp_path / "run", config).path
    origin = json.loads((path / "origin.json").read_text())
    assert origin["packages"]["numpy"] == np.__version__
    assert origin["cpu_count"] == os.cpu_count()
    assert {"started", "fedpohcs", "commit", "dirty", "python", "platform"} <= origin.keys()


def test_rounds_table_has_one_row_a_round_and_no_times(make_run: MakeRun) -> None:
    rows = read(make_run(rounds=3, seed=2) / "rounds.csv")
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert rows[0] == {
        "round": "0",
        "mean_return": "-3.5",  # 0 + 2 - mean of 0..11
        "min_return": "-9.0",
        "max_return": "2.0",
        "weighted_return": "-3.5",
        "train_steps": "0",
        "evaluation_steps": "600",
        "num_rejected": "0",
        "candidates": "",
        "selected": "",
        "worst_tenth": "-8.5",  # of twelve clients two
        "num_evaluated": "12",
    }
    assert (rows[3]["candidates"], rows[3]["selected"]) == ("0 1 2 3 4 5", "0 1 2")
    assert rows[3]["train_steps"] == "768"


def test_weighted_return_counts_clients_by_their_weights(make_run: MakeRun) -> None:
    federation = FederationConfig(num_clients=2, num_candidates=2, num_selected=1, client_weights=(3.0, 1.0))
    row = read(make_run(rounds=1, federation=federation) / "rounds.csv")[0]
    assert row["mean_return"] == "-0.5"
    assert row["weighted_return"] == "-0.25"


def test_clients_table_holds_scores_training_and_evaluation(make_run: MakeRun) -> None:
    rows = [row for row in read(make_run(rounds=1) / "clients.csv") if row["round"] == "1"]
    of = lambda role, metric: [(r["client"], r["value"]) for r in rows if (r["role"], r["metric"]) == (role, metric)]  # noqa: E731
    assert of("candidate", "loss")[:3] == [("0", "0.0"), ("1", repr(1 / 3)), ("2", repr(2 / 3))]
    assert of("selected", "kl") == [("0", "0.1"), ("1", "0.1"), ("2", "0.1")]
    assert of("selected", "steps") == [("0", "256.0"), ("1", "256.0"), ("2", "256.0")]
    assert len(of("evaluated", "mean_return")) == 12


def test_rejected_updates_are_counted_and_named(tmp_path: Path, config: ExperimentConfig) -> None:
    folder = RunFolder.create(tmp_path / "run", config)
    record = list(made_up_records(config))[1]
    folder.append(record._replace(rejected=np.array([2])))
    assert read(folder.path / "rounds.csv")[0]["num_rejected"] == "1"
    assert [row["client"] for row in read(folder.path / "clients.csv") if row["role"] == "rejected"] == ["2"]


def test_timings_are_kept_by_phase(make_run: MakeRun) -> None:
    row = read(make_run(rounds=1) / "timings.csv")[1]
    assert row["train"] == "0.5"
    assert row["total"] == "0.875"


def test_same_records_give_the_same_bytes(make_run: MakeRun) -> None:
    one, other = make_run("one", rounds=4), make_run("other", rounds=4)
    for name in ("config.json", "rounds.csv", "clients.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_numbers_come_back_exactly(tmp_path: Path, config: ExperimentConfig) -> None:
    folder = RunFolder.create(tmp_path / "run", config)
    record = next(made_up_records(config))
    values = np.random.default_rng(0).normal(size=12) * 1e-7
    folder.append(record._replace(evaluation=record.evaluation._replace(mean_return=values)))
    np.testing.assert_array_equal(load_run(folder.path).client_returns[0], values)


def test_a_used_folder_is_refused_and_left_alone(make_run: MakeRun, config: ExperimentConfig) -> None:
    path = make_run(rounds=2)
    before = files(path)
    with pytest.raises(UserError, match="--overwrite"):
        RunFolder.create(path, config)
    assert files(path) == before


def test_overwrite_replaces_a_run(make_run: MakeRun, config: ExperimentConfig) -> None:
    path = make_run(rounds=2)
    (path / "policy.npz").write_bytes(b"old")
    RunFolder.create(path, config, overwrite=True)
    assert read(path / "rounds.csv") == []
    assert not (path / "policy.npz").exists()
    assert [entry.name for entry in path.parent.iterdir()] == ["run"]


def test_overwrite_never_removes_a_folder_that_is_not_a_run(tmp_path: Path, config: ExperimentConfig) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a run"):
        RunFolder.create(tmp_path, config, overwrite=True)
    assert files(tmp_path) == {"thesis.tex": b"years of work"}


def test_an_empty_folder_may_be_used(tmp_path: Path, config: ExperimentConfig) -> None:
    (tmp_path / "run").mkdir()
    assert (RunFolder.create(tmp_path / "run", config).path / "config.json").exists()


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_place_that_cannot_be_a_folder_is_refused(tmp_path: Path, config: ExperimentConfig, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="out"):
        RunFolder.create(tmp_path / place, config)
    assert files(tmp_path) == {"file": b""}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path: Path, config: ExperimentConfig) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written: Permission denied"):
        RunFolder.create(tmp_path / "run", config)


def test_policy_is_stored_by_path_without_pickle(tmp_path: Path, config: ExperimentConfig) -> None:
    folder = RunFolder.create(tmp_path / "run", config)
    folder.save_policy(named_arrays({"policy": [np.ones((2, 3)), np.zeros(3)], "kl": np.float32(1)}), 7)
    with np.load(folder.path / "policy.npz", allow_pickle=False) as stored:
        assert {name: array.shape for name, array in stored.items()} == {
            "policy/0": (2, 3),
            "policy/1": (3,),
            "kl": (),
            "round": (),
        }
        assert stored["round"] == 7


def test_a_run_reads_back_with_its_tables(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=3, seed=1))
    assert run.complete
    assert run.config.seed == 1
    np.testing.assert_array_equal(run.rounds["round"], np.arange(4))
    np.testing.assert_array_equal(run.client_returns[2], 2 + 1 - np.arange(12.0))
    np.testing.assert_array_equal(run.times_selected, [3, 3, 3] + [0] * 9)
    np.testing.assert_array_equal(run.timings["train"], [0, 0.5, 0.5, 0.5])


def test_a_round_cut_off_while_it_was_written_is_left_out(make_run: MakeRun) -> None:
    path = make_run(rounds=3, stop_after=1)
    with (path / "clients.csv").open("a") as file:
        file.write("2,0,evaluated,mean_return,7.0\n2,1,eval")
    run = load_run(path)
    assert not run.complete
    assert run.client_returns.shape == (2, 12)
    assert run.clients["round"].max() == 1


def test_final_returns_ignore_rounds_in_which_a_client_was_not_evaluated(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=12))
    table = run.clients
    absent = (table["client"] == 0) & (table["round"] > 9) | (table["client"] == 1)
    table["value"][absent & (table["metric"] == "mean_return")] = np.nan
    assert run.final_returns[0] == np.mean(np.arange(3, 10))
    assert np.isnan(run.final_returns[1])


@pytest.mark.parametrize(
    "damage", ["no folder", "empty folder", "no rounds", "other columns", "bad config", "bad json"]
)
def test_a_folder_that_is_no_readable_run_is_refused(make_run: MakeRun, damage: str) -> None:
    path = make_run(rounds=1, stop_after=-1 if damage == "no rounds" else None)
    match damage:
        case "no folder":
            path = path / "nowhere"
        case "empty folder":
            path = path / "empty"
            path.mkdir()
        case "other columns":
            (path / "rounds.csv").write_text("a,b\n1,2\n")
        case "bad config":
            (path / "config.json").write_text('{"rounds": "many"}')
        case "bad json":
            (path / "config.json").write_text("{")
    with pytest.raises(UserError, match="run"):
        load_run(path)


def test_runs_are_found_in_and_below_folders_each_once(make_run: MakeRun, tmp_path: Path) -> None:
    one, other = make_run("x/one", rounds=1), make_run("x/other", rounds=1)
    assert find_runs([one, tmp_path]) == [one, other]


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is none in it"):
        find_runs([tmp_path])


def test_a_stored_config_equals_the_config_it_came_from(make_run: MakeRun, config: ExperimentConfig) -> None:
    assert load_run(make_run(rounds=3)).config == replace(config, rounds=3)
