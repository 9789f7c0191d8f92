"""Many runs at once, each in a process of its own.

Progress is read from the run folders, so a process may run anywhere as long as it writes to the same disk.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.processes import EXIT_NOT_GUARDED, NOT_GUARDED, available_cores, interrupts_blocked
from fedpohcs.runs.layout import is_run

SECONDS_PER_POLL = 0.25
SECONDS_TO_STOP = 30


class Job(Protocol):
    """A run that was started."""

    def failure(self) -> str | None:
        """None while the run goes on; "" after success; else the last error message."""
        ...

    def stop(self) -> None:
        """Ask the run to end; its finished rounds are kept."""
        ...


class Progress(NamedTuple):
    """What the run folder says about a run."""

    round: int  # -1: none yet
    mean_return: float
    min_return: float


Launch = Callable[[Path, ExperimentConfig, int], Job]
"""Starts a run (folder, config) in one of the slots, which count from 0."""


def complete_run(
    folder: Path, config: ExperimentConfig, observers: Sequence[Any] = (), log: Sequence[str] = ()
) -> None:
    """Train the missing rounds of the run in `folder`: all rounds, or those after the last stored one."""
    from fedpohcs.runs import experiment
    from fedpohcs.runs.loggers import make_loggers

    observers = [*observers, *make_loggers(log, folder)]
    if is_run(folder):
        experiment.resume_experiment(folder, rounds=config.rounds, observers=observers, keep_records=False)
    else:
        experiment.run_experiment(config, folder, observers=observers, keep_records=False)


def run_grid(
    runs: Mapping[Path, ExperimentConfig], launch: Launch, slots: int, show: Callable[[dict[Path, str]], None]
) -> None:
    """Run all, `slots` at a time. A run that fails does not stop the others; it is named at the end.

    Args:
        runs: what to train in each folder.
        launch: how to start one.
        slots: how many go on at the same time.
        show: called repeatedly with the status of each folder: waiting, running, done or failed.
    """
    status = dict.fromkeys(runs, "waiting")
    active: dict[int, tuple[Path, Job]] = {}
    failures: dict[Path, str] = {}
    try:
        while any(state in ("waiting", "running") for state in status.values()):
            waiting = [folder for folder, state in status.items() if state == "waiting"]
            for slot, folder in zip(sorted(set(range(slots)) - active.keys()), waiting, strict=False):
                active[slot] = (folder, launch(folder, runs[folder], slot))
                status[folder] = "running"
            for slot, (folder, job) in list(active.items()):
                failure = job.failure()
                if failure is not None:
                    del active[slot]
                    status[folder] = "failed" if failure else "done"
                    failures |= {folder: failure} if failure else {}
            show(status)
            time.sleep(SECONDS_PER_POLL)
    finally:
        for _, job in active.values():
            job.stop()
    if failures:
        told = "; ".join(f"{folder}: {reason}" for folder, reason in failures.items())
        raise UserError(f"{len(failures)} of {len(runs)} runs failed. {told}")


def read_progress(folder: Path) -> Progress:
    """The last complete round, from the end of rounds.csv."""
    try:
        with (folder / "rounds.csv").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode().split("\n")
        cells = lines[-2].split(",")  # text after the last line end is an incomplete row
        return Progress(int(cells[0]), float(cells[1]), float(cells[2]))
    except (OSError, ValueError, IndexError):
        return Progress(-1, float("nan"), float("nan"))


class LocalJob:
    """A run in a process of this machine, on cores of its own: runs that share cores slow each other down.

    The process is spawned, so it knows the selectors and worlds that the main module registers when it is imported.
    """

    def __init__(self, folder: Path, config: ExperimentConfig, cores: list[int], log: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._told, tells = context.Pipe(duplex=False)
        self._process = context.Process(target=_run_in_process, args=(folder, config, cores, log, tells))
        try:
            with interrupts_blocked():
                self._process.start()
        except KeyboardInterrupt:  # held back until the process had started
            self.stop()
            raise
        tells.close()

    def failure(self) -> str | None:
        code = self._process.exitcode
        if code is None:
            return None
        if code == 0:
            return ""
        try:
            return self._told.recv()
        except EOFError:  # the process ended without a message
            return NOT_GUARDED if code == EXIT_NOT_GUARDED else f"its process ended with code {code}"

    def stop(self) -> None:
        self._process.terminate()
        self._process.join(SECONDS_TO_STOP)
        self._process.kill()
        self._process.join()


def local_launcher(slots: int, log: Sequence[str] = ()) -> Launch:
    """Starts processes on this machine and divides the cores among the slots."""
    cores = available_cores()
    return lambda folder, config, slot: LocalJob(folder, config, cores[slot::slots] or cores, log)


def _run_in_process(
    folder: Path, config: ExperimentConfig, cores: list[int], log: Sequence[str], tells: Connection
) -> None:
    """What the process of a `LocalJob` does."""
    from fedpohcs.cli.signals import stopped_by_signals

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    try:
        with stopped_by_signals():
            threading.Thread(target=_stop_with_parent, daemon=True).start()
            complete_run(folder, config, log=log)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C must not print a traceback
        sys.exit(130)
    except Exception as error:
        tells.send(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        sys.exit(2)


def _stop_with_parent() -> None:
    """Stop this run when the process that started it has ended, even if it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
