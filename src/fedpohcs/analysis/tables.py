"""What runs reached, over seeds: means with 95 % Student-t intervals, and paired differences to a reference."""

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table as RichTable
from scipy.special import stdtrit

from fedpohcs.analysis.groups import Group, by_level
from fedpohcs.analysis.references import reference_of
from fedpohcs.errors import require_known
from fedpohcs.storage import LAST_ROUNDS, Run
from fedpohcs.types import Vector

THRESHOLDS = (0, 25, 50, 60)
PAPER_ID_GROUPS = ((1, 10), (11, 20), (21, 39), (40, 50), (51, 60))
"""Client ids as the paper counts them, from 1; they apply to its sixty clients."""


class Interval(NamedTuple):
    """A mean over seeds and half the width of its 95 % confidence interval; NaN where it is not defined."""

    mean: float
    half_width: float
    values: tuple[float, ...]


class Table(NamedTuple):
    """Rows of text under a title; how it looks is up to the renderer."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def run_statistics(run: Run) -> dict[str, float]:
    """The figures of one run by name. NaN: the run is too short. Infinity: never reached."""
    returns = run.rounds["mean_return"]
    changes = np.diff(returns[20:])
    return {
        "mean return, rounds 0-50": _window_mean(returns, 0, 50),
        "mean return, rounds 0-100": _window_mean(returns, 0, 100),
        "mean return, rounds 91-100": _window_mean(returns, 91, 100),
        f"mean return, last {LAST_ROUNDS} rounds": float(returns[-LAST_ROUNDS:].mean())
        if len(returns) > LAST_ROUNDS
        else np.nan,
        **{f"first round with mean return >= {level}": _first_round(returns, level) for level in THRESHOLDS},
        "sd of round-to-round change after round 20": float(changes.std(ddof=1)) if len(changes) > 1 else np.nan,
        f"clients below 0, last {LAST_ROUNDS} rounds": float((run.final_returns < 0).sum())
        if len(returns) > LAST_ROUNDS
        else np.nan,
        **_selection_shares(run),
    }


def confidence_interval(values: ArrayLike) -> Interval:
    """Mean and half-width of the 95 % Student-t interval; the half-width of a single value is NaN."""
    values = np.asarray(values, float)
    if len(values) == 0 or not np.isfinite(values).all():
        mean = np.inf if np.isinf(values).any() and not np.isnan(values).any() else np.nan
        return Interval(mean, np.nan, tuple(values.tolist()))
    half_width = np.nan
    if len(values) > 1:
        half_width = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(float(values.mean()), float(half_width), tuple(values.tolist()))


def summarise(group: Group) -> dict[str, Interval]:
    """Every statistic of a group over its seeds."""
    by_run = [run_statistics(run) for run in group.runs]
    return {name: confidence_interval([statistics[name] for statistics in by_run]) for name in by_run[0]}


def paired_difference(group: Group, reference: Group) -> dict[str, Interval]:
    """Every statistic minus the reference's with the same seed, over the seeds both have."""
    ours = {run.config.seed: run_statistics(run) for run in group.runs}
    theirs = {run.config.seed: run_statistics(run) for run in reference.runs}
    seeds = [seed for seed in ours if seed in theirs]
    names = [name for name in next(iter(ours.values())) if name in next(iter(theirs.values()))]
    return {name: confidence_interval([_minus(ours[s][name], theirs[s][name]) for s in seeds]) for name in names}


def statistics_tables(groups: Sequence[Group], reference: str | None = None) -> list[Table]:
    """For each level: every statistic by group; with several seeds, then the differences to the reference."""
    tables = []
    for (world, level), members in by_level(groups).items():
        title = f"{world}, {level} heterogeneity, {_count_seeds(members)}"
        tables.append(_table(title, members, [summarise(group) for group in members]))
        tables += reference_table(members)
        base = _find_reference(members, reference)
        others = [group for group in members if group is not base]
        if others and len(base.runs) > 1:
            differences = [paired_difference(group, base) for group in others]
            title = f"difference to {base.label}, paired by seed ({world}, {level})"
            tables.append(_without_empty_rows(_table(title, others, differences)))
    return tables


def reference_table(groups: Sequence[Group]) -> list[Table]:
    """What each client returned at the end, beside the world's stored reference; nothing where there is none."""
    reference = reference_of(groups[0].runs[0].config)
    if reference is None:
        return []
    names = (*reference.clients, "mean")
    finals = [np.array([[*run.final_returns, run.final_returns.mean()] for run in group.runs]) for group in groups]
    known = [*reference.mean_return, reference.mean_return.mean()]
    rows = [
        (name, *(_show(name, confidence_interval(final[:, row])) for final in finals), _decimal(known[row], 1))
        for row, name in enumerate(names)
    ]
    headers = ("", *(group.label for group in groups), reference.label)
    return [Table(f"mean return of each client, last {LAST_ROUNDS} rounds", headers, tuple(rows))]


