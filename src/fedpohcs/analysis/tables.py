"""Results of runs over seeds: means with 95 % bootstrap intervals, times to thresholds, and paired differences.

A `Scope` holds the thresholds and rounds by which the runs of a level are measured. Thresholds come from the user, from
the world, or from the runs themselves; none is built in.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.analysis.communication import phase_one, traffic
from fedpohcs.analysis.gains import Gain, gain_figures, gains_over_local
from fedpohcs.analysis.groups import Group, by_level, is_sampled, missing_returns
from fedpohcs.analysis.references import reference_of, thresholds_of
from fedpohcs.analysis.statistics import (
    Interval,
    TimeToThreshold,
    first_reached,
    interquartile_mean,
    mean_interval,
    probability_above,
    sign_flip_test,
    summarise_times,
)
from fedpohcs.analysis.trust import trust_figures
from fedpohcs.core.errors import require_known
from fedpohcs.core.types import Vector
from fedpohcs.runs.loading import LAST_ROUNDS, Run

PAPER_ID_GROUPS = ((0, 9), (10, 19), (20, 38), (39, 49), (50, 59))
"""Ranges of ids of the paper's sixty clients. The paper counts them from 1."""
SETTLING_ROUNDS = 20
SHARES_OF_THE_WAY = (0.5, 0.75, 0.9)
FORMULA_STARTS = ("=", "+", "-", "@")
Window = tuple[int, int]

Clocks = Mapping[str, Callable[[Run], Vector]]
CLOCKS: Clocks = {
    "rounds": lambda run: run.rounds["round"].astype(float),
    "million training steps": lambda run: np.cumsum(run.rounds["train_steps"]) / 1e6,
    "minutes": lambda run: np.cumsum(run.timings["total"] - run.timings["evaluate"]) / 60,
    "megabytes": lambda run: np.cumsum(traffic(run).learning) / 1e6,
    "simulated hours": lambda run: (
        run.rounds.get("simulated_seconds", np.full(len(run.rounds["round"]), np.nan)) / 3600
    ),
}
"""Cumulative costs of rounds. Minutes and megabytes leave out evaluation, which only reports use."""


def clocks_of(groups: Iterable[Group]) -> Clocks:
    """The clocks of these runs: simulated time only where some run has it."""
    timed = any("simulated_seconds" in run.rounds for group in groups for run in group.runs)
    return {name: clock for name, clock in CLOCKS.items() if timed or name != "simulated hours"}


class Scope(NamedTuple):
    """The thresholds and ranges of rounds by which runs of one world and level are measured."""

    thresholds: tuple[float, ...]
    windows: tuple[Window, ...]
    last_round: int  # the last round that all runs have


class Difference(NamedTuple):
    """A statistic minus that of the reference, over shared seeds, and the p-value of no difference."""

    interval: Interval
    p_value: float
    above: Interval  # probability that a run is above one of the reference

    @property
    def estimate(self) -> float:
        """The mean difference."""
        return self.interval.estimate


