"""Seconds per phase of a federated round of Mountain Cars at paper size.

Measured: the clock of each phase (measure, select, train, aggregate, evaluate) and the whole round, from round 3 on,
when everything is compiled. Rounds 3 to 8 are also reported apart from the rest: an untrained policy plays every
episode to the time limit, so they are the heaviest.

How: the default preset with seed 0. First fedpohcs alone, 40 rounds; these are the headline numbers. Then the paper's
selectors and those that draw, in turns, one round each, 24 rounds, so that they can be compared whatever else the
machine does.

Goals, medians: a round of fedpohcs <= 0.18 s, of which measure and select <= 0.05 s and <= 20 %; measuring of the
gradient selectors <= a third of training.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from _common import (
    Figure,
    Goal,
    argument_parser,
    benchmark_config,
    machine_facts,
    percentile_90,
    print_table,
    write_results,
)

FIRST_ROUND, LAST_EARLY_ROUND = 3, 8
BY_GRADIENT = ("gradient-norm", "gradient-sampling")
COMPARED = ("fedavg", "power-of-choice", "fedpohcs", "potential-sampling", *BY_GRADIENT)
PHASES = ("measure", "select", "train", "aggregate", "evaluate", "total")
Timings = list[dict[str, float]]  # one entry per round, from round 1


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    facts = machine_facts()
    rounds, compared_rounds = (5, 4) if arguments.quick else (40, 24)
    alone = take_turns(["fedpohcs"], rounds, arguments.quick)["fedpohcs"]
    together = take_turns(COMPARED, compared_rounds, arguments.quick)
    print_phases("fedpohcs, seconds", periods(alone))
    print_phases("all selectors in turns, seconds", {name: steady(timings) for name, timings in together.items()})
    samples = {"fedpohcs_alone": alone, "selectors_in_turns": together}
    figures = [*headline(alone), *(gradient_share(name, together[name]) for name in BY_GRADIENT)]
    write_results("round", facts, figures, samples, quick=arguments.quick)


def take_turns(selectors: Sequence[str], rounds: int, quick: bool) -> dict[str, Timings]:
    """One run a selector, advanced side by side a round at a time."""
    runs = {name: timed_rounds(name, rounds, quick) for name in selectors}
    timings: dict[str, Timings] = {name: [] for name in selectors}
    for _ in range(rounds):
        for name, run in runs.items():
            timings[name].append(next(run))
    return timings


def timed_rounds(selector: str, rounds: int, quick: bool) -> Iterator[dict[str, float]]:
    from fedpohcs.runs.experiment import start_training

    run = start_training(replace(benchmark_config(selector, quick=quick), rounds=rounds)).remaining_rounds()
    next(run)  # round 0: evaluates the untrained policy
    while True:
        start = time.perf_counter()
        record = next(run)
        yield {**record.seconds, "total": time.perf_counter() - start}


def steady(timings: Timings) -> Timings:
    return timings[FIRST_ROUND - 1 :]


def periods(timings: Timings) -> dict[str, Timings]:
    last = len(timings)
    named = {
        f"rounds {FIRST_ROUND}-{last}": steady(timings),
        f"rounds {FIRST_ROUND}-{min(LAST_EARLY_ROUND, last)} (untrained)": timings[FIRST_ROUND - 1 : LAST_EARLY_ROUND],
        f"rounds {LAST_EARLY_ROUND + 1}-{last}": timings[LAST_EARLY_ROUND:],
    }
    return {name: part for name, part in named.items() if part}


def print_phases(title: str, groups: dict[str, Timings]) -> None:
    rows: list[tuple[Any, ...]] = []
    for name, timings in groups.items():
        by_phase = [[timing[phase] for timing in timings] for phase in PHASES]
        rows.append((name, "median", *map(statistics.median, by_phase)))
        rows.append(("", "90th percentile", *map(percentile_90, by_phase)))
    print_table(title, ("", "", *PHASES), rows)


def headline(timings: Timings) -> list[Figure]:
    figures = []
    for name, part in periods(timings).items():
        total = [timing["total"] for timing in part]
        asking = [timing["measure"] + timing["select"] for timing in part]
        share = [100 * a / t for a, t in zip(asking, total, strict=True)]
        figures += [
            Figure(f"{name}: total", statistics.median(total), "s", Goal("<=", 0.18, "s")),
            Figure(f"{name}: total, 90th percentile", percentile_90(total), "s"),
            Figure(f"{name}: measure + select", statistics.median(asking), "s", Goal("<=", 0.05, "s")),
            Figure(f"{name}: measure + select, 90th percentile", percentile_90(asking), "s"),
            Figure(f"{name}: measure + select, share", statistics.median(share), "%", Goal("<=", 20, "%")),
        ]
    return figures


def gradient_share(selector: str, timings: Timings) -> Figure:
    """Seconds of measuring as a share of those of training, round by round."""
    shares = [100 * timing["measure"] / timing["train"] for timing in steady(timings)]
    return Figure(f"{selector}: measure, share of train", statistics.median(shares), "%", Goal("<=", 100 / 3, "%"))


if __name__ == "__main__":
    main()
