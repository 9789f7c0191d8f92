from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.cli import reproduce as reproduction
from fedpohcs.cli.reproduce import EXHIBITS, FigureOfRuns
from fedpohcs.core.config import ExperimentConfig


def test_every_exhibit_of_the_paper_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    text = capsys.readouterr().out
    labels = ("mcc", "hoppers", "osm", "client_participant_ratio", "mcc_level_hete", "hopper_level_hete", "errorbound")
    for label in (*labels, "table:1", "table:2", "table:3", "table:4"):
        assert f"  {label} " in text


def test_the_learning_rates_of_table_1_are_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table:1"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "Learning Rate " in line)
    assert [cell.strip() for cell in line.split("│")[2:6]] == ["0.001", "0.001", "0.001", "0.005"]


def test_names_of_a_table_are_not_cut_where_the_output_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["reproduce", "table:1"]) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if "fedavg" in line)
    assert all(name in head for name in ("fedpohcs", "gradient-norm", "power-of-choice", "fedavg"))


def test_an_unknown_exhibit_is_refused_and_both_spellings_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "mccc"]) == 2
    assert "Did you mean 'mcc'" in capsys.readouterr().err
    assert reproduction.ALIASES["client_partitipant_ratio"] in EXHIBITS


def test_figures_of_one_preset_share_their_runs(tmp_path: Path) -> None:
    one, other = EXHIBITS["mcc"], EXHIBITS["mcc_level_hete"]
    assert isinstance(one, FigureOfRuns) and isinstance(other, FigureOfRuns)
    shared = one.runs(tmp_path, quick=False).keys() & other.runs(tmp_path, quick=False).keys()
    assert len(shared) == 4 * 3


def test_a_figure_is_drawn_from_its_runs_and_nothing_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = FigureOfRuns("small", "tabular", "return_by_round", ("fedavg", "fedpohcs"), ("low", "high"))
    monkeypatch.setitem(EXHIBITS, "small", small)
    arguments = ["reproduce", "small", "--quick", "--out", str(tmp_path), "--jobs", "1"]
    assert main(arguments) == 0
    assert (tmp_path / "small-quick.png").read_bytes().startswith(b"\x89PNG")

    def refuse(config: ExperimentConfig, *rest: object, **more: object) -> None:
        raise AssertionError(f"ran {config.selector} again")

    monkeypatch.setattr("fedpohcs.runs.experiment.run_experiment", refuse)
    assert main(arguments) == 0
    assert "4 of 4 runs are complete already" in capsys.readouterr().out
