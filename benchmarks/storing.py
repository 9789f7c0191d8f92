"""What writing tables and a checkpoint after every round costs a paper-size run.

Measured: runs of 30 rounds with and without a run folder, in turns within one process, and the size of a checkpoint.

Goal: at most 3 % of a round.
"""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Figure, Goal, argument_parser, benchmark_config, machine_facts, write_results

SKIPPED_ROUNDS = 3


class Clock:
    """Times every round from outside."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_start(self, config: Any) -> None: ...

    def on_finish(self) -> None: ...

    def on_round(self, record: Any) -> None:
        self.times.append(time.perf_counter())

    def round_seconds(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)][SKIPPED_ROUNDS:]


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    facts = machine_facts()
    config = dataclasses.replace(benchmark_config(quick=arguments.quick), rounds=6 if arguments.quick else 30)
    seconds: dict[str, list[float]] = {"stored": [], "in memory": []}
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(2 if arguments.quick else 6):
            seconds["in memory"] += timed_run(config, None)
            seconds["stored"] += timed_run(config, Path(scratch) / str(turn))
        checkpoint = max(path.stat().st_size for path in Path(scratch).rglob("*.ckpt"))
    write_results("storing", facts, headline(seconds, checkpoint), seconds, quick=arguments.quick)


def timed_run(config: Any, out: Path | None) -> list[float]:
    from fedpohcs import run_experiment

    clock = Clock()
    run_experiment(config, out, observers=[clock])
    return clock.round_seconds()


def headline(seconds: dict[str, list[float]], checkpoint: int) -> list[Figure]:
    stored, memory = (statistics.median(seconds[name]) for name in ("stored", "in memory"))
    return [
        Figure("round in memory", memory, "s"),
        Figure("round stored", stored, "s"),
        Figure("cost of storing", 100 * (stored / memory - 1), "%", Goal("<=", 3, "%")),
        Figure("checkpoint", checkpoint / 1e6, "MB"),
    ]


if __name__ == "__main__":
    main()