class Table(NamedTuple):
    """Rows of text under a title; how it looks is up to the renderer."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    best: tuple[tuple[int, ...], ...] = ()  # by row, the columns with the best estimate; empty: none is marked
    label: str = ""  # a name that does not change with the number of runs


def make_scope(
    groups: Sequence[Group], thresholds: Sequence[float] | None = None, windows: Sequence[Window] = ()
) -> Scope:
    """The scope of groups that share a world and a level."""
    if thresholds is None:
        thresholds = thresholds_of(groups[0].world) or derived_thresholds(groups)
    last_round = min(len(run.rounds["round"]) for group in groups for run in group.runs) - 1
    return Scope(tuple(thresholds), tuple(windows), last_round)


def derived_thresholds(groups: Sequence[Group]) -> tuple[float, ...]:
    """Thresholds at 50, 75 and 90 % of the way from the first return to the last one of the best group, rounded."""
    start = float(np.mean([group.mean_returns[:, 0].mean() for group in groups]))
    best = max(float(group.mean_returns[:, -LAST_ROUNDS:].mean()) for group in groups)
    if best <= start:
        return ()
    digits = 1 - int(np.floor(np.log10(best - start)))  # two significant digits of the distance
    return tuple(dict.fromkeys(round(start + share * (best - start), digits) for share in SHARES_OF_THE_WAY))


def run_statistics(run: Run, scope: Scope) -> dict[str, float]:
    """The figures of one run by name. NaN: the run is too short."""
    returns = run.rounds["mean_return"]
    changes = np.diff(returns[SETTLING_ROUNDS:])
    area = (0, scope.last_round)
    return {
        f"mean return, last {LAST_ROUNDS} rounds": _last_mean(returns),
        f"mean return, rounds 0-{scope.last_round} (area under the curve)": _window_mean(returns, area),
        **{f"mean return, rounds {a}-{b}": _window_mean(returns, (a, b)) for a, b in scope.windows},
        **_client_statistics(run, scope),
        **_held_out_statistics(run),
        f"sd of round-to-round change after round {SETTLING_ROUNDS}": float(changes.std(ddof=1))
        if len(changes) > 1
        else np.nan,
        **_selection_shares(run),
    }


def _client_statistics(run: Run, scope: Scope) -> dict[str, float]:
    """How the final returns are distributed over clients."""
    final = np.sort(run.final_returns)
    if len(run.rounds["round"]) <= LAST_ROUNDS:
        final = np.full_like(final, np.nan)
    tenth = final[: -(-len(final) // 10)]
    statistics = {
        "interquartile mean over clients": interquartile_mean(final),
        "worst client": float(final[0]),
        "worst tenth of the clients": float(tenth.mean()),
        "sd over clients": float(final.std()),
    }
    if scope.thresholds:
        lowest = min(scope.thresholds)
        below = np.nan if np.isnan(final).any() else float((final < lowest).sum())
        statistics[f"number of clients below {lowest:g}"] = below
    return {f"{name}, last {LAST_ROUNDS} rounds": value for name, value in statistics.items()}


def _held_out_statistics(run: Run) -> dict[str, float]:
    """Returns of held-out clients; empty if there are none."""
    if not run.config.federation.held_out_clients:
        return {}
    final = run.final_held_out_returns if len(run.rounds["round"]) > LAST_ROUNDS else np.array(np.nan)
    return {f"mean return of held-out clients, last {LAST_ROUNDS} rounds": float(final.mean())}


def summarise(group: Group, scope: Scope) -> dict[str, Interval]:
    """Every statistic of a group over its seeds."""
    by_run = [run_statistics(run, scope) for run in group.runs]
    return {name: mean_interval([statistics[name] for statistics in by_run]) for name in by_run[0]}


def summarise_thresholds(group: Group, scope: Scope) -> dict[str, TimeToThreshold]:
    """When each threshold was reached, on every clock."""
    clocks = {name: [clock(run) for run in group.runs] for name, clock in clocks_of([group]).items()}
    returns = [run.rounds["mean_return"] for run in group.runs]
    return {
        f"{name} to mean return >= {threshold:g}": summarise_times(
            [first_reached(*pair, threshold) for pair in zip(returns, clock, strict=True)]
        )
        for threshold in scope.thresholds
        for name, clock in clocks.items()
    }


def paired_difference(group: Group, reference: Group, scope: Scope) -> dict[str, Difference]:
    """Every statistic minus the reference's with the same seed, over the seeds both have."""
    ours = {run.config.seed: run_statistics(run, scope) for run in group.runs}
    theirs = {run.config.seed: run_statistics(run, scope) for run in reference.runs}
    seeds = [seed for seed in ours if seed in theirs]
    names = [name for name in next(iter(ours.values())) if name in next(iter(theirs.values()))]
    found = {name: [(ours[seed][name], theirs[seed][name]) for seed in seeds] for name in names}
    return {name: _difference(*np.array(pairs).reshape(-1, 2).T) for name, pairs in found.items()}


def _difference(values: Vector, others: Vector) -> Difference:
    difference = values - others
    return Difference(mean_interval(difference), sign_flip_test(difference), probability_above(values, others))