def timings_table(groups: Sequence[Group]) -> Table:
    """Median seconds of each phase of a round, over all rounds of all seeds; round 0 only evaluates."""
    phases = [name for name in groups[0].runs[0].timings if name != "round"]
    rows = []
    for group in groups:
        seconds = [np.concatenate([run.timings[phase][1:] for run in group.runs]) for phase in phases]
        rows.append(
            (f"{group.label} ({group.level})", *(_decimal(np.median(s), 3) if len(s) else "-" for s in seconds))
        )
    return Table("median seconds a round", ("", *phases), tuple(rows))


def print_tables(tables: Sequence[Table]) -> None:
    """Print to the terminal, as wide as it is, or wide enough where there is none."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    for table in tables:
        console.print(to_rich(table), "")


def to_rich(table: Table) -> RichTable:
    """For the terminal."""
    rendered = RichTable(title=table.title, title_justify="left")
    for index, header in enumerate(table.headers):
        rendered.add_column(header, justify="right" if index else "left", overflow="fold")
    for row in table.rows:
        rendered.add_row(*row)
    return rendered


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub-flavoured Markdown: a heading and a table each."""
    blocks = []
    for table in tables:
        lines = [table.headers, ("---", *("---:" for _ in table.headers[1:])), *table.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        blocks.append(f"### {table.title}\n\n{body}\n")
    return "\n".join(blocks)


def to_csv(groups: Sequence[Group]) -> str:
    """Long form, one row for each group and statistic, at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("world", "level", "group", "statistic", "num_seeds", "mean", "half_width_95", "values"))
    for group in groups:
        for name, (mean, half_width, values) in summarise(group).items():
            row = (group.world, group.level, group.label, name, len(values), mean, half_width)
            writer.writerow((*row, " ".join(map(repr, values))))
    return text.getvalue()


def id_groups(num_clients: int) -> list[tuple[int, int]]:
    """Ranges of client ids, counted from 1: the paper's for sixty clients, else up to five of equal size."""
    if num_clients == PAPER_ID_GROUPS[-1][1]:
        return list(PAPER_ID_GROUPS)
    parts = np.array_split(np.arange(1, num_clients + 1), min(5, num_clients))
    return [(int(part[0]), int(part[-1])) for part in parts]


def _selection_shares(run: Run) -> dict[str, float]:
    times = run.times_selected
    total = times.sum() or np.nan
    groups = id_groups(run.config.federation.num_clients)
    return {f"selection share of clients {a}-{b}": float(times[a - 1 : b].sum() / total) for a, b in groups}


def _window_mean(returns: Vector, first: int, last: int) -> float:
    return float(returns[first : last + 1].mean()) if len(returns) > last else np.nan


def _first_round(returns: Vector, threshold: float) -> float:
    reached = np.flatnonzero(returns >= threshold)
    return float(reached[0]) if len(reached) else np.inf


def _minus(one: float, other: float) -> float:
    return one - other if np.isfinite(one) and np.isfinite(other) else np.nan


def _find_reference(groups: Sequence[Group], reference: str | None) -> Group:
    labels = [group.label for group in groups]
    if reference is None:
        reference = "fedavg" if "fedavg" in labels else labels[0]
    require_known("reference", reference, labels)
    return groups[labels.index(reference)]


def _count_seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    return "1 seed" if counts == [1] else " or ".join(map(str, counts)) + " seeds"


def _table(title: str, groups: Sequence[Group], summaries: Sequence[dict[str, Interval]]) -> Table:
    names = list(dict.fromkeys(name for summary in summaries for name in summary))
    rows = tuple((name, *(_show(name, summary.get(name)) for summary in summaries)) for name in names)
    return Table(title, ("", *(group.label for group in groups)), rows)


def _without_empty_rows(table: Table) -> Table:
    return table._replace(rows=tuple(row for row in table.rows if any(cell != "-" for cell in row[1:])))


def _show(name: str, interval: Interval | None) -> str:
    if interval is None or np.isnan(interval.mean) or not interval.values:
        return "-"
    if np.isinf(interval.mean):
        reached = sum(np.isfinite(interval.values))
        return f"in {reached} of {len(interval.values)}" if reached else "never"
    counted = len(interval.values) == 1 and name.startswith(("first round", "clients below"))
    digits = 2 if "share" in name else 0 if counted else 1
    shown = _decimal(interval.mean, digits)
    return shown if np.isnan(interval.half_width) else f"{shown} ± {_decimal(interval.half_width, digits)}"


def _decimal(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text
