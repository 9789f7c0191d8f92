"""Small-sample statistics over seeds: intervals, robust means, paired tests, times that may be censored.

All results are deterministic: few resamples are enumerated, many are drawn with a fixed seed.
"""

import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from fedpohcs.core.types import Vector

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000  # drawn if there are too many to enumerate
ENUMERATED_SEEDS = 5  # 5^5 resamples
ENUMERATED_FLIPS = 14  # 2^14 sign patterns


class Interval(NamedTuple):
    """An estimate over seeds and its 95 % confidence limits; NaN where they are not defined."""

    estimate: float
    low: float
    high: float
    values: tuple[float, ...]  # by seed


class TimeToThreshold(NamedTuple):
    """Time to reach a threshold, over seeds. A run that ended below the threshold is censored."""

    estimate: float  # Kaplan-Meier median; infinity: fewer than half of the seeds got there
    num_reached: int
    times: tuple[float, ...]  # by seed: when it was reached, or when the run ended without
    reached: tuple[bool, ...]


def mean_interval(values: ArrayLike) -> Interval:
    """Mean over seeds with its bootstrap interval. A single value has no interval; with a NaN all are NaN.

    Example:
        >>> [round(number, 2) for number in mean_interval([10.0, 12.0, 14.0, 15.0, 19.0])[:3]]
        [14.0, 10.4, 18.2]
    """
    values = np.asarray(values, float)
    as_tuple = tuple(values.tolist())
    if len(values) == 0 or not np.isfinite(values).all():
        return Interval(np.nan, np.nan, np.nan, as_tuple)
    low, high = bootstrap_limits(values)
    return Interval(float(values.mean()), float(low), float(high), as_tuple)


def bootstrap_limits(values: Vector) -> tuple[Any, Any]:
    """The 95 % limits of the mean over the first axis, by resampling seeds; NaN for a single seed.

    These are percentiles of the resampled means. With few seeds plain percentiles are too narrow by a factor of
    sqrt((n-1)/n) and ignore that the spread is itself estimated; the percentiles are therefore taken further out, so
    that the interval of normal data is as wide as Student's (Hesterberg, 2015, "What teachers should know about the
    bootstrap", Sec. 5.3). They cannot leave the range of the data, so with three seeds the limits are the extremes.
    """
    num_seeds = len(values)
    if num_seeds < 2:
        nothing = np.full(values.shape[1:], np.nan)
        return nothing, nothing
    tail = expanded_tail(num_seeds)
    low, high = np.quantile(resampled_means(values), [tail, 1 - tail], axis=0)
    return low, high


def resampled_means(values: Vector) -> NDArray[Any]:
    """Mean of every resample of the first axis, [resamples, ...]."""
    return np.tensordot(_resample_weights(len(values)), values, axes=1)


def expanded_tail(num_seeds: int) -> float:
    """Share of resampled means outside the interval at each end, for so many seeds."""
    quantile = stdtrit(num_seeds - 1, (1 - CONFIDENCE) / 2)
    return float(ndtr(np.sqrt(num_seeds / (num_seeds - 1)) * quantile))


@cache
def _resample_weights(num_seeds: int) -> NDArray[Any]:
    """Weight of each seed in each resample, [resamples, seeds]."""
    if num_seeds <= ENUMERATED_SEEDS:
        chosen = np.array(list(itertools.product(range(num_seeds), repeat=num_seeds)))
    else:
        chosen = np.random.default_rng(0).integers(num_seeds, size=(NUM_RESAMPLES, num_seeds))
    return (chosen[:, :, None] == np.arange(num_seeds)).mean(axis=1)


def interquartile_mean(values: ArrayLike) -> float:
    """The mean without the lowest and the highest quarter, each rounded down to whole values; NaN without values.

    Example:
        >>> interquartile_mean([1.0, 2.0, 3.0, 100.0])
        2.5
    """
    from scipy.stats import trim_mean  # loads slowly

    ordered = np.sort(np.asarray(values, float))
    return float(trim_mean(ordered, 0.25)) if len(ordered) else np.nan


