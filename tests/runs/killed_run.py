"""Resumes a run again and again, each time in a process that dies by SIGKILL a random time after its first round.

A process lives for MOST_ROUNDS at most, so that a fast machine does not end the run before the last kill.

Usage: killed_run.py RUN KILLS. Processes are forked before JAX starts, so that they need not import it anew.
"""

import os
import random
import signal
import sys
import threading
import time

import fedpohcs.execution.in_process
import fedpohcs.server.round  # noqa: F401 - imported before the forks
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.experiment import resume_experiment

LONGEST_LIFE = 0.12  # seconds after the first round
MOST_ROUNDS = 4


class Killer:
    """Ends the process some time after the first round it sees."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.rounds = 0

    def on_start(self, config: ExperimentConfig) -> None: ...

    def on_finish(self) -> None: ...

    def on_round(self, record: RoundRecord) -> None:
        self.rounds += 1
        if self.rounds == 1:
            threading.Thread(target=self.kill, args=(self.delay,), daemon=True).start()
        elif self.rounds == MOST_ROUNDS:
            self.kill(0)

    def kill(self, delay: float) -> None:
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)


def main(path: str, kills: int) -> None:
    generator = random.Random(0)
    for number in range(kills):
        delay = generator.uniform(0, LONGEST_LIFE)
        child = os.fork()
        if not child:
            resume_experiment(path, observers=[Killer(delay)])
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            sys.exit(f"process {number} ended with {code} before it was killed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
