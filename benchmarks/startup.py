"""How long it takes to get going, cold and warm, each measured in processes of their own.

Measured:
- `python -c pass`, `import fedpohcs` and `fedpohcs --help`: wall clock of the whole process, in turns;
- from the start of the process to the end of round 1 of the default preset, with an empty cache of compiled programs
  (XLA's and Numba's) and then with the one just filled; in turns, every pair in fresh folders;
- the share of that which is imports, and which is tracing and compiling.

Compile time: round 0 and round 1 are run three times in the same process, from scratch and with the same seed, so that
the same work is done each time and only the first has to trace, compile or load programs. The compile time of a phase
is its seconds in the first run minus the median of the others; it is summed over the warm-up of the filters, evaluate
(twice), measure, select, train and aggregate. Imports are counted apart.

Goals: import < 0.3 s; help < 0.7 s; compile time < 30 s cold and < 5 s warm.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
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

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import fedpohcs": ["-c", "import fedpohcs"],
    "fedpohcs --help": ["-m", "fedpohcs", "--help"],
}
COMMAND_GOALS = {"import fedpohcs": Goal("<", 0.3, "s"), "fedpohcs --help": Goal("<", 0.7, "s")}
COMPILE_GOALS = {"cold": Goal("<", 30, "s"), "warm": Goal("<", 5, "s")}
RUNS_IN_WORKER = 3
OTHER_CACHES = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--worker", type=float, help="run the rounds; the time at which the process was started")
    arguments = parser.parse_args()
    if arguments.worker is not None:
        print(json.dumps(time_first_round(arguments.worker, arguments.quick)))
        return
    facts = machine_facts()
    commands = time_commands(repetitions=2 if arguments.quick else 11)
    starts = time_starts(1 if arguments.quick else 3, arguments.quick)
    print_compile_times(starts)
    samples = {"commands": commands, "starts": starts}
    write_results(
        "startup", facts, [*command_figures(commands), *start_figures(starts)], samples, quick=arguments.quick
    )


def time_commands(repetitions: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for repetition in range(repetitions + 1):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            if repetition:  # the first turn reads the files from disk
                seconds[name].append(time.perf_counter() - start)
    return seconds


def time_starts(repetitions: int, quick: bool) -> dict[str, list[dict[str, Any]]]:
    starts: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            for name in starts:
                starts[name].append(start_worker(Path(folder), quick))
    return starts


def start_worker(cache: Path, quick: bool) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name not in OTHER_CACHES}
    environment |= {"XDG_CACHE_HOME": str(cache / "user"), "NUMBA_CACHE_DIR": str(cache / "numba")}
    flags = ["--quick"] if quick else []
    return run_worker(__file__, "--worker", repr(time.time()), *flags, environment=environment)


def time_first_round(process_start: float, quick: bool) -> dict[str, Any]:
    """Inside the worker: the moments of the first run, and the seconds by phase of every run."""
    config = replace(benchmark_config(quick=quick), rounds=1)
    start = time.perf_counter()
    import_everything(config.groups)
    imports = time.perf_counter() - start
    runs = [time_phases(config)]
    until_round_1 = time.time() - process_start
    cpu_until_round_1 = time.process_time()
    runs += [time_phases(config) for _ in range(RUNS_IN_WORKER - 1)]
    compiling = {phase: seconds - later_median(runs, phase) for phase, seconds in runs[0].items()}
    return {
        "until_round_1": until_round_1,
        "cpu_until_round_1": cpu_until_round_1,
        "imports": imports,
        "compile": sum(compiling.values()),
        "compile_by_phase": compiling,
        "seconds_by_run": runs,
    }


def import_everything(groups: int) -> None:
    from fedpohcs.execution.devices import configure_jax

    configure_jax(groups)
    import fedpohcs.execution.in_process
    import fedpohcs.server.round  # noqa: F401


def time_phases(config: Any) -> dict[str, float]:
    """Rounds 0 and 1 with a new executor."""
    from fedpohcs.runs.experiment import start_training

    start = time.perf_counter()
    rounds = start_training(config).remaining_rounds()
    untrained = next(rounds)
    first_evaluation = untrained.seconds["evaluate"]
    warm_up = time.perf_counter() - start - first_evaluation
    trained = next(rounds)
    return {"warm_up": warm_up, "evaluate_start": first_evaluation, **trained.seconds}


def later_median(runs: list[dict[str, float]], phase: str) -> float:
    return statistics.median(run[phase] for run in runs[1:])


def median_of(starts: list[dict[str, Any]], name: str) -> float:
    return statistics.median(start[name] for start in starts)


def print_compile_times(starts: Mapping[str, list[dict[str, Any]]]) -> None:
    phases = list(starts["cold"][0]["compile_by_phase"])
    rows = [
        (name, *(statistics.median(start["compile_by_phase"][phase] for start in group) for phase in phases))
        for name, group in starts.items()
    ]
    print_table("compile time by phase, seconds", ("cache", *phases), rows)


def command_figures(commands: Mapping[str, list[float]]) -> list[Figure]:
    return [
        Figure(name, statistics.median(seconds), "s", COMMAND_GOALS.get(name)) for name, seconds in commands.items()
    ]


def start_figures(starts: Mapping[str, list[dict[str, Any]]]) -> list[Figure]:
    figures = []
    for name, group in starts.items():
        share = statistics.median(100 * start["compile"] / start["until_round_1"] for start in group)
        figures += [
            Figure(f"{name}: process start to end of round 1", median_of(group, "until_round_1"), "s"),
            Figure(f"{name}: the same in processor time, all threads", median_of(group, "cpu_until_round_1"), "s"),
            Figure(f"{name}: of that imports", median_of(group, "imports"), "s"),
            Figure(f"{name}: of that compile time", median_of(group, "compile"), "s", COMPILE_GOALS[name]),
            Figure(f"{name}: compile time, share", share, "%"),
        ]
    return figures


if __name__ == "__main__":
    main()
