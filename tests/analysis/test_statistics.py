"""Each statistic beside an independent implementation: SciPy's, or the definition itself where SciPy is used."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedpohcs.analysis.statistics import (
    bootstrap_limits,
    expanded_tail,
    first_reached,
    interquartile_mean,
    kaplan_meier_median,
    mean_interval,
    probability_above,
    sign_flip_test,
    summarise_times,
)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("num_seeds", [4, 5])
def test_enumerated_bootstrap_is_what_scipys_random_one_tends_to(num_seeds: int) -> None:
    values = normal(num_seeds, num_seeds)
    level = 1 - 2 * expanded_tail(num_seeds)
    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=200_000, confidence_level=level, method="percentile", rng=1
    ).confidence_interval
    np.testing.assert_allclose(bootstrap_limits(values), drawn, atol=0.02 * np.ptp(values))


def test_drawn_bootstrap_agrees_with_scipys() -> None:
    values = normal(0, 12)
    level = 1 - 2 * expanded_tail(12)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=50_000, confidence_level=level, method="percentile", rng=1)
    np.testing.assert_allclose(bootstrap_limits(values), theirs.confidence_interval, atol=0.03)


def test_bootstrap_treats_columns_alone() -> None:
    table = normal(1, 5, 3)
    low, high = bootstrap_limits(table)
    assert low.shape == high.shape == (3,)
    np.testing.assert_allclose((low[1], high[1]), bootstrap_limits(table[:, 1]))


@pytest.mark.parametrize(("num_seeds", "at_least"), [(5, 0.90), (10, 0.92)])
def test_bootstrap_of_few_seeds_covers_the_mean_nearly_as_often_as_it_says(num_seeds: int, at_least: float) -> None:
    low, high = bootstrap_limits(normal(2, num_seeds, 2000))
    assert at_least < np.mean((low <= 0) & (high >= 0)) < 0.97


def test_many_seeds_leave_the_usual_tails() -> None:
    assert expanded_tail(10_000) == pytest.approx(0.025, abs=1e-4)


def test_the_tail_of_five_seeds_is_that_of_a_wider_students_quantile() -> None:
    """Student's 2.5 % quantile with 4 degrees of freedom is -2.7764, and sqrt(5 / 4) times that is -3.1042."""
    assert expanded_tail(5) == pytest.approx(stats.norm.cdf(-3.1042), rel=1e-3)


def test_the_estimate_is_the_mean_between_its_limits() -> None:
    interval = mean_interval([1.0, 2.0, 6.0])
    assert interval.estimate == 3
    assert interval.low < 3 < interval.high
    assert interval.values == (1.0, 2.0, 6.0)


def test_limits_of_three_seeds_are_the_extremes_and_of_one_nothing() -> None:
    np.testing.assert_allclose(bootstrap_limits(np.array([3.0, 1.0, 2.0])), (1, 3), atol=1e-5)
    assert np.isnan(bootstrap_limits(np.array([1.0]))).all()
    assert mean_interval([7.0]).estimate == 7


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [1.0, np.inf]])
def test_nothing_and_not_a_number_have_no_mean(values: list[float]) -> None:
    assert np.isnan(mean_interval(values)[:3]).all()


@pytest.mark.parametrize("count", [3, 4, 5, 8, 60])
def test_interquartile_mean_leaves_whole_quarters_out(count: int) -> None:
    values = normal(count, count)
    kept = np.sort(values)[count // 4 : count - count // 4]
    assert interquartile_mean(values) == kept.mean()  # to the last digit: stored tables have all digits
    assert np.isnan(interquartile_mean([]))


@pytest.mark.parametrize("count", [2, 5, 10])
def test_sign_flip_test_counts_the_patterns_whose_sum_is_as_far_from_zero(count: int) -> None:
    differences = normal(count, count) + 0.4
    sums = [np.dot(signs, differences) for signs in itertools.product((1, -1), repeat=count)]
    as_far = [abs(one) >= abs(differences.sum()) - 1e-9 for one in sums]
    assert sign_flip_test(differences) == np.mean(as_far)


@pytest.mark.parametrize("count", [2, 5, 9])
def test_the_probability_to_be_above_is_mann_whitneys_statistic(count: int) -> None:
    values, others = np.random.default_rng(count).integers(0, 6, size=(2, count)).astype(float)  # with ties
    theirs = stats.mannwhitneyu(values, others).statistic / count**2
    found = probability_above(values, others)
    assert found.estimate == pytest.approx(theirs)
    assert 0 <= found.low <= found.estimate <= found.high <= 1


def test_resamples_of_the_probability_to_be_above_keep_seeds_together() -> None:
    """Where seeds matter much and methods little, all pairs of a resample of one seed have the same winner."""
    seeds = np.array([0.0, 100.0])
    found = probability_above(seeds + 1, seeds)
    assert found[:3] == (0.75, 0.75, 1.0)  # of the four resamples two have one seed only, and there it is 1


def test_one_seed_has_a_probability_to_be_above_without_limits_and_nan_has_none() -> None:
    assert probability_above([2.0], [1.0]).estimate == 1
    assert np.isnan(probability_above([2.0], [1.0]).low)
    assert np.isnan(probability_above([2.0, np.nan], [1.0, 0.0]).estimate)
    assert np.isnan(probability_above([], []).estimate)


def test_sign_flip_test_of_many_pairs_is_close_to_the_t_test() -> None:
    differences = normal(0, 40) + 0.3
    assert sign_flip_test(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.01)


def test_equal_signs_give_the_smallest_p_there_is() -> None:
    assert sign_flip_test([0.1, 0.2, 0.3]) == 2 / 2**3  # and sums in another order must not break the tie
    assert sign_flip_test(np.zeros(4)) == 1
    assert np.isnan(sign_flip_test([1.0]))
    assert np.isnan(sign_flip_test([1.0, np.nan]))


@pytest.mark.parametrize("seed", range(20))
def test_median_of_censored_times_is_where_kaplan_and_meiers_product_falls_to_a_half(seed: int) -> None:
    generator = np.random.default_rng(seed)
    times, reached = generator.integers(1, 12, size=9).astype(float), generator.random(9) < 0.6
    surviving, median = 1.0, np.inf
    for time in np.unique(times[reached]):
        surviving *= 1 - np.sum(reached & (times == time)) / np.sum(times >= time)
        median = min(median, time) if surviving <= 0.5 + 1e-12 else median
    assert kaplan_meier_median(times, reached) == median
    assert kaplan_meier_median(times, np.zeros(9, bool)) == np.inf


def test_threshold_is_reached_at_the_first_round_or_censored_at_the_last() -> None:
    returns, clock = np.array([0.0, 3.0, 2.0, 5.0]), np.array([0.0, 10.0, 20.0, 30.0])
    assert first_reached(returns, clock, 2) == (10, True)
    assert first_reached(returns, clock, 3) == (10, True)
    assert first_reached(returns, clock, 6) == (30, False)


def test_median_is_not_reached_if_fewer_than_half_get_there() -> None:
    reached = summarise_times([(5, True), (9, False), (9, False)])
    assert reached.estimate == np.inf
    assert reached.num_reached == 1
    assert np.isnan(summarise_times([(5, True), (np.nan, True)]).estimate)


def test_a_run_cut_early_counts_as_not_knowing_rather_than_as_failing() -> None:
    assert summarise_times([(2, False), (4, True), (6, True), (8, False)]).estimate == 6