def statistics_tables(
    groups: Sequence[Group],
    reference: str | None = None,
    thresholds: Sequence[float] | None = None,
    windows: Sequence[Window] = (),
) -> list[Table]:
    """For each level: every statistic by group, times to thresholds, and differences to the reference."""
    if reference is not None:
        require_known("reference", reference, {group.label for group in groups})
    tables = []
    for (world, level), members in by_level(groups).items():
        place, scope = f"{world}, {level} heterogeneity", make_scope(members, thresholds, windows)
        found, base = _level_tables(place, members, scope), _find_reference(members, reference)
        if base is None:
            note = f"No differences: {place} has no runs of {reference}."
            last = list(found)[-1]
            found[last] = found[last]._replace(note=f"{found[last].note} {note}".strip())
        elif len(members) > 1 and len(base.runs) > 1:
            found |= _reference_tables(place, members, base, scope)
        tables += [table._replace(label=f"{world}-{level}-{kind}") for kind, table in found.items()]
    return tables


def _level_tables(place: str, members: Sequence[Group], scope: Scope) -> dict[str, Table]:
    """The tables of one level by kind, without those that compare with a reference."""
    found = {"means": _means_table(f"{place}, {_count_seeds(members)}", members, scope)}
    if scope.thresholds:
        found["times"] = _thresholds_table(f"time to reach a mean return ({place})", members, scope)
    more = {
        "clients": reference_table(members),
        "gains": [gains_table(f"whom federating helps, compared with training alone ({place})", members)],
        "answers": _bad_replies_table(f"answers left out, by phase and rule ({place})", members),
        "costs": [_phase_one_table(f"costs of phase one ({place})", members)],
        "time": [_time_table(f"simulated time ({place})", members)],
        "trust": [_trust_table(f"what Byzantine clients gained and defences did ({place})", members)],
    }
    return found | {kind: table for kind, tables in more.items() for table in tables if table.rows}


def _reference_tables(place: str, members: Sequence[Group], base: Group, scope: Scope) -> dict[str, Table]:
    title = f"difference to {base.label}, paired by seed ({place})"
    return {
        "differences": _differences_table(title, members, base, scope),
        "above": _above_table(f"probability to be above {base.label} ({place})", members, base, scope),
    }


def choose_rows(tables: Sequence[Table], wanted: Sequence[str]) -> list[Table]:
    """The tables with the rows whose name holds one of the wanted texts, without tables that then are empty."""
    names = [row[0] for table in tables for row in table.rows]
    for text in wanted:
        require_known("rows", text, {text, *names} if any(text in name for name in names) else names)
    chosen = [
        [index for index, row in enumerate(table.rows) if any(text in row[0] for text in wanted)] for table in tables
    ]
    return [
        table._replace(
            rows=tuple(table.rows[index] for index in indices),
            best=tuple(table.best[index] for index in indices) if table.best else (),
        )
        for table, indices in zip(tables, chosen, strict=True)
        if indices
    ]


def reference_table(groups: Sequence[Group]) -> list[Table]:
    """Final return of each client beside the world's stored reference; no tables for worlds without one."""
    reference = reference_of(groups[0].runs[0].config)
    if reference is None:
        return []
    names = (*reference.clients, "mean")
    finals = [np.array([[*run.final_returns, run.final_returns.mean()] for run in group.runs]) for group in groups]
    known = [*reference.mean_return, reference.mean_return.mean()]
    rows = [
        (name, *(_show_interval(mean_interval(final[:, row]), 1) for final in finals), _decimal(known[row], 1))
        for row, name in enumerate(names)
    ]
    headers = ("", *(group.label for group in groups), reference.label)
    return [Table(f"mean return of each client, last {LAST_ROUNDS} rounds", headers, tuple(rows))]


def gains_table(title: str, groups: Sequence[Group]) -> Table:
    """How many clients a scheme serves better than training alone, and how much; no rows without such a reference."""
    gains = gains_over_local(groups)
    by_gain = [[gain_figures(one) for one in gain.by_seed] for gain in gains]
    summaries = [{name: mean_interval([one[name] for one in found]) for name in found[0]} for found in by_gain]
    note = (
        f"{_over_seeds(groups)}. A client's return over the last {LAST_ROUNDS} rounds, or after fine-tuning, "
        "minus that of the same client and seed that trained alone."
    )
    return _table(title, [gain.label for gain in gains], summaries, _show_interval, note)


