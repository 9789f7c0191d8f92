"""Means over the clients that answered are labelled so, in figures, tables, reports and on the terminal."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from conftest import made_up_records
from fedpohcs.analysis.figures import return_by_round
from fedpohcs.analysis.groups import load_groups, missing_returns
from fedpohcs.analysis.report import report_data
from fedpohcs.analysis.tables import statistics_tables
from fedpohcs.cli.following import FleetDisplay, Follower
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import Evaluation, RoundRecord
from fedpohcs.runs.folder import RunFolder


def silent(record: RoundRecord, number: int) -> RoundRecord:
    """The record as if the first clients had answered nothing."""
    client, returns, steps, *_ = record.evaluation
    trained = record.train_steps.copy()
    trained[:number] = 0
    return record._replace(
        evaluation=Evaluation(client[number:], returns[number:], steps[number:]), train_steps=trained
    )


def write(path: Path, config: ExperimentConfig, num_silent: int) -> Path:
    with RunFolder.create(path, config) as folder:
        for record in made_up_records(config):
            folder.append(silent(record, num_silent) if record.round == 2 else record)
    return path


@pytest.mark.parametrize(("num_silent", "words"), [(0, "all clients"), (5, "the clients that answered")])
def test_figures_tables_and_reports_name_the_clients_that_they_average_over(
    num_silent: int, words: str, config: ExperimentConfig, tmp_path: Path
) -> None:
    groups = load_groups([write(tmp_path / "run", replace(config, rounds=2), num_silent)])
    assert missing_returns(groups) == num_silent
    assert return_by_round(groups).axes[0].get_ylabel() == f"mean return over {words}"
    (panel,) = report_data(groups)["panels"]
    assert panel["averagedOver"] == words
    assert panel["groups"][0]["runs"][0]["answered"] == 12 - num_silent
    note = statistics_tables(groups)[0].note
    assert ("those of the clients that answered: 5 are missing" in note) == bool(num_silent)


def test_rounds_that_were_not_evaluated_lack_no_answers(config: ExperimentConfig, tmp_path: Path) -> None:
    groups = load_groups([write(tmp_path / "run", config, 12)])
    assert missing_returns(groups) == 0


def test_the_terminal_shows_every_round_of_a_fleet_and_how_many_took_part(
    config: ExperimentConfig, tmp_path: Path
) -> None:
    run, output = write(tmp_path / "run", config, 1), io.StringIO()
    display = FleetDisplay(Console(file=output))
    display.on_start(config)
    Follower(run, display).look()
    lines = output.getvalue().splitlines()
    assert lines[1].startswith("round 0/3  12 of 12 evaluated, mean return of these -5.5; 0.1 s")
    assert lines[3].startswith("round 2/3  11 of 12 evaluated, mean return of these -4; 3 selected, 2 answered; 0.9 s")
    assert len(lines) == 5
