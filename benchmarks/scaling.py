"""How a fedpohcs round grows with the population, with d = 18 candidates and K = 6 selected.

- 60, 600 and 6,000 clients that are all evaluated after every round, and record their episodes for measuring.
- 1,000,000 clients of whom 600 are evaluated. Goals: at most 1.5 times the round of 600 clients, 4 GB, and 30 s before
  round 1. Nearly everybody who is asked acts for the first time.
- 10,000 clients, all evaluated in rounds of `full_evaluation_rounds`. Goal: at most 0.35 ms per client.

Measured: seconds by phase and processor time, the median over the rounds from the second on, when everything is
compiled; the peak memory of the process; the seconds before round 1, which include building the population, warming up
its filters, compiling and round 0. Runs are stored, with a checkpoint after every round. Each case runs in a process of
its own, one after the other.

Where all are evaluated and recorded, the seconds of evaluation and the memory grow with the population; such a size is
left out if its episodes would not fit in `--memory-limit` (GB).

On a machine that is busy with other work `--busy` measures the cases with goals alone, compares processor time, and
writes results/scaling-busy.json.
"""

import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import (
    Figure,
    Goal,
    argument_parser,
    benchmark_config,
    machine_facts,
    print_table,
    run_worker,
    write_results,
)

SIZES, BUSY_SIZES, QUICK_SIZES = (60, 600, 6000), (600,), (8, 16)
ROUNDS, BUSY_ROUNDS, QUICK_ROUNDS = 4, 2, 2
SAMPLED, QUICK_SAMPLED = (1_000_000, 600), (1_000, 16)  # clients, and how many of them are evaluated
FULL, QUICK_FULL = 10_000, 32  # clients that are all evaluated
FULL_ROUNDS = (2, 3, 4)
MOST_GROWTH, MOST_GB, MOST_BEFORE, MOST_PER_CLIENT = 1.5, 4.0, 30.0, 0.35
PHASES = ("measure", "select", "train", "aggregate", "evaluate", "total")
BYTES_PER_STEP = 27  # of a recorded step: observations, action and reward as 32-bit floats, three flags
BASE_GB = 1.5


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--memory-limit", type=float, default=20.0, help="GB")
    parser.add_argument("--busy", action="store_true", help="processor time of the cases with goals alone")
    parser.add_argument("--worker", help="run CLIENTS, CLIENTS/EVALUATED or CLIENTS/all and print the timings")
    arguments = parser.parse_args()
    quick, busy = arguments.quick, arguments.busy
    if arguments.worker:
        print(json.dumps(time_population(arguments.worker, quick, busy)))
        return
    facts = machine_facts()
    flags = [flag for flag, given in (("--quick", quick), ("--busy", busy)) if given]
    results = {}
    for size in QUICK_SIZES if quick else BUSY_SIZES if busy else SIZES:
        if expected_gb(size, quick) <= arguments.memory_limit:
            results[size] = run_worker(__file__, "--worker", str(size), *flags)
        else:
            print(f"{size} clients left out: about {expected_gb(size, quick):.0f} GB")
    (number, evaluated), everyone = (QUICK_SAMPLED, QUICK_FULL) if quick else (SAMPLED, FULL)
    sampled = run_worker(__file__, "--worker", f"{number}/{evaluated}", *flags)
    full = run_worker(__file__, "--worker", f"{everyone}/all", *flags)
    print_sizes({**results, f"{number}, {evaluated} evaluated": sampled, f"{everyone} in full": full})
    figures = goals(results.get(evaluated), sampled, full, everyone, busy=busy)
    samples = {"sizes": results, "sampled": sampled, "full": full}
    write_results("scaling-busy" if busy else "scaling", facts, [*figures, *growth(results)], samples, quick=quick)


def sized_config(case: int | str, quick: bool, busy: bool = False) -> Any:
    """The config of `60`, of `1000000/600`, of whom 600 are evaluated, or of `10000/all`, who do not record."""
    config = benchmark_config(quick=quick)
    number, _, evaluated = str(case).partition("/")
    changes: dict[str, Any] = {"num_clients": int(number)}
    if evaluated == "all":
        changes |= {"evaluated_clients": 2, "full_evaluation_rounds": FULL_ROUNDS}
    elif evaluated:
        changes |= {"evaluated_clients": int(evaluated)}
    federation = replace(config.federation, **changes)
    return replace(config, federation=federation, rounds=QUICK_ROUNDS if quick else BUSY_ROUNDS if busy else ROUNDS)


