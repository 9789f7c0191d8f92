"""Shows the rounds that another process writes into a run folder."""

from pathlib import Path

import numpy as np

from fedpohcs.cli.grid import read_progress
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import Evaluation, RoundRecord
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


def _shown(run: Run, number: int) -> RoundRecord:
    """The record of a round, as far as it is on disk."""
    returns = run.client_returns[number]
    evaluated = np.flatnonzero(~np.isnan(returns))
    row = int(np.flatnonzero(run.timings["round"] == number)[0])
    seconds = {phase: float(run.timings[phase][row]) for phase in PHASES if phase != "total"}
    nobody = np.arange(0)
    evaluation = Evaluation(evaluated, returns[evaluated], np.zeros(len(evaluated), np.int64))
    return RoundRecord(number, nobody, Selection(nobody), {}, nobody, nobody, evaluation, seconds)
