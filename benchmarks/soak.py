"""5,000 small rounds in one process, stored like any run: does memory or the number of open files grow?

The preset `tabular` with 5 clients, 4 candidates and 2 selected, tables and a checkpoint written after every round.
Measured every 50 rounds: resident memory and open file handles. Warm-up is the first tenth. Goals: memory grows by at
most 5 % from the end of the warm-up to the end, no handle stays open. Checkpoints are written on a thread, which may
hold a file while the handles are counted: the fewest of the first and of the last fifth of the samples are compared.
As `fedpohcs train` does, the run keeps no records of its rounds in memory; those would be 4 kB per round.
"""

import itertools
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import Figure, Goal, argument_parser, machine_facts, write_results
from load import resident_gb


class Watch:
    """Notes memory, handles and the time while a run goes on."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.samples: list[dict[str, float]] = []

    def on_start(self, config: Any) -> None:
        del config

    def on_round(self, record: Any) -> None:
        if record.round and record.round % self.every == 0:
            handles = len(os.listdir("/proc/self/fd"))
            moment = time.perf_counter()
            self.samples.append(
                {"round": record.round, "memory_mb": 1e3 * resident_gb(), "handles": handles, "at": moment}
            )

    def on_finish(self) -> None:
        pass


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5_000)
    arguments = parser.parse_args()
    rounds, every = (40, 2) if arguments.quick else (arguments.rounds, 50)
    from fedpohcs import preset, run_experiment

    config = preset("tabular")
    federation = replace(config.federation, num_clients=5, num_candidates=4, num_selected=2)
    facts, watch = machine_facts(), Watch(every)
    with tempfile.TemporaryDirectory() as scratch:
        run_experiment(
            replace(config, rounds=rounds, federation=federation),
            Path(scratch) / "run",
            observers=[watch],
            keep_records=False,
        )
    settled = watch.samples[len(watch.samples) // 10 :]
    memory, handles = [one["memory_mb"] for one in settled], [one["handles"] for one in settled]
    seconds = [(b["at"] - a["at"]) / every for a, b in itertools.pairwise(settled)]
    fifth = max(1, len(handles) // 5)
    figures = [
        Figure("rounds", rounds, "rounds"),
        Figure("memory after the warm-up", memory[0], "MB"),
        Figure("memory growth after the warm-up", 100 * (memory[-1] / memory[0] - 1), "%", Goal("<=", 5, "%")),
        Figure(
            "growth of open handles", min(handles[-fifth:]) - min(handles[:fifth]), "handles", Goal("<=", 0, "handles")
        ),
        Figure("seconds a round, first half", statistics.median(seconds[: len(seconds) // 2]), "s"),
        Figure("seconds a round, second half", statistics.median(seconds[len(seconds) // 2 :]), "s"),
    ]
    write_results("soak", facts, figures, {"samples": watch.samples}, quick=arguments.quick)


if __name__ == "__main__":
    main()