def to_csv(
    groups: Sequence[Group],
    reference: str | None = None,
    thresholds: Sequence[float] | None = None,
    windows: Sequence[Window] = (),
) -> str:
    """Long form, one row for each group and statistic, at full precision. A `+` marks a value that is censored."""
    if reference is not None:
        require_known("reference", reference, {group.label for group in groups})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("world", "level", "group", "reference", "statistic", "summary", "estimate", "low_95", "high_95")
    writer.writerow((*names, "interquartile_mean", "p_value", "num_seeds", "values"))
    for (world, level), members in by_level(groups).items():
        base = _find_reference(members, reference)
        for group in members:
            for row in _csv_rows(group, base, make_scope(members, thresholds, windows)):
                writer.writerow((*map(_no_formula, (world, level, group.label)), *row))
        for gain in gains_over_local(members):
            for row in _gain_rows(gain):
                writer.writerow((*map(_no_formula, (world, level, gain.label)), *row))
    return text.getvalue()


def _no_formula(name: str) -> str:
    """A name from a run folder that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(FORMULA_STARTS) else name


def _csv_rows(group: Group, base: Group | None, scope: Scope) -> Iterator[tuple[object, ...]]:
    for name, (mean, low, high, values) in summarise(group, scope).items():
        row = ("", name, "mean", mean, low, high, interquartile_mean(values), "", len(values))
        yield (*row, " ".join(map(repr, values)))
    for name, (median, _, times, reached) in summarise_thresholds(group, scope).items():
        marked = [f"{time!r}{'' if hit else '+'}" for time, hit in zip(times, reached, strict=True)]
        yield ("", name, "kaplan-meier median", median, "", "", "", "", len(times), " ".join(marked))
    if base is not None and base is not group:
        label = _no_formula(base.label)
        for name, ((mean, low, high, values), p_value, above) in paired_difference(group, base, scope).items():
            row = (label, name, "mean difference", mean, low, high, interquartile_mean(values), p_value, len(values))
            yield (*row, " ".join(map(repr, values)))
            yield (label, name, "probability above", *above[:3], "", "", len(values), "")


def _gain_rows(gain: Gain) -> Iterator[tuple[object, ...]]:
    by_seed = [gain_figures(one) for one in gain.by_seed]
    for name in by_seed[0]:
        mean, low, high, values = mean_interval([one[name] for one in by_seed])
        row = ("training alone", name, "mean", mean, low, high, interquartile_mean(values), "", len(values))
        yield (*row, " ".join(map(repr, values)))


def id_groups(num_clients: int) -> list[tuple[int, int]]:
    """Ranges of client ids: the paper's for sixty clients, else up to five of equal size."""
    if num_clients == PAPER_ID_GROUPS[-1][1] + 1:
        return list(PAPER_ID_GROUPS)
    parts = np.array_split(np.arange(num_clients), min(5, num_clients))
    return [(int(part[0]), int(part[-1])) for part in parts]


def _selection_shares(run: Run) -> dict[str, float]:
    times = run.times_selected
    total = times.sum() or np.nan
    groups = id_groups(run.config.federation.num_clients)
    names = [f"clients {a}-{b}" if a < b else f"client {a}" for a, b in groups]
    shares = (float(times[a : b + 1].sum() / total) for a, b in groups)
    return {f"selection share of {name}": share for name, share in zip(names, shares, strict=True)}


def _last_mean(returns: Vector) -> float:
    return float(returns[-LAST_ROUNDS:].mean()) if len(returns) > LAST_ROUNDS else np.nan


def _window_mean(returns: Vector, window: Window) -> float:
    first, last = window
    return float(returns[first : last + 1].mean()) if len(returns) > last else np.nan


def _find_reference(groups: Sequence[Group], reference: str | None) -> Group | None:
    """The group with this label; without a label `fedavg` or, if there is none, the first group."""
    by_label = {group.label: group for group in groups}
    if reference is None:
        return by_label.get("fedavg", groups[0])
    return by_label.get(reference)


def _count_seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    return "1 seed" if counts == [1] else " or ".join(map(str, counts)) + " seeds"


