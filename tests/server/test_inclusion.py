"""Drawing clients with unequal probabilities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpohcs.server.selection.sampling import draw, inclusion_probabilities

SIZES = arrays(np.float64, st.integers(1, 12), elements=st.just(0.0) | st.floats(1e-6, 1e6))


@settings(deadline=None)
@given(SIZES, st.integers(1, 14))
def test_probabilities_sum_to_the_number_and_are_proportional_where_none_is_full(size, number) -> None:
    probability = inclusion_probabilities(size, number)
    assert probability.sum() == pytest.approx(min(number, len(size)))
    assert (probability >= 0).all() and (probability <= 1).all()
    between = (probability < 1) & (size > 0)
    if between.any():
        share = probability[between] / size[between]
        np.testing.assert_allclose(share, share[0], rtol=1e-6)
        assert (size[probability == 1] * share[0] >= 1 - 1e-6).sum() == ((probability == 1) & (size > 0)).sum()


@pytest.mark.parametrize(
    ("size", "number", "expected"),
    [
        ([1, 1, 2, 12], 2, [0.25, 0.25, 0.5, 1]),
        ([1, 1, 1, 1], 2, [0.5, 0.5, 0.5, 0.5]),
        ([0, 0, 5, 0], 2, [1 / 3, 1 / 3, 1, 1 / 3]),
        ([0, 0, 0], 2, [2 / 3, 2 / 3, 2 / 3]),
        ([np.nan, 1, 3], 1, [0, 0.25, 0.75]),
        ([np.inf, 1, 3], 2, [0, 1, 1]),
        ([100, 10, 1], 2, [1, 10 / 11, 1 / 11]),
    ],
)
def test_probabilities_worked_by_hand(size: list[float], number: int, expected: list[float]) -> None:
    np.testing.assert_allclose(inclusion_probabilities(np.array(size, float), number), expected)


@settings(deadline=None)
@given(SIZES, st.integers(1, 12), st.integers(0, 2**32))
def test_as_many_different_clients_are_drawn_as_the_probabilities_sum_to(size, number, seed) -> None:
    probability = inclusion_probabilities(size, number)
    drawn = draw(probability, np.random.default_rng(seed))
    assert len(drawn) == min(number, len(size))
    assert (np.diff(drawn) > 0).all()
    assert (probability[drawn] > 0).all()
    assert np.isin(np.flatnonzero(probability == 1), drawn).all()


def test_clients_are_drawn_as_often_as_their_probabilities_say() -> None:
    generator = np.random.default_rng(0)
    probability = inclusion_probabilities(np.array([1.0, 2, 3, 4, 40, 5, 0.5]), 3)
    times = np.zeros(7)
    for _ in range(20_000):
        times[draw(probability, generator)] += 1
    spread = np.sqrt(probability * (1 - probability) / 20_000)
    assert (abs(times / 20_000 - probability) <= 4 * spread + 1e-12).all()


def test_neighbours_are_drawn_together_because_the_order_is_random() -> None:
    """In a fixed order systematic sampling would never draw clients 0 and 1 together."""
    generator, probability = np.random.default_rng(0), np.full(6, 0.5)
    pairs = [set(draw(probability, generator).tolist()) for _ in range(500)]
    assert 0.1 < np.mean([{0, 1} <= pair for pair in pairs]) < 0.3  # 1/5 if all sets are equally likely
