"""What an operator wants to know of a run on a fleet: a line per round in the log, and a file about the clients."""

import json
import logging
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.files import replace_file
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.layout import BAD_REPLY
from fedpohcs.runs.loading import load_run

FILE = "fleet.json"
VARIABLE = "FEDPOHCS_STATUS"
"""Variable of the environment with the path of a second copy, which the page of the server shows."""
log = logging.getLogger("fedpohcs")


def describe_round(record: RoundRecord, config: ExperimentConfig) -> str:
    """How many were evaluated, selected and answered in a round, and how long it took.

    Example:
        >>> from fedpohcs.core.types import Evaluation, Selection
        >>> two, none = np.arange(2), np.arange(0)
        >>> evaluation = Evaluation(two, np.array([1.0, 4.0]), two)
        >>> record = RoundRecord(3, two, Selection(two), {}, np.array([64, 0]), none, evaluation, {"train": 2.5})
        >>> print(describe_round(record, ExperimentConfig()))
        2 of 60 evaluated, mean return of these 2.5; 2 selected, 1 answered; 2.5 s
    """
    evaluated, returns = len(record.evaluation.client), record.evaluation.mean_return
    parts = ["not evaluated"]
    if evaluated:
        number = config.federation.num_clients
        parts = [f"{evaluated} of {number} evaluated, mean return of these {np.mean(returns):.4g}"]
    if record.round:
        answered = int(np.count_nonzero(record.train_steps))
        parts += [f"{len(record.selection.client)} selected, {answered} answered"]
    parts += [f"{sum(record.seconds.values()):.1f} s"]
    return "; ".join(parts)


class FleetStatus:
    """Watches a run: logs every round and writes `fleet.json` into the run folder."""

    executor: Any = None  # a `FlowerExecutor`, once there is one

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trained: Counter[int] = Counter()
        self.bad: Counter[int] = Counter()

    def on_start(self, config: ExperimentConfig) -> None:
        """Count what a resumed run has done before."""
        self.config = config
        try:
            table = load_run(self.folder).clients
        except UserError:  # nothing yet
            return
        steps = (table["role"] == "selected") & (table["metric"] == "steps") & (table["value"] > 0)
        self.trained.update(table["client"][steps].tolist())
        self.bad.update(table["client"][table["role"] == BAD_REPLY].tolist())

    def on_round(self, record: RoundRecord) -> None:
        """Log the round and renew the file."""
        log.info("round %d/%d: %s", record.round, self.config.rounds, describe_round(record, self.config))
        self.trained.update(record.selection.client[np.asarray(record.train_steps) > 0].tolist())
        self.bad.update(bad.client for bad in record.bad_replies)
        data = json.dumps(self._values(record.round), indent=1).encode()
        for path in filter(None, (str(self.folder / FILE), os.environ.get(VARIABLE))):
            try:
                replace_file(Path(path), data)
            except OSError as error:  # no reason to end a run
                log.warning("%s cannot be written: %s", path, error.strerror)

    def on_finish(self) -> None:
        """Do nothing: the file is that of the last round."""

    def _values(self, round_number: int) -> dict[str, Any]:
        run = {"folder": str(self.folder), "world": self.config.world, "selector": self.config.selector}
        rounds = {"round": round_number, "rounds": self.config.rounds, "written": time.time()}
        everyone = range(self.config.federation.num_clients)
        refused = {str(node): reason for node, reason in self.executor.refused.items()}
        return {**run, **rounds, "clients": [self._client(client) for client in everyone], "refused": refused}

    def _client(self, client: int) -> dict[str, Any]:
        executor = self.executor
        node = executor.nodes.get(client, executor.known_nodes.get(client))
        return {
            "client": client,
            "node": None if node is None else str(node),  # more digits than numbers of JavaScript have
            "version": executor.versions.get(client),
            "last_answer": executor.last_answers.get(client),
            "rounds_trained": self.trained[client],
            "bad_replies": self.bad[client],
        }