def _over_seeds(groups: Sequence[Group]) -> str:
    """What a cell shows: one seed has no interval."""
    several = any(len(group.runs) > 1 for group in groups)
    return "Mean over seeds [95 % bootstrap interval]" if several else "One seed"


def _means_table(title: str, groups: Sequence[Group], scope: Scope) -> Table:
    note = f"{_over_seeds(groups)}; “-”: the run is too short."
    lengths = sorted({len(run.rounds["round"]) - 1 for group in groups for run in group.runs})
    if len(lengths) > 1:
        note += f" The runs have {lengths[0]} to {lengths[-1]} rounds."
    if is_sampled(groups):
        note += " Returns are those of random samples of the clients; rounds.csv has the interval of each mean."
    if missing := missing_returns(groups):
        note += f" Returns are those of the clients that answered: {missing} are missing."
    summaries = [summarise(group, scope) for group in groups]
    return _with_best(_table(title, groups, summaries, _show_interval, note), summaries)


def _thresholds_table(title: str, groups: Sequence[Group], scope: Scope) -> Table:
    several = any(len(group.runs) > 1 for group in groups)
    median = "Kaplan-Meier median over seeds, of which k of n reached it; runs that ended before are censored."
    note = f"{median if several else 'One seed.'} Minutes and megabytes are without evaluation; “-”: not recorded."
    summaries = [summarise_thresholds(group, scope) for group in groups]
    return _with_best(_table(title, groups, summaries, _show_time, note), summaries)


def _phase_one_table(title: str, groups: Sequence[Group]) -> Table:
    """Costs of phase one; no rows if no group has one."""
    note = f"{_over_seeds(groups)}; “-”: no client was asked. Down includes the policy."
    return _figures_table(title, groups, phase_one, note)


def _time_table(title: str, groups: Sequence[Group]) -> Table:
    """Simulated time of rounds; no rows for runs without it."""
    return _figures_table(title, groups, time_figures, f"{_over_seeds(groups)}; “-”: no time is simulated.")


def time_figures(run: Run) -> dict[str, float]:
    """Simulated time of a run, by name; empty without a model of time."""
    if "simulated_seconds" not in run.rounds:
        return {}
    num_rounds, roles = max(len(run.rounds["round"]) - 1, 1), run.clients["role"]
    delay = run.clients["value"][(roles == "arrived") & (run.clients["metric"] == "delay")]
    figures = {
        "simulated hours": float(run.rounds["simulated_seconds"][-1] / 3600),
        "simulated seconds per round": float(run.rounds["simulated_seconds"][-1] / num_rounds),
        "late updates per round": float(run.rounds["num_late"].sum() / num_rounds),
        "unavailable candidates per round": float((roles == "unavailable").sum() / num_rounds),
    }
    return figures | ({"delay of an update in rounds": float(delay.mean())} if len(delay) else {})


def _trust_table(title: str, groups: Sequence[Group]) -> Table:
    """What Byzantine clients gained and what defences did; no rows for runs without either."""
    note = f"{_over_seeds(groups)}; “-”: does not apply."
    return _figures_table(title, groups, trust_figures, note)


def _figures_table(title: str, groups: Sequence[Group], figures: Callable[[Run], dict[str, float]], note: str) -> Table:
    """A table of figures that some runs lack."""
    by_run = [[found for run in group.runs if (found := figures(run))] for group in groups]
    names = [list(dict.fromkeys(name for run in runs for name in run)) for runs in by_run]
    summaries = [
        {name: mean_interval([run[name] for run in runs if name in run]) for name in some}
        for runs, some in zip(by_run, names, strict=True)
    ]
    return _table(title, groups, summaries, _show_interval, note)


def _bad_replies_table(title: str, groups: Sequence[Group]) -> list[Table]:
    """Number of rejected replies by rule; no rows if there are none."""
    names = sorted({name for group in groups for run in group.runs for name in run.bad_replies})
    summaries = [
        {name: mean_interval([float(run.bad_replies.get(name, 0)) for run in group.runs]) for name in names}
        for group in groups
    ]
    note = f"Number in a run. {_over_seeds(groups)}. clients.csv names clients and arrays."
    return [_table(title, groups, summaries, _show_interval, note)] if names else []


