"""`--json`: one JSON object per round on the standard output, of one run or of many."""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedpohcs.cli.grid import read_progress
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.folder import round_figures
from fedpohcs.runs.layout import PHASES
from fedpohcs.runs.loading import read_rounds, read_timings

CLIENT_LISTS = ("candidates", "selected")
DIGITS = 6  # of seconds


class JsonLines:
    """Prints the rounds of one run: the columns of `rounds.csv`, and the seconds of each phase."""

    def __init__(self, run: str | None = None) -> None:
        self.name = {} if run is None else {"run": run}

    def on_start(self, config: ExperimentConfig) -> None:
        """Remember the config, by whose weights returns are averaged."""
        self.config = config

    def on_round(self, record: RoundRecord) -> None:
        """Print a round. What is not a number is null."""
        print_round(self.name, round_figures(record, self.config), record.seconds)

    def on_finish(self) -> None:
        """Do nothing: the last line is that of the last round."""


class GridJsonLines:
    """Prints the rounds of many runs with the name of the run, as their folders get them. A context manager.

    Rounds that were there before are not printed.
    """

    def __init__(self, runs: Iterable[Path], out: Path) -> None:
        self.out = out
        self.printed = {folder: read_progress(folder).round for folder in runs}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the last lines are those of the last rounds."""

    def show(self, status: Mapping[Path, str]) -> None:
        """Print what is new; runs that wait have nothing."""
        for folder, state in status.items():
            if state != "waiting" and read_progress(folder).round > self.printed[folder]:
                with suppress(UserError, OSError, ValueError):  # what is damaged is named when results are written
                    self._print_new(folder)

    def _print_new(self, folder: Path) -> None:
        rounds, timings = read_rounds(folder), read_timings(folder)
        name = {"run": folder.relative_to(self.out).as_posix()}
        for place in np.flatnonzero(rounds["round"] > self.printed[folder]).tolist():
            number = int(rounds["round"][place])
            timed = timings["round"] == number
            seconds = {phase: float(timings[phase][timed][-1]) for phase in PHASES if phase != "total" and timed.any()}
            print_round(name, {column: values[place].item() for column, values in rounds.items()}, seconds)
            self.printed[folder] = number


def print_round(name: Mapping[str, str], figures: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
    """Print one object: the name of the run, a row of `rounds.csv`, and the seconds of each phase."""
    numbers = {column: _jsonable(value) for column, value in figures.items() if column not in CLIENT_LISTS}
    clients = {column: [int(client) for client in figures[column].split()] for column in CLIENT_LISTS}
    rounded = {"seconds": {phase: round(value, DIGITS) for phase, value in seconds.items()}}
    print(json.dumps({**name, **numbers, **clients, **rounded}), flush=True)


def _jsonable(value: float) -> float | int | None:
    return value if isinstance(value, int) else float(value) if math.isfinite(value) else None
