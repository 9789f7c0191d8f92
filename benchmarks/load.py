"""Large federations in one process: 1,000 and 10,000 clients, d = 100 candidates, K = 20 selected.

Measured: seconds by phase, the median over rounds 2 to 9, when everything is compiled; peak memory of the process, and
its growth over the last three rounds, by when the episodes that clients remember (of 5 rounds) are all there; seconds
before round 1. Each case runs in a process of its own, one after the other.

- `tabular`: the preset, everybody evaluated after every round.
- `mountain-cars`: the preset, but 2 evaluation episodes, evaluated before the first round and never again (the
  candidates of a round then play for their tables themselves), and 2,000 steps of filter warm-up instead of 100,000.
- `masked`: `tabular` with 1,000 clients and `--privacy masked`; what masks add is the difference to the case without.
  Opening the session, which every client does with every other, happens once, in round 1, and is given apart.

Goals for 1,000 clients: at most 8 GB; measuring and selecting with masks at most 2 s, which is also given in processor
time of all threads, because a busy machine changes that less.
"""

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import Figure, Goal, argument_parser, machine_facts, print_table, run_worker, write_results
from scaling import PHASES, median_seconds, peak_memory_gb

CASES = {
    "tabular, 1000": ("tabular", 1_000, "none"),
    "tabular, 10000": ("tabular", 10_000, "none"),
    "mountain-cars, 1000": ("mountain-cars", 1_000, "none"),
    "mountain-cars, 10000": ("mountain-cars", 10_000, "none"),
    "masked tabular, 1000": ("tabular", 1_000, "masked"),
}
ROUNDS, LAST = 9, 3


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--worker", choices=CASES, help="run this case and print the timings")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measured(arguments.worker, arguments.quick)))
        return
    facts, flags = machine_facts(), ["--quick"] if arguments.quick else []
    results = {name: run_worker(__file__, "--worker", name, *flags) for name in CASES}
    print_cases(results)
    write_results("load", facts, figures(results), {"cases": results}, quick=arguments.quick)


def config_of(name: str, quick: bool) -> Any:
    from fedpohcs import preset

    world, num_clients, privacy = CASES[name]
    config = preset(world)
    sizes = (num_clients // 50, 10, 4) if quick else (num_clients, 100, 20)
    federation = replace(config.federation, num_clients=sizes[0], num_candidates=sizes[1], num_selected=sizes[2])
    if world == "mountain-cars":
        federation = replace(federation, evaluation_episodes=2, evaluation_every=10**6)
        config = replace(config, learner=replace(config.learner, filter_warmup_steps=2_000))
    return replace(config, rounds=ROUNDS, privacy=privacy, federation=federation)


def measured(name: str, quick: bool) -> dict[str, Any]:
    """Inside the worker."""
    from fedpohcs.runs.experiment import start_training

    start = time.perf_counter()
    training = start_training(config_of(name, quick))
    processor = watched_measuring(training.executor)
    run = training.remaining_rounds()
    next(run)
    before_round_1 = time.perf_counter() - start
    rounds, memory = [], []
    start = time.perf_counter()
    for record in run:
        rounds.append({**record.seconds, "total": time.perf_counter() - start})
        memory.append(resident_gb())
        start = time.perf_counter()
    return {
        "before_round_1": before_round_1,
        "rounds": rounds,
        "measuring_processor_seconds": processor,
        "memory_gb": memory,
        "peak_memory_gb": peak_memory_gb(),
    }


def watched_measuring(executor: Any) -> list[float]:
    """Fills with the processor seconds, over all threads, of every call that measures."""
    seconds: list[float] = []
    measure = executor.measure

    def watched(*arguments: Any) -> Any:
        start = time.process_time()
        try:
            return measure(*arguments)
        finally:
            seconds.append(time.process_time() - start)

    executor.measure = watched
    return seconds


def resident_gb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmRSS"))


def choosing_seconds(result: dict[str, Any]) -> float:
    return statistics.median(timing["measure"] + timing["select"] for timing in result["rounds"][1:])


def processor_seconds(result: dict[str, Any]) -> float:
    return statistics.median(result["measuring_processor_seconds"][1:])


def print_cases(results: dict[str, dict[str, Any]]) -> None:
    rows = [
        (name, *(median_seconds(result, phase) for phase in PHASES), result["peak_memory_gb"], result["before_round_1"])
        for name, result in results.items()
    ]
    print_table("seconds per round by phase", ("case", *PHASES, "peak memory, GB", "before round 1, s"), rows)


def figures(results: dict[str, dict[str, Any]]) -> list[Figure]:
    found = []
    for name, result in results.items():
        small = CASES[name][1] == 1_000
        memory = result["memory_gb"]
        growth = 100 * (memory[-1] / memory[-1 - LAST] - 1)
        found += [
            Figure(f"{name}: a round", median_seconds(result, "total"), "s"),
            Figure(f"{name}: measuring and selecting", choosing_seconds(result), "s"),
            Figure(f"{name}: peak memory", result["peak_memory_gb"], "GB", Goal("<=", 8, "GB") if small else None),
            Figure(f"{name}: memory growth over the last {LAST} rounds", growth, "%"),
        ]
    clear, masked = results["tabular, 1000"], results["masked tabular, 1000"]
    session = masked["rounds"][0]["measure"] - masked["rounds"][1]["measure"]
    found += [
        Figure("masked selection, d = 100", choosing_seconds(masked), "s", Goal("<=", 2, "s")),
        Figure("the same in processor time", processor_seconds(masked), "s", Goal("<=", 2, "s")),
        Figure("in processor time without masks", processor_seconds(clear), "s"),
        Figure("what masks add on the clock", choosing_seconds(masked) - choosing_seconds(clear), "s"),
        Figure("opening the session of 1,000 clients and compiling, once", session, "s"),
    ]
    return found


if __name__ == "__main__":
    main()
