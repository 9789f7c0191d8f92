"""Sentences that sum up the runs of one world and level: which scheme ends highest, by how much, and how sure that is.

They claim no more than the seeds can show. One seed shows the order of its runs and nothing about the schemes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedpohcs.analysis.groups import Group, by_level
from fedpohcs.analysis.statistics import (
    Interval,
    TimeToThreshold,
    first_reached,
    mean_interval,
    sign_flip_test,
    summarise_times,
)
from fedpohcs.analysis.tables import make_scope
from fedpohcs.runs.loading import LAST_ROUNDS, Run

SIGNIFICANT = 0.05
REFERENCE = "fedavg"


class Summary(NamedTuple):
    """What the runs of one world and level show."""

    best: str  # label of the scheme that ends highest
    seed: int  # of its best run
    sentences: tuple[str, ...]


def summarise_level(groups: Sequence[Group], thresholds: Sequence[float] | None = None) -> Summary:
    """Sum up groups that share a world and a level."""
    scope = make_scope(groups, thresholds)
    finals = [_Final(group, scope.last_round) for group in groups]
    ranked = sorted(finals, key=lambda final: -np.nan_to_num(final.interval.estimate, nan=-np.inf))
    best = ranked[0]
    sentences = [*_state(groups, scope.last_round)]
    if scope.last_round and np.isfinite(best.interval.estimate):
        sentences += [*_lead(ranked), *_speed(groups, scope.thresholds, scope.last_round), *_weakest(ranked)]
    return Summary(best.group.label, best.best_seed, _each_once(sentences))


def _each_once(sentences: Sequence[str]) -> tuple[str, ...]:
    """Sentences without repetition: a verdict on several comparisons comes after the last of them.

    Example:
        >>> _each_once(["A leads B.", "Hardly sure.", "A leads C.", "Hardly sure."])
        ('A leads B.', 'A leads C.', 'Hardly sure.')
    """
    return tuple(reversed(dict.fromkeys(reversed(sentences))))


def summary_lines(groups: Sequence[Group]) -> Iterator[str]:
    """The sentences of every world and level, a paragraph for each."""
    for (place, level), members in by_level(groups).items():
        yield f"{place}, {level}: {' '.join(summarise_level(members).sentences)}"


class _Final:
    """The mean return of a group over the last rounds that all groups have."""

    def __init__(self, group: Group, last_round: int) -> None:
        self.group = group
        self.window = max(last_round - LAST_ROUNDS + 1, min(last_round, 1)), last_round
        self.by_seed = {run.config.seed: self._mean(run) for run in group.runs}
        self.interval = mean_interval(list(self.by_seed.values()))

    def _mean(self, run: Run) -> float:
        first, last = self.window
        return float(run.rounds["mean_return"][first : last + 1].mean())

    @property
    def best_seed(self) -> int:
        return max(self.by_seed, key=lambda seed: np.nan_to_num(self.by_seed[seed], nan=-np.inf))

    @property
    def rounds(self) -> str:
        return f"round {self.window[1]}" if self.window[0] == self.window[1] else "rounds {}-{}".format(*self.window)


def _state(groups: Sequence[Group], last_round: int) -> Iterator[str]:
    """What is missing: rounds that are not done yet, or that some runs have and others do not."""
    runs = [run for group in groups for run in group.runs]
    if last_round == 0:
        yield "Not every run has trained a round yet, so there is nothing to compare."
        return
    lengths = {len(run.rounds["round"]) - 1 for run in runs}
    if len(lengths) > 1:
        yield f"The runs have {min(lengths)} to {max(lengths)} rounds; rounds up to {last_round} are compared."
    elif not all(run.complete for run in runs):
        yield f"The runs have done {last_round} of {max(run.config.rounds for run in runs)} rounds."


def _lead(ranked: Sequence[_Final]) -> Iterator[str]:
    best, *others = ranked
    mean = _show_interval(best.interval)
    over = f"over {best.rounds}" if "-" in best.rounds else f"in {best.rounds}"
    seeds = _count(len(best.by_seed), "seed")
    if not others:
        start = mean_interval(best.group.mean_returns[:, 0]).estimate
        verb = "rises" if best.interval.estimate > start else "does not rise: it goes"
        yield f"The mean return of {best.group.label} {verb} from {_show(start)} to {mean} {over} ({seeds})."
        if len(best.by_seed) == 1:
            yield "This is one run; other seeds give other numbers."
        return
    yield f"{best.group.label} ends highest, with a mean return of {mean} {over} ({seeds})."
    yield from _compare(best, others[0], "the second")
    reference = next((other for other in others[1:] if other.group.label == REFERENCE), None)
    if reference is not None:
        yield from _compare(best, reference, "random selection")


def _compare(best: _Final, other: _Final, role: str) -> Iterator[str]:
    """The difference of two groups over the seeds that both have, and how sure it is."""
    shared = [seed for seed in best.by_seed if seed in other.by_seed]
    named = f"{other.group.label} ({role})"
    if not shared or not np.isfinite(other.interval.estimate):
        yield f"It shares no evaluated seed with {named}, so the two cannot be compared."
        return
    differences = np.array([best.by_seed[seed] - other.by_seed[seed] for seed in shared])
    interval, p_value = mean_interval(differences), sign_flip_test(differences)
    if len(shared) == 1:
        yield f"That is {_show(interval.estimate)} above {named}, on one seed."
        yield "One seed cannot show which scheme is better: another seed may reverse the order."
        return
    yield (
        f"Paired by seed, that is {_show_interval(interval)} above {named}: ahead in {(differences > 0).sum()} of "
        f"{len(shared)} seeds, sign-flip p = {p_value:.2g}."
    )
    yield _verdict(interval, p_value, len(shared))


def _verdict(interval: Interval, p_value: float, num_seeds: int) -> str:
    """How sure a difference is, in words."""
    least = 2 / 2**num_seeds
    if interval.low <= 0 <= interval.high:
        return "The interval contains 0: these seeds do not tell the two apart."
    if p_value <= SIGNIFICANT:
        return "A lead like this is unlikely to be chance; p is not adjusted for the number of comparisons."
    if least > SIGNIFICANT:
        return f"That suggests a lead and does not prove it: with {num_seeds} seeds p cannot be below {least:.2g}."
    return "That suggests a lead and does not prove it."


def _speed(groups: Sequence[Group], thresholds: Sequence[float], last_round: int) -> Iterator[str]:
    """Which scheme reaches the highest threshold that is reached at all, and when."""
    for threshold in sorted(thresholds, reverse=True):
        times = {group.label: _rounds_to(group, threshold, last_round) for group in groups}
        fastest = min(time.estimate for time in times.values())
        if np.isfinite(fastest):
            break
    else:
        return
    if fastest == 0:
        return  # no scheme had to learn for it
    first = [label for label, time in times.items() if time.estimate == fastest]
    rest = [f"{label}: {_show_time(time)}" for label, time in times.items() if label not in first]
    median = "median " if any(len(time.times) > 1 for time in times.values()) else ""
    one = len(first) == 1
    if rest:
        named = f"{_join(first)} {'is' if one else 'are'} the first to reach a mean return of {threshold:g},"
        yield f"{named} in {median}round {fastest:g} ({'; '.join(rest)})."
    else:
        reach = "reaches" if one else "reach"
        yield f"{_join(first)} {reach} a mean return of {threshold:g} in {median}round {fastest:g}."


def _rounds_to(group: Group, threshold: float, last_round: int) -> TimeToThreshold:
    rounds = slice(0, last_round + 1)
    return summarise_times(
        [first_reached(run.rounds["mean_return"][rounds], run.rounds["round"][rounds], threshold) for run in group.runs]
    )


def _weakest(ranked: Sequence[_Final]) -> Iterator[str]:
    """The clients that the policy serves worst; a mean hides them."""
    tenths = {final.group.label: _over_seeds(final.group, _worst_tenth) for final in ranked}
    best = ranked[0].group.label
    if not np.isfinite(tenths[best]):
        return
    highest = max(tenths, key=lambda label: np.nan_to_num(tenths[label], nan=-np.inf))
    other = "" if highest == best or len(ranked) == 1 else f"; the highest is {_show(tenths[highest])}, of {highest}"
    yield f"On the worst tenth of the clients {best} returns {_show(tenths[best])}{other}."


def _over_seeds(group: Group, statistic: Callable[[Run], float]) -> float:
    return float(np.mean([statistic(run) for run in group.runs]))


def _worst_tenth(run: Run) -> float:
    final = np.sort(run.final_returns[np.isfinite(run.final_returns)])
    return float(final[: -(-len(final) // 10)].mean()) if len(final) else np.nan


def _show_time(time: TimeToThreshold) -> str:
    return "not at all" if np.isinf(time.estimate) else f"{time.estimate:g}"


def _show_interval(interval: Interval) -> str:
    if np.isnan(interval.low):
        return _show(interval.estimate)
    return f"{_show(interval.estimate)} [{_show(interval.low)}, {_show(interval.high)}]"


def _show(value: float) -> str:
    """About three significant digits; two of small numbers, so that a small difference is not shown as 0.

    Example:
        >>> [_show(value) for value in (1234.5, 12.34, 1.234, 0.0523, 0.00071, 1e-9)]
        ['1234', '12.3', '1.23', '0.052', '0.00071', '0.00']
    """
    if 1e-4 <= abs(value) < 0.1:
        return f"{value:.2g}"
    text = f"{value:.{0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2}f}"
    return text.lstrip("-") if float(text) == 0 else text


def _join(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    Example:
        >>> _join(["a"]), _join(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
