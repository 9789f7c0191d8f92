"""Progress of a run on the terminal, or as plain lines without a terminal."""

import io
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedpohcs.cli.grid import read_progress
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import printable
from fedpohcs.core.types import RoundRecord

SHOWN_PHASES = ("measure", "train", "evaluate")
ROUNDS_PER_LINE = 10
SECONDS_PER_REFRESH = 0.1
SECONDS_PER_LINE = 10.0


class ProgressDisplay:
    """Watches a run: a live panel on a terminal, a line every ten rounds elsewhere. A context manager."""

    rounds_per_line = ROUNDS_PER_LINE

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.on_finish()

    def on_start(self, config: ExperimentConfig) -> None:
        """Name the run; the first round takes longest because everything is compiled in it."""
        self.title = printable(f"{config.world} ({config.level}), {config.method}, seed {config.seed}")
        self.total_rounds = config.rounds
        federation = config.federation
        self.sampled_from = federation.num_clients if federation.evaluated_clients is not None else None
        self.durations: deque[float] = deque(maxlen=ROUNDS_PER_LINE)
        self.last_round_at = self.last_shown_at = time.monotonic()
        if self.console.is_terminal:
            self.live = Live(Text(f"{self.title}: compiling"), console=self.console, auto_refresh=False)
            self.live.start(refresh=True)
        else:
            self._print(f"{self.title}: {self.total_rounds} rounds")

    def on_round(self, record: RoundRecord) -> None:
        """Show a round, but redraw no more often than eyes can follow."""
        now = time.monotonic()
        if record.round > 1:  # earlier rounds mostly compile
            self.durations.append(now - self.last_round_at)
        self.last_round_at = now
        is_last = record.round == self.total_rounds
        if self.live is not None:
            if is_last or now - self.last_shown_at >= SECONDS_PER_REFRESH:
                self.live.update(self._panel(record), refresh=True)
                self.last_shown_at = now
        elif is_last or record.round % self.rounds_per_line == 0:
            parts = (f"round {record.round}/{self.total_rounds}", *self.describe(record), self._time_left(record))
            self._print("  ".join(filter(None, parts)))

    def describe(self, record: RoundRecord) -> tuple[str, ...]:
        """What is shown of a round besides its number."""
        return describe_returns(record, self.sampled_from), describe_seconds(record)

    def on_finish(self) -> None:
        """Leave the last state on the screen. May be called twice."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _print(self, line: str) -> None:
        try:
            print(line, file=self.console.file, flush=True)
        except OSError:  # the output is closed; the run goes on without a display
            self.console = Console(quiet=True, file=io.StringIO())

    def _panel(self, record: RoundRecord) -> Group:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self.total_rounds, completed=record.round, width=30),
            f"round {record.round}/{self.total_rounds}",
            self._time_left(record),
        )
        return Group(Text(self.title, style="bold"), bar, *map(Text, self.describe(record)))

    def _time_left(self, record: RoundRecord) -> str:
        remaining = self.total_rounds - record.round
        if not remaining:
            return "done"
        return f"{format_seconds(remaining * median(self.durations))} left" if self.durations else ""


class GridDisplay:
    """Watches many runs through their folders: a live table on a terminal, a line now and then elsewhere."""

    def __init__(self, runs: Mapping[Path, ExperimentConfig], out: Path, console: Console | None = None) -> None:
        self.runs = runs
        self.out = out
        self.console = console or Console()
        self.live: Live | None = None
        self.started: dict[Path, tuple[float, int]] = {}  # when a run was first seen running, and at which round
        self.shown: dict[Path, str] = {}
        self.with_rounds: set[Path] = set()  # of which a line has shown a round
        self.shown_at = 0.0

    def __enter__(self) -> "GridDisplay":
        if self.console.is_terminal:
            self.live = Live(console=self.console, auto_refresh=False)
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, status: Mapping[Path, str]) -> None:
        """Draw the progress that the folders show; `status` is waiting, running, done or failed."""
        if self.live is not None:
            self.live.update(self._table(status), refresh=True)
            return
        now = time.monotonic()
        for folder, state in status.items():
            first, changed = self._has_first_round(folder, state), state != self.shown.get(folder, "waiting")
            if first or changed or (state == "running" and now - self.shown_at >= SECONDS_PER_LINE):
                cells = self._cells(folder, state)
                print("  ".join(filter(None, cells)), file=self.console.file, flush=True)
        if now - self.shown_at >= SECONDS_PER_LINE:
            self.shown_at = now
        self.shown = dict(status)

    def _has_first_round(self, folder: Path, state: str) -> bool:
        """Whether the run has a round, and had none so far: who waits for the first result need wait no longer."""
        if state == "waiting" or folder in self.with_rounds or read_progress(folder).round < 0:
            return False
        self.with_rounds.add(folder)
        return True

    def _table(self, status: Mapping[Path, str]) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("run", "", "round", "mean return", "worst client", "time left"):
            table.add_column(heading, justify="left" if heading in ("run", "") else "right")
        for folder, state in status.items():
            table.add_row(*self._cells(folder, state), style="" if state == "running" else "dim")
        return table

    def _cells(self, folder: Path, state: str) -> tuple[str, ...]:
        name, rounds = str(folder.relative_to(self.out)), self.runs[folder].rounds
        progress = read_progress(folder)
        if progress.round < 0 or state == "waiting":
            return name, "compiling" if state == "running" else state, "", "", "", ""
        returns = f"{progress.mean_return:.1f}", f"{progress.min_return:.1f}"
        left = self._time_left(folder, progress.round, rounds) if state == "running" else ""
        return name, state, f"{progress.round}/{rounds}", *returns, left

    def _time_left(self, folder: Path, done: int, rounds: int) -> str:
        since, first = self.started.setdefault(folder, (time.monotonic(), done))
        if done <= first:
            return ""
        return format_seconds((time.monotonic() - since) / (done - first) * (rounds - done))


def describe_returns(record: RoundRecord, sampled_from: int | None = None) -> str:
    """Mean return and worst client, and the number of clients where they are a sample of so many."""
    returns = record.evaluation.mean_return
    if not len(returns):
        return "not evaluated"
    of = f" of {len(returns)} sampled clients" if sampled_from is not None and len(returns) < sampled_from else ""
    worst = int(np.argmin(returns))
    client = int(record.evaluation.client[worst])
    return f"mean return {np.mean(returns):.1f}{of}  worst {returns[worst]:.1f} (client {client})"


def describe_seconds(record: RoundRecord) -> str:
    """Seconds of the phases that usually take long."""
    return "  ".join(f"{name} {record.seconds[name]:.2f} s" for name in SHOWN_PHASES if name in record.seconds)


def format_seconds(seconds: float) -> str:
    """A duration for people: 42 s, 3 min 05 s, 2 h 10 min.

    Example:
        >>> format_seconds(42), format_seconds(185), format_seconds(7800)
        ('42 s', '3 min 05 s', '2 h 10 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
