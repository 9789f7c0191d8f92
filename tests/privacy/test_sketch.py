import numpy as np
import pytest

from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.metrics import selection_metric, stack_tables
from fedpohcs.privacy.sketch import FixedPoint, count_sketch, relative_metric, sketch_seed
from privacy.federation import RUN, make_table


def test_a_sketch_is_linear_and_keeps_every_entry() -> None:
    table, slots = make_table(0), 128
    doubled = WeightedAdvantage(table.pair, 2 * table.value)
    np.testing.assert_allclose(count_sketch(doubled, 3, slots), 2 * count_sketch(table, 3, slots))
    single = WeightedAdvantage(table.pair[:1], np.array([5.0]))
    assert np.abs(count_sketch(single, 3, slots)).sum() == 5.0


def test_squared_norms_and_inner_products_are_kept_on_average() -> None:
    one, other = make_table(0), make_table(1)
    stacked = stack_tables((one, other), "all").toarray()
    products = []
    for seed in range(2000):
        a, b = (count_sketch(table, seed, 64) for table in (one, other))
        products.append((a @ a, a @ b))
    np.testing.assert_allclose(np.mean(products, axis=0), stacked[0] @ stacked.T, rtol=0.05)


def test_a_long_sketch_gives_the_exact_metric() -> None:
    tables = [make_table(seed) for seed in range(5)]
    rows = stack_tables(tables, "all")
    exact = selection_metric(rows, np.ones(5)) / np.linalg.norm(rows.toarray().mean(0))
    sketches = np.stack([count_sketch(table, 11, 2**20) for table in tables])
    mean = sketches.mean(axis=0)
    np.testing.assert_allclose([relative_metric(mean, sketch) for sketch in sketches], exact, atol=5e-3)


def test_every_round_has_a_seed_of_its_own() -> None:
    assert len({sketch_seed(RUN, number) for number in range(1000)}) == 1000


@pytest.mark.parametrize("seed", range(20))
def test_a_score_lies_between_minus_one_and_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    mean, own = generator.standard_normal((2, 10)) * np.array([[0.01], [10.0 ** generator.integers(-3, 3)]])
    assert abs(relative_metric(mean, own)) <= 1 + 1e-12


def test_numbers_are_rounded_to_the_nearest_integer() -> None:
    found = FixedPoint(1.0, 10).encode(np.array([0.26, -0.26, 0.24, -0.24]), 1.0)
    np.testing.assert_array_equal(found, [3, -3, 2, -2])


def test_fixed_point_sums_neither_overflow_nor_drift() -> None:
    fixed = FixedPoint(128.0, 2**31 - 2**17)
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.uniform(-128, 128, (18, 100)), np.full((18, 1), 1e9), np.full((18, 1), -1e9)], 1)
    total = np.sum([fixed.encode(row, 1 / 18) for row in values], axis=0)
    assert np.abs(total).max() < 2**31
    clipped = np.clip(values, -128, 128).mean(axis=0)
    np.testing.assert_allclose(fixed.decode(total), clipped, atol=18 / fixed.scale)