def sign_flip_test(differences: ArrayLike) -> float:
    """Two-sided p-value of paired differences. Under the null hypothesis both signs of a difference are equally likely.

    Exact: all 2^n sign patterns for up to 14 pairs, so p is never below 2/2^n. A random sample of patterns for more.

    Example:
        >>> sign_flip_test([1.0, 2.0, 3.0, 4.0, 5.0])  # 2 of 32 patterns have a sum as large
        0.0625
    """
    differences = np.asarray(differences, float)
    count = len(differences)
    if count < 2 or not np.isfinite(differences).all():
        return np.nan
    from scipy.stats import permutation_test  # loads slowly

    exact = count <= ENUMERATED_FLIPS
    found = permutation_test(
        (differences,),
        lambda rows, axis: np.abs(rows.sum(axis)),
        vectorized=True,
        permutation_type="samples",
        alternative="greater",
        n_resamples=2**count if exact else NUM_RESAMPLES - 1,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def probability_above(values: ArrayLike, others: ArrayLike) -> Interval:
    """Probability that a run is above a run of another method: the share of all pairs of seeds, ties count half.

    It is the probability of improvement of Agarwal et al. (2021, "Deep reinforcement learning at the edge of the
    statistical precipice"). The interval resamples seeds; the two methods share their seeds, in the same order, so both
    get the same resample. Percentiles are those of `bootstrap_limits`.

    Example:
        >>> probability_above([3.0, 5.0], [4.0, 2.0]).estimate
        0.75
    """
    values, others = np.asarray(values, float), np.asarray(others, float)
    as_tuple = tuple(values.tolist())
    if not len(values) or not (np.isfinite(values).all() and np.isfinite(others).all()):
        return Interval(np.nan, np.nan, np.nan, as_tuple)
    above = (values[:, None] > others) + (values[:, None] == others) / 2
    estimate = float(above.mean())
    if len(values) < 2:
        return Interval(estimate, np.nan, np.nan, as_tuple)
    weights, tail = _resample_weights(len(values)), expanded_tail(len(values))
    low, high = np.quantile(((weights @ above) * weights).sum(axis=1), [tail, 1 - tail])
    return Interval(estimate, float(low), float(high), as_tuple)


def first_reached(values: NDArray[Any], clock: NDArray[Any], threshold: float) -> tuple[float, bool]:
    """First time of `clock` at which `values` are at least `threshold`; if there is none, the last time (censored).

    Example:
        >>> first_reached(np.array([1, 4, 9]), np.array([0, 10, 20]), threshold=4)
        (10.0, True)
        >>> first_reached(np.array([1, 4, 9]), np.array([0, 10, 20]), threshold=50)
        (20.0, False)
    """
    hits = np.flatnonzero(values >= threshold)
    return (float(clock[hits[0]]), True) if len(hits) else (float(clock[-1]), False)


def summarise_times(outcomes: Sequence[tuple[float, bool]]) -> TimeToThreshold:
    """Kaplan-Meier median of times, some of which are censored."""
    times = np.array([time for time, _ in outcomes], float)
    reached = np.array([hit for _, hit in outcomes], bool)
    median = np.nan if np.isnan(times).any() else kaplan_meier_median(times, reached)
    return TimeToThreshold(median, int(reached.sum()), tuple(times.tolist()), tuple(reached.tolist()))


def kaplan_meier_median(times: Vector, reached: NDArray[np.bool_]) -> float:
    """First time by which half have reached the threshold, by the Kaplan-Meier estimate; infinity if there is none.

    Example:
        >>> kaplan_meier_median(np.array([3.0, 5.0, 8.0, 8.0]), reached=np.array([True, True, False, False]))
        5.0
    """
    from scipy.stats import CensoredData, ecdf  # loads slowly

    if not reached.any():
        return np.inf
    surviving = ecdf(CensoredData(uncensored=times[reached], right=times[~reached])).sf
    halved = (surviving.probabilities <= 0.5 + 1e-12) & np.isin(surviving.quantiles, times[reached])
    return float(surviving.quantiles[halved][0]) if halved.any() else np.inf