def _differences_table(title: str, groups: Sequence[Group], base: Group, scope: Scope) -> Table:
    others = [group for group in groups if group is not base]
    summaries = [paired_difference(group, base, scope) for group in others]
    table = _table(title, others, summaries, _show_difference, "")
    shared = min(len(next(iter(summary.values())).interval.values) for summary in summaries)
    note = (
        "Mean [95 % bootstrap interval], p of the exact two-sided sign-flip test. p is not adjusted for the number of "
        f"comparisons; with {shared} shared seeds it cannot be below {_decimal(2 / 2**shared, 3)}."
    )
    return table._replace(rows=tuple(row for row in table.rows if any(cell != "-" for cell in row[1:])), note=note)


def _above_table(title: str, groups: Sequence[Group], base: Group, scope: Scope) -> Table:
    """The probability of improvement for returns."""
    others = [group for group in groups if group is not base]
    summaries = [
        {name: found.above for name, found in paired_difference(group, base, scope).items() if "selection" not in name}
        for group in others
    ]
    note = "Share of all pairs of runs, one of each method [95 % bootstrap interval]; a half means no difference."
    return _table(title, others, summaries, lambda interval, _: _show_interval(interval, 2), note)


def _table(
    title: str,
    groups: Sequence[Group | str],
    summaries: Sequence[dict[str, Any]],
    show: Callable[[Any, int], str],
    note: str,
) -> Table:
    names = list(dict.fromkeys(name for summary in summaries for name in summary))
    rows = []
    for name in names:
        cells = [summary.get(name) for summary in summaries]
        digits = _digits([cell.estimate for cell in cells if cell is not None])
        rows.append((name, *("-" if cell is None or np.isnan(cell.estimate) else show(cell, digits) for cell in cells)))
    labels = (group if isinstance(group, str) else group.label for group in groups)
    return Table(title, ("", *labels), tuple(rows), note)


def _with_best(table: Table, summaries: Sequence[dict[str, Any]]) -> Table:
    """The table with its best estimates marked, if there are several columns."""
    rows = [[summary[row[0]].estimate if row[0] in summary else np.nan for summary in summaries] for row in table.rows]
    best = [_best_columns(_direction(row[0]) * np.array(found)) for row, found in zip(table.rows, rows, strict=True)]
    return table._replace(best=tuple(best)) if len(summaries) > 1 else table


def _direction(name: str) -> int:
    """1: more is better, -1: less is better, 0: neither."""
    if name.startswith(("sd ", "number of clients below")) or " to mean return >= " in name:
        return -1
    return 1 if name.startswith(("mean return", "interquartile mean", "worst ")) else 0


def _best_columns(merit: Vector) -> tuple[int, ...]:
    """The columns with the highest merit, counted from 1 as the first has the names; none if no merit differs."""
    finite = merit[np.isfinite(merit)]
    if not len(finite) or (len(finite) == len(merit) and np.ptp(finite) == 0):
        return ()
    return tuple((np.flatnonzero(merit == finite.max()) + 1).tolist())


def _digits(estimates: Sequence[float]) -> int:
    """Decimals for the numbers of a row: none for integers, else about three significant digits."""
    finite = np.array([estimate for estimate in estimates if np.isfinite(estimate)])
    if not len(finite) or (finite == np.round(finite)).all():
        return 0
    largest = np.abs(finite).max()
    return 0 if largest >= 1000 else 1 if largest >= 10 else 2 if largest >= 0.1 else 4


def _show_interval(interval: Interval, digits: int) -> str:
    mean, low, high = (_decimal(number, digits) for number in interval[:3])
    return mean if np.isnan(interval.low) else f"{mean} [{low}, {high}]"


def _show_difference(difference: Difference, digits: int) -> str:
    shown = _show_interval(difference.interval, digits)
    return shown if np.isnan(difference.p_value) else f"{shown}, p {_decimal(difference.p_value, 3)}"


def _show_time(time: TimeToThreshold, digits: int) -> str:
    median = "not reached" if np.isinf(time.estimate) else _decimal(time.estimate, digits)
    return f"{median} ({time.num_reached} of {len(time.times)})"


def _decimal(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text
