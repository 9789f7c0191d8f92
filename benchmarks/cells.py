"""How much the tables of candidates have in common, by the width of cells, and what that makes of the metric.

Delta_n compares tables entry by entry. Where candidates share few cells, tables are nearly orthogonal: then all of them
are as far from the mean as they are long, and Delta_n says no more than the learning potential.

Measured, from the same states and the same episodes for every width (of states and actions alike): steps modelled and
entries of a table; the cosine between a table and the mean of all (orthogonal tables of one length: 1 / sqrt(d)); the
rank correlation of learning potential and distance from the mean (1: they say the same); how many of those chosen are
also chosen on other episodes of the same policy; and the rank correlation of a random choice's mean Delta_n with its
return, which is taken from `choices.py` if that has looked at the run, and measured otherwise.

    python benchmarks/choices.py RUN... --name choices-hoppers
    python benchmarks/cells.py RUN... --name choices-hoppers

Without a run it makes its own: 50 rounds of `fedavg` on Mountain Cars.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, argument_parser, print_table
from choices import (
    OTHER_DRAWS,
    Outlook,
    look_ahead,
    made_run,
    name_of,
    rank_correlation,
    record_episodes,
    restored,
    score_and_return,
)

WIDTHS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
COLUMNS = ("width", "steps", "entries", "cosine", "potential and distance", "chosen again", "Delta and return")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, each with a checkpoint at its end")
    parser.add_argument("--name", default="choices", help="of the file of choices.py in benchmarks/results")
    parser.add_argument("--episodes", type=int, help="that every candidate plays for its table; default: as in the run")
    arguments = parser.parse_args()
    known, rows = outlooks(RESULTS / f"{arguments.name}.json"), []
    for run in arguments.runs or [made_run(arguments.quick)]:
        outlook = known.get(name_of(run)) or look_ahead(run, 3 if arguments.quick else 50)
        rows.append(by_width(run, outlook, arguments.episodes))
        print_table(f"{outlook.run} after round {outlook.round}", COLUMNS, rows[-1])
    print_table(f"mean of {len(rows)} states", COLUMNS, np.mean(rows, axis=0).tolist())


def outlooks(path: Path) -> dict[str, Outlook]:
    """What `choices.py` has stored, by run."""
    if not path.exists():
        return {}
    return {state["run"]: Outlook(**state) for state in json.loads(path.read_text())["states"]}


def by_width(run: Path, outlook: Outlook, episodes: int | None) -> list[tuple[float, ...]]:
    """A row of the table for every width."""
    executor, server = restored(run)
    if episodes is not None:
        modelling = dataclasses.replace(executor.config.modelling, episodes=episodes)
        executor.config = dataclasses.replace(executor.config, modelling=modelling)
    candidates = np.array(outlook.candidates)
    tables: list[list[Any]] = []  # [episodes][width]
    for number, first in (
        (server.round, OTHER_DRAWS),
        (2 * OTHER_DRAWS, 2 * OTHER_DRAWS),
    ):  # first as `choices.py` does
        if executor.config.modelling.episodes is None:
            record_episodes(executor, server, first)
        executor.measure(server.params, number, candidates, frozenset({"weighted_advantage"}))
        tables.append([tables_of_width(executor, server, candidates, width) for width in WIDTHS])
    steps = np.mean([sum(x.valid.sum() for x in executor.history[client]) for client in candidates.tolist()])
    executor.close()
    return [row_of(outlook, width, float(steps), *same) for width, *same in zip(WIDTHS, *tables, strict=True)]


def tables_of_width(executor: Any, server: Any, candidates: np.ndarray, width: float) -> Any:
    """The tables of the episodes that were played last, with cells of this width."""
    from fedpohcs.execution.measuring import measure_clients

    config = executor.config
    modelling = dataclasses.replace(config.modelling, observation_cell=width, action_cell=width)
    executor.config = dataclasses.replace(config, modelling=modelling)
    tables = measure_clients(executor, server.params, server.round, candidates, frozenset({"weighted_advantage"}))
    executor.config = config
    return tables.column("weighted_advantage")


def row_of(outlook: Outlook, width: float, steps: float, tables: Any, others: Any) -> tuple[float, ...]:
    from fedpohcs.metrics import comparison as metric
    from fedpohcs.server.selection import top_k

    candidates, k = np.array(outlook.candidates), len(outlook.random[0])
    weight = np.ones(len(candidates))
    stacked, again = (metric.stack_tables(some) for some in (tables, others))
    delta, potential = metric.selection_metric(stacked, weight), metric.learning_potential(stacked)
    mean = np.asarray(stacked.mean(axis=0)).ravel()
    cosine = stacked @ mean / np.maximum(potential * np.linalg.norm(mean), 1e-300)
    chosen, then = (top_k(candidates, values, k) for values in (delta, metric.selection_metric(again, weight)))
    return (
        width,
        steps,
        float(np.mean([len(table.pair) for table in tables])),
        float(cosine.mean()),
        rank_correlation(potential, metric.heterogeneity(stacked, weight)),
        float(len(np.intersect1d(chosen, then))),
        score_and_return(outlook, delta),
    )


if __name__ == "__main__":
    main()