def expected_gb(num_clients: int, quick: bool) -> float:
    """Memory of the episodes kept, and of those being played."""
    from fedpohcs.worlds import world_class

    config = sized_config(num_clients, quick)
    steps = num_clients * config.federation.evaluation_episodes * world_class(config.world).horizon
    return BASE_GB + BYTES_PER_STEP * steps * (min(config.modelling.history_rounds, config.rounds + 1) + 1) / 1e9


def time_population(case: str, quick: bool, busy: bool) -> dict[str, Any]:
    """Inside the worker. The run is stored, as `fedpohcs train` does it."""
    from fedpohcs.runs.experiment import run_experiment

    watch = Watch()
    with tempfile.TemporaryDirectory() as scratch:
        run_experiment(sized_config(case, quick, busy), Path(scratch) / "run", observers=[watch], keep_records=False)
    before, *rounds = watch.rounds
    return {
        "before_round_1": before["total"],
        "processor_seconds_before_round_1": before["processor"],
        "rounds": rounds,
        "peak_memory_gb": peak_memory_gb(),
    }


class Watch:
    """Times rounds from the end of one to the end of the next."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []
        self._last = time.perf_counter(), time.process_time()

    def on_start(self, config: Any) -> None: ...

    def on_finish(self) -> None: ...

    def on_round(self, record: Any) -> None:
        now = time.perf_counter(), time.process_time()
        total, processor = (new - old for new, old in zip(now, self._last, strict=True))
        steps = int(record.evaluation.steps.sum())
        self.rounds.append({**record.seconds, "total": total, "processor": processor, "evaluation_steps": steps})
        self._last = time.perf_counter(), time.process_time()


def peak_memory_gb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def median_seconds(result: dict[str, Any], phase: str) -> float:
    return statistics.median(timing[phase] for timing in result["rounds"][1:])


def print_sizes(results: dict[Any, dict[str, Any]]) -> None:
    rows = [
        (
            str(size),
            *(median_seconds(result, phase) for phase in PHASES),
            result["peak_memory_gb"],
            result["before_round_1"],
            median_seconds(result, "processor"),
        )
        for size, result in results.items()
    ]
    print_table(
        "seconds per round by phase", ("clients", *PHASES, "peak memory, GB", "before round 1, s", "processor, s"), rows
    )


def goals(
    few: dict[str, Any] | None, sampled: dict[str, Any], full: dict[str, Any], everyone: int, *, busy: bool
) -> list[Figure]:
    """What is held against a goal: on a busy machine processor time, which is that of all cores together."""
    name = "processor time" if busy else "time"
    before = "processor_seconds_before_round_1" if busy else "before_round_1"
    figures = [
        Figure("sampled: peak memory", sampled["peak_memory_gb"], "GB", Goal("<=", MOST_GB, "GB")),
        Figure(f"sampled: {name} before round 1", sampled[before], "s", Goal("<=", MOST_BEFORE, "s")),
    ]
    if few is not None:
        total = "processor" if busy else "total"
        ratio = median_seconds(sampled, total) / median_seconds(few, total)
        goal = Goal("<=", MOST_GROWTH, "times")
        figures.insert(0, Figure(f"sampled: {name} of a round, that of as many clients in all", ratio, "times", goal))
    milliseconds = 1e3 * median_seconds(full, "processor" if busy else "evaluate") / everyone
    steps = median_seconds(full, "evaluation_steps") / everyone
    goal = None if busy else Goal("<=", MOST_PER_CLIENT, "ms")
    what = "processor time of a round" if busy else "evaluation"
    return [
        *figures,
        Figure(f"all evaluated: {what} per client", milliseconds, "ms", goal),
        Figure("all evaluated: steps per client", steps, "steps"),
    ]


def growth(results: dict[int, dict[str, Any]]) -> list[Figure]:
    figures = [
        Figure(f"{size} clients: a round", median_seconds(result, "total"), "s") for size, result in results.items()
    ]
    figures += [
        Figure(f"{size} clients: peak memory", result["peak_memory_gb"], "GB") for size, result in results.items()
    ]
    sizes = list(results)
    for small, large in itertools.pairwise(sizes):
        name = f"{small} to {large} clients: growth of"
        for phase in ("measure", "select", "train", "evaluate", "total"):
            ratio = median_seconds(results[large], phase) / median_seconds(results[small], phase)
            figures.append(Figure(f"{name} {phase}", ratio, "times"))
        memory = results[large]["peak_memory_gb"] / results[small]["peak_memory_gb"]
        figures.append(Figure(f"{name} peak memory", memory, "times"))
    return figures


if __name__ == "__main__":
    main()
