"""What commands print: JSON lines, or nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.cli.json_lines import GridJsonLines
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.loading import load_run

TRAIN = ["train", "tabular", "--rounds", "2", "--federation.evaluation-every", "2"]


def test_json_is_one_object_per_round_with_the_figures_that_are_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--json", "--out", str(tmp_path / "run")]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rounds = load_run(tmp_path / "run").rounds
    assert [line["round"] for line in printed] == [0, 1, 2]
    assert [line["mean_return"] for line in printed] == [rounds["mean_return"][0], None, rounds["mean_return"][2]]
    assert [line["num_evaluated"] for line in printed] == [12, 0, 12]
    assert [" ".join(map(str, line["selected"])) for line in printed] == rounds["selected"].tolist()
    assert printed[1]["seconds"]["train"] > 0


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_json_of_a_comparison_names_the_run_of_each_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: str
) -> None:
    compare = ["compare", "tabular", "--selectors", "fedavg", "--seeds", "0,1", "--json"]
    for rounds, processes, printed_rounds in (("1", "1", [0, 1]), ("2", jobs, [2])):
        assert main([*compare, "--rounds", rounds, "--jobs", processes, "--out", str(tmp_path)]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for run in ("medium/fedavg/seed-0", "medium/fedavg/seed-1"):
            own, stored = [line for line in lines if line["run"] == run], load_run(tmp_path / run)
            assert [line["round"] for line in own] == printed_rounds
            assert [line["mean_return"] for line in own] == stored.rounds["mean_return"][printed_rounds].tolist()
            assert own[-1]["seconds"]["train"] == pytest.approx(stored.timings["train"][-1], abs=1e-6)
        assert {line["run"] for line in lines} == {"medium/fedavg/seed-0", "medium/fedavg/seed-1"}
    assert (tmp_path / "report.html").exists()


def test_json_of_runs_and_of_comparisons_has_the_same_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--selector", "fedpohcs", "--out", str(tmp_path / "run"), "--json"]) == 0
    alone = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    lines = GridJsonLines([tmp_path / "run"], tmp_path)
    lines.printed = {tmp_path / "run": -1}
    lines.show({tmp_path / "run": "waiting"})
    assert capsys.readouterr().out == ""
    lines.show({tmp_path / "run": "running"})
    together = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for one, other in zip(alone, together, strict=True):
        assert other.pop("run") == "run"
        seconds = other.pop("seconds")
        assert {phase: seconds[phase] for phase in one["seconds"]} == pytest.approx(one.pop("seconds"), abs=2e-6)
        assert one == other


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert main([*TRAIN, "--quiet", "--out", out]) == 0
    assert main(["resume", out, "--rounds", "3", "--quiet"]) == 0
    compare = ["compare", "tabular", "--selectors", "fedavg", "--seeds", "0", "--rounds", "1", "--jobs", "1"]
    assert main([*compare, "--quiet", "--out", str(tmp_path / "all")]) == 0
    assert capsys.readouterr() == ("", "")
    assert (tmp_path / "all" / "report.html").exists()


def test_quiet_and_json_at_once_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (TRAIN, ["compare", "tabular"]):
        assert main([*command, "--json", "--quiet", "--out", str(tmp_path / "run")]) == 2
        assert "must not be combined with quiet" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class StopWhenGood:
    """An observer that ends the run in round 2."""

    def on_start(self, config: ExperimentConfig) -> None: ...

    def on_round(self, record: RoundRecord) -> bool:
        return record.round == 2

    def on_finish(self) -> None: ...


def test_an_observer_stops_a_run_which_goes_on_to_the_same_end(tmp_path: Path) -> None:
    config = replace(preset("tabular", selector="fedavg"), rounds=4)
    history = run_experiment(config, tmp_path / "run", observers=[StopWhenGood()])
    assert len(history.records) == 3
    assert not (tmp_path / "run" / "policy.npz").exists()
    resume_experiment(tmp_path / "run")
    run_experiment(config, tmp_path / "whole")
    for name in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
