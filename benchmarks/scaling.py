"""How a fedpohcs round grows with the population: 60, 600 and 6,000 clients, d = 18 candidates, K = 6 selected.

Measured: seconds by phase, the median over rounds 2 to 4, when everything is compiled; the peak memory of the process;
the seconds before round 1, which include building the population, warming up its filters and compiling. Each size runs
in a process of its own, one after the other; the three rounds are the repetitions.

Evaluation plays the whole population, so its seconds and the memory of recorded episodes should grow with it; the other
phases deal with d or K clients and should not. A size whose recorded episodes would not fit in `--memory-limit` (GB) is
left out. There is no goal in seconds: the growth for ten times the clients is shown.
"""

import itertools
import json
import resource
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

from _common import Figure, argument_parser, benchmark_config, machine_facts, print_table, run_worker, write_results

SIZES, QUICK_SIZES = (60, 600, 6000), (8, 16)
ROUNDS, QUICK_ROUNDS = 4, 2
PHASES = ("measure", "select", "train", "aggregate", "evaluate", "total")
BYTES_PER_STEP = 27  # of a recorded step: observations, action and reward as 32-bit floats, three flags
BASE_GB = 1.5


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--memory-limit", type=float, default=20.0, help="GB")
    parser.add_argument("--worker", type=int, help="run this many clients and print the timings")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(time_population(arguments.worker, arguments.quick)))
        return
    facts = machine_facts()
    flags = ["--quick"] if arguments.quick else []
    results = {}
    for size in QUICK_SIZES if arguments.quick else SIZES:
        if expected_gb(size, arguments.quick) <= arguments.memory_limit:
            results[size] = run_worker(__file__, "--worker", str(size), *flags)
        else:
            print(f"{size} clients left out: about {expected_gb(size, arguments.quick):.0f} GB")
    print_sizes(results)
    write_results("scaling", facts, growth(results), {"sizes": results}, quick=arguments.quick)


def sized_config(num_clients: int, quick: bool) -> Any:
    config = benchmark_config(quick=quick)
    federation = replace(config.federation, num_clients=num_clients)
    return replace(config, federation=federation, rounds=QUICK_ROUNDS if quick else ROUNDS)


def expected_gb(num_clients: int, quick: bool) -> float:
    """Memory of the episodes kept, and of those being played."""
    from fedpohcs.worlds import world_class

    config = sized_config(num_clients, quick)
    steps = num_clients * config.federation.evaluation_episodes * world_class(config.world).horizon
    return BASE_GB + BYTES_PER_STEP * steps * (min(config.modelling.history_rounds, config.rounds + 1) + 1) / 1e9


def time_population(num_clients: int, quick: bool) -> dict[str, Any]:
    """Inside the worker."""
    from fedpohcs.runs.experiment import start_training

    start = time.perf_counter()
    run = start_training(sized_config(num_clients, quick)).remaining_rounds()
    next(run)
    before_round_1 = time.perf_counter() - start
    rounds = []
    start = time.perf_counter()
    for record in run:
        rounds.append({**record.seconds, "total": time.perf_counter() - start})
        start = time.perf_counter()
    return {"before_round_1": before_round_1, "rounds": rounds, "peak_memory_gb": peak_memory_gb()}


def peak_memory_gb() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def median_seconds(result: dict[str, Any], phase: str) -> float:
    return statistics.median(timing[phase] for timing in result["rounds"][1:])


def print_sizes(results: dict[int, dict[str, Any]]) -> None:
    rows = [
        (
            str(size),
            *(median_seconds(result, phase) for phase in PHASES),
            result["peak_memory_gb"],
            result["before_round_1"],
        )
        for size, result in results.items()
    ]
    print_table("seconds per round by phase", ("clients", *PHASES, "peak memory, GB", "before round 1, s"), rows)


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
