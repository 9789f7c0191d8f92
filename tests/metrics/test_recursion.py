"""Visitation and policy evaluation on random sparse chains."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import random_array

from fedpohcs.metrics import recursion
from fedpohcs.metrics.recursion import evaluate_policy, visitation
from fedpohcs.metrics.sparse import SparseRows, SplitRows, follow_paths, split_rows


def rows_of(matrix) -> SparseRows:
    matrix = np.asarray(matrix, float)
    row, column = np.nonzero(matrix)
    begin = np.searchsorted(row, np.arange(len(matrix) + 1)).astype(np.int64)
    return SparseRows(begin, column.astype(np.uint32), matrix[row, column])


def random_chain(seed: int, states: int, *, kept: float = 1.0, degree: float = 3.0) -> np.ndarray:
    """Some rows lead nowhere; all others keep a share `kept` of their mass."""
    generator = np.random.default_rng(seed)
    density = min(1.0, degree / states)
    matrix = random_array((states, states), density=density, rng=generator, data_sampler=generator.uniform).toarray()
    total = matrix.sum(axis=1, keepdims=True)
    return kept * matrix / np.where(total > 0, total, 1)


def start_at_random(seed: int, states: int) -> np.ndarray:
    return np.random.default_rng(seed + 1).dirichlet(np.ones(states))


def dense_visitation(matrix, start, horizon):
    total, now = np.zeros(len(start)), start
    for _ in range(horizon):
        total += now
        now = now @ matrix
    return total / total.sum()


chains = st.builds(
    random_chain,
    seed=st.integers(0, 10_000),
    states=st.integers(1, 70),
    kept=st.sampled_from([0.3, 0.9, 0.999, 1.0]),
    degree=st.sampled_from([1.0, 3.0, 20.0]),
)


@settings(max_examples=60, deadline=None)
@given(matrix=chains, seed=st.integers(0, 100), horizon=st.sampled_from([1, 2, 7, 8, 9, 40, 1000, 1003]))
def test_visitation_sums_to_one_and_equals_the_dense_recursion(matrix, seed, horizon):
    start = start_at_random(seed, len(matrix))
    result = visitation(rows_of(matrix), start, horizon)
    assert abs(result.sum() - 1) < 1e-12
    assert (result >= 0).all()
    assert np.abs(result - dense_visitation(matrix, start, horizon)).sum() < 1e-6


@settings(max_examples=60, deadline=None)
@given(matrix=chains, seed=st.integers(0, 100), horizon=st.sampled_from([40, 300, 3000]))
def test_early_stop_equals_the_full_recursion(matrix, seed, horizon):
    start = start_at_random(seed, len(matrix))
    early = visitation(rows_of(matrix), start, horizon)
    full = visitation(rows_of(matrix), start, horizon, tolerance=0.0)
    assert np.abs(early - full).sum() < 1e-6


def test_periodic_chain_is_not_mistaken_for_stationary():
    matrix = np.roll(np.eye(3), 1, axis=1)
    result = visitation(rows_of(matrix), np.array([1.0, 0, 0]), 1000)
    np.testing.assert_allclose(result, [0.334, 0.333, 0.333], rtol=1e-12)


def test_slowly_leaking_chain_is_not_cut_off():
    # Nearly decoupled: for thousands of steps the left state looks stationary.
    matrix = np.array([[1 - 1e-4, 1e-4], [0.0, 1.0]])
    start = np.array([1.0, 0.0])
    result = visitation(rows_of(matrix), start, 5000)
    np.testing.assert_allclose(result, dense_visitation(matrix, start, 5000), atol=1e-6)


def test_oscillations_that_fade_are_extrapolated():
    # Eigenvalues far from the real axis: no term is a multiple of the one before.
    matrix = 0.999 * (0.97 * np.roll(np.eye(40), 1, axis=1) + 0.03 * np.roll(np.eye(40), 3, axis=1))
    start = np.eye(40)[0]
    early, full = (visitation(rows_of(matrix), start, 4000, tolerance) for tolerance in (5e-7, 0.0))
    assert 0 < np.abs(early - full).sum() < 5e-7
    np.testing.assert_allclose(full, dense_visitation(matrix, start, 4000), rtol=1e-12)


def test_recurrence_is_unrolled_as_by_hand():
    # Fibonacci: a + b, 2 a + b and 3 a + 2 b follow a and b; an error of the first is 1, 2 and 4 times in the sums.
    weight, growth = recursion._unroll(np.array([1.0, 1.0]), 3)
    assert weight.tolist() == [1 + 2 + 3, 1 + 1 + 2]
    assert growth == 1 + 2 + 4


@settings(max_examples=60, deadline=None)
@given(matrix=chains, seed=st.integers(0, 100), order=st.integers(1, 6), terms=st.integers(1, 50))
def test_no_recurrence_is_further_off_than_its_residual_grows(matrix, seed, order, terms):
    known = [start_at_random(seed, len(matrix))]
    for _ in range(order + terms - 1):
        known.append(known[-1] @ matrix)
    earlier, following = np.array(known[order - 1 :: -1]), np.array(known[order:])
    coefficient = np.random.default_rng(seed).normal(size=order)
    weight, growth = recursion._unroll(coefficient, terms)
    residual = np.abs(following[0] - coefficient @ earlier).sum()
    error = np.abs(following.sum(axis=0) - weight @ earlier).sum()
    assert error <= growth * residual * (1 + 1e-9) + 1e-9 * np.abs(weight).sum()


def test_recurrence_is_found_without_terms_that_depend_on_later_ones():
    generator = np.random.default_rng(0)
    later, earlier = generator.normal(size=(2, 20))
    coefficient, distance = recursion._fit_recurrence(np.stack((3 * later - 2 * earlier, later, 5 * later, earlier)))
    np.testing.assert_allclose(coefficient, [3, 0, -2], atol=1e-12)
    assert distance < 1e-12
    aside = generator.normal(size=20)
    terms = np.stack((aside, later, earlier))
    coefficient, distance = recursion._fit_recurrence(terms)
    expected, (squares,), *_ = np.linalg.lstsq(terms[1:].T, aside)
    np.testing.assert_allclose(coefficient, expected)
    assert abs(distance - np.sqrt(squares)) < 1e-12


def test_extrapolation_is_refused_when_it_could_be_off_by_more_than_allowed():
    # Terms of two states, halved at every step in the first and kept in the second; one earlier term cannot give them.
    kept = np.array([[0.25, 1.0], [0.5, 1.0]])
    sketch = np.zeros((2, recursion._SKETCH))
    coefficient = kept[0] @ kept[1] / (kept[1] @ kept[1])
    weight, growth = recursion._unroll(np.array([coefficient]), 4)
    bound = recursion.STRIDE * growth * np.abs(kept[0] - coefficient * kept[1]).sum()
    sketch[:, :2] = kept
    assert len(recursion._extrapolate(kept, sketch, 0, 1, 4, 0.999 * bound)) == 0
    np.testing.assert_allclose(recursion._extrapolate(kept, sketch, 0, 1, 4, 1.001 * bound), weight)


def test_sketches_keep_the_sum_of_squares_of_few_states():
    sketch = np.empty(recursion._SKETCH)
    sign = recursion._random_signs(256)
    assert set(sign) == {-1.0, 1.0}
    assert abs(sign.sum()) < 40
    recursion._add_up_groups(np.eye(256)[70], sign, sketch)
    assert np.abs(sketch).tolist() == np.eye(recursion._SKETCH)[70 % recursion._SKETCH].tolist()


def test_without_transitions_visitation_is_the_start():
    start = np.array([0.25, 0.75])
    np.testing.assert_allclose(visitation(rows_of(np.zeros((2, 2))), start, 1000), start)


@settings(max_examples=80, deadline=None)
@given(matrix=chains, seed=st.integers(0, 100), discount=st.sampled_from([0.0, 0.5, 0.99, 0.9999]))
def test_values_solve_the_bellman_equation_to_the_certified_error(matrix, seed, discount):
    reward = np.random.default_rng(seed).normal(size=len(matrix))
    exact = np.linalg.solve(np.eye(len(matrix)) - discount * matrix, reward)
    error = np.abs(evaluate_policy(rows_of(matrix), reward, discount) - exact).max()
    assert error <= 1.01e-6 * np.abs(exact).max()


@pytest.mark.parametrize("failed", [0.0, 1e3, np.nan, np.inf])
def test_sweeps_reach_the_certified_error_when_the_acceleration_fails(failed):
    matrix = random_chain(3, 60)
    reward = np.random.default_rng(0).normal(size=60)
    rows = rows_of(matrix)
    order = follow_paths(rows.begin, rows.column)
    split = SplitRows(*split_rows(*rows, 0.99, order))
    value = recursion._finish(split, reward[order], np.full(60, failed), 1e-8)
    exact = np.linalg.solve(np.eye(60) - 0.99 * matrix, reward)[order]
    np.testing.assert_allclose(value, exact, atol=1e-6 * np.abs(exact).max())


def test_rewards_of_zero_are_worth_zero():
    np.testing.assert_array_equal(evaluate_policy(rows_of(random_chain(0, 20)), np.zeros(20), 0.99), 0)


def test_rewards_hidden_from_the_first_residual_are_found():
    # The first residual is orthogonal to its image, where plain BiCGSTAB divides by zero.
    matrix = np.roll(np.eye(4), 1, axis=1)
    reward = np.array([1.0, -1.0, 1.0, -1.0])
    exact = np.linalg.solve(np.eye(4) - 0.99 * matrix, reward)
    np.testing.assert_allclose(evaluate_policy(rows_of(matrix), reward, 0.99), exact, atol=1e-6)


def test_paths_are_followed_forwards():
    chain = np.eye(6, k=1)[:, [3, 1, 5, 0, 2, 4]][[3, 1, 5, 0, 2, 4]]
    order = follow_paths(*rows_of(chain)[:2])
    rank = np.argsort(order)
    row, column = np.nonzero(chain)
    assert (rank[row] < rank[column]).all()
