"""How much the tables of candidates have in common, by the width of cells, and what that makes of the metric.

Delta_n compares tables entry by entry. Where candidates share few cells, tables are nearly orthogonal: then all of them
are as far from the mean as they are long, and Delta_n says no more than the learning potential.

Measured, from the same states and the same episodes for every width (of states and actions alike): steps modelled and
entries of a table; the cosine between a table and the mean of all (orthogonal tables of one length: 1 / sqrt(d)); the
rank correlation of learning potential and distance from the mean (1: they say the same); how many of those chosen are
also chosen on other episodes of the same policy; and the rank correlation of a random choice's mean Delta_n with its
return, as `choices.py` has measured that.

    python benchmarks/choices.py RUN... --name choices-hoppers
    python benchmarks/cells.py RUN... --name choices-hoppers
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from _common import RESULTS, argument_parser, print_table
from choices import OTHER_DRAWS, rank_correlation, record_episodes, restored

WIDTHS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
COLUMNS = ("width", "steps", "entries", "cosine", "potential and distance", "chosen again", "Delta and return")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="the run folders that choices.py was given")
    parser.add_argument("--name", default="choices", help="of the file that it has written to benchmarks/results")
    parser.add_argument("--episodes", type=int, help="that every candidate plays for its table; default: as in the run")
    arguments = parser.parse_args()
    states = {state["run"]: state for state in json.loads((RESULTS / f"{arguments.name}.json").read_text())["states"]}
    rows = []
    for run in arguments.runs:
        state = states["/".join(run.parts[-3:])]
        rows.append(by_width(run, state, arguments.episodes))
        print_table(f"{state['run']} after round {state['round']}", COLUMNS, rows[-1])
    if rows:
        print_table(f"mean of {len(rows)} states", COLUMNS, np.mean(rows, axis=0).tolist())


def by_width(run: Path, state: dict[str, Any], episodes: int | None) -> list[tuple[float, ...]]:
    """A row of the table for every width."""
    executor, server = restored(run)
    if episodes is not None:
        modelling = dataclasses.replace(executor.config.modelling, episodes=episodes)
        executor.config = dataclasses.replace(executor.config, modelling=modelling)
    candidates = np.array(state["candidates"])
    tables: list[list[Any]] = []  # [episodes][width]
    for number in (server.round, OTHER_DRAWS * 2):
        if executor.config.modelling.episodes is None:
            record_episodes(executor, server, first=number)
        executor.measure(server.params, number, candidates, frozenset({"weighted_advantage"}))
        tables.append([tables_of_width(executor, server, candidates, width) for width in WIDTHS])
    steps = np.mean([sum(x.valid.sum() for x in executor.history[client]) for client in candidates.tolist()])
    return [row_of(state, width, float(steps), *same) for width, *same in zip(WIDTHS, *tables, strict=True)]


def tables_of_width(executor: Any, server: Any, candidates: np.ndarray, width: float) -> Any:
    """The tables of the episodes that were played last, with cells of this width."""
    from fedpohcs.randomness import Purpose

    config = executor.config
    modelling = dataclasses.replace(config.modelling, observation_cell=width, action_cell=width)
    executor.config = dataclasses.replace(config, modelling=modelling)
    tables = executor._tables(executor._shared(server.params, Purpose.MODELLING, server.round), candidates)
    executor.config = config
    return tables


def row_of(state: dict[str, Any], width: float, steps: float, tables: Any, others: Any) -> tuple[float, ...]:
    from fedpohcs.heterogeneity import metric
    from fedpohcs.selection import top_k

    candidates, k = np.array(state["candidates"]), len(state["random"][0])
    weight = np.ones(len(candidates))
    stacked, again = (metric.stack_tables(some) for some in (tables, others))
    delta, potential = metric.selection_metric(stacked, weight), metric.learning_potential(stacked)
    mean = np.asarray(stacked.mean(axis=0)).ravel()
    cosine = stacked @ mean / np.maximum(potential * np.linalg.norm(mean), 1e-300)
    chosen, then = (top_k(candidates, values, k) for values in (delta, metric.selection_metric(again, weight)))
    score = dict(zip(candidates.tolist(), delta, strict=True))
    of_choices = [np.mean([score[client] for client in choice]) for choice in state["random"]]
    return (
        width,
        steps,
        float(np.mean([len(table.pair) for table in tables])),
        float(cosine.mean()),
        rank_correlation(potential, metric.heterogeneity(stacked, weight)),
        float(len(np.intersect1d(chosen, then))),
        rank_correlation(of_choices, np.mean(state["random_returns"], axis=1)),
    )


if __name__ == "__main__":
    main()
