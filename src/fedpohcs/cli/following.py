"""Shows the rounds that another process writes into a run folder."""

from pathlib import Path

import numpy as np

from fedpohcs.cli.display import ProgressDisplay
from fedpohcs.cli.grid import read_progress
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import Evaluation, RoundRecord
from fedpohcs.deploy.status import describe_round
from fedpohcs.runs.experiment import Observer
from fedpohcs.runs.layout import PHASES
from fedpohcs.runs.loading import Run, load_run
from fedpohcs.server.selection import Selection


class Follower:
    """Reports every new round of the folder to an observer."""

    def __init__(self, folder: Path, observer: Observer, last_round: int = -1) -> None:
        self.folder = folder
        self.observer = observer
        self.last_round = last_round

    def look(self) -> None:
        """Read the folder if it has changed."""
        if read_progress(self.folder).round <= self.last_round:
            return
        try:
            run = load_run(self.folder)
        except UserError:  # a row is only partly written; the next call reads it
            return
        for number in run.rounds["round"][run.rounds["round"] > self.last_round].tolist():
            self.observer.on_round(_shown(run, number))
            self.last_round = number


class FleetDisplay(ProgressDisplay):
    """Shows how many clients took part, and outside a terminal every round: a round of a fleet takes seconds."""

    rounds_per_line = 1

    def on_start(self, config: ExperimentConfig) -> None:
        """Name the run."""
        self.config = config
        super().on_start(config)

    def describe(self, record: RoundRecord) -> tuple[str, ...]:
        """What the server logs as well."""
        return (describe_round(record, self.config),)


def _shown(run: Run, number: int) -> RoundRecord:
    """The record of a round, as far as it is on disk."""
    evaluated, returns = run.returns_in(number)
    row = int(np.flatnonzero(run.timings["round"] == number)[0])
    seconds = {phase: float(run.timings[phase][row]) for phase in PHASES if phase != "total"}
    nobody = np.arange(0)
    evaluation = Evaluation(evaluated, returns, np.zeros(len(evaluated), np.int64))
    table = run.clients
    trained = (table["round"] == number) & (table["role"] == "selected") & (table["metric"] == "steps")
    selection, steps = Selection(table["client"][trained]), table["value"][trained]
    return RoundRecord(number, nobody, selection, {}, steps, nobody, evaluation, seconds)
