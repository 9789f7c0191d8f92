"""Cells and their keys."""

import numpy as np

from fedpohcs.metrics.cells import centres_of, keys_of, number_by_first_visit


def test_values_of_one_cell_share_a_key_and_neighbours_do_not():
    keys = keys_of(np.array([[0.26], [0.34], [0.36], [-0.3]]), 0.1)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_keys_do_not_depend_on_precision_layout_or_neighbouring_rows():
    values = np.random.default_rng(0).normal(size=(50, 5)).round(1)
    keys = keys_of(values, 0.1)
    np.testing.assert_array_equal(keys, keys_of(values.astype(np.float32), 0.1))
    np.testing.assert_array_equal(keys, keys_of(np.asfortranarray(values), 0.1))
    np.testing.assert_array_equal(keys[7:9], keys_of(values[7:9], 0.1))


def test_integers_are_their_own_cells_whatever_the_width():
    actions = np.array([0, 1, 2])
    np.testing.assert_array_equal(keys_of(actions, 0.1), keys_of(actions[:, None], 7.0))
    assert centres_of(actions, 0.1) is actions


def test_centres_are_multiples_of_the_width_at_most_half_of_it_away():
    values = np.random.default_rng(1).normal(size=(200, 3))
    centres = centres_of(values, 0.4)
    assert centres.dtype == np.float32
    assert np.abs(centres - values).max() <= 0.2 + 1e-6
    np.testing.assert_allclose(np.rint(centres / 0.4), centres / 0.4, atol=1e-5)


def test_a_cell_has_one_centre_to_the_bit():
    centres = centres_of(np.array([-0.04, 0.04]), 0.1)
    assert not np.signbit(centres).any()


def test_keys_of_a_grid_with_eighteen_dimensions_are_distinct():
    cells = np.random.default_rng(2).integers(-2, 3, size=(200_000, 18))
    cells[:, 17] = np.arange(len(cells))
    assert len(np.unique(keys_of(cells, 1.0))) == len(cells)


def test_order_of_columns_matters_and_pairs_differ_from_their_states():
    state = keys_of(np.array([[1, 2], [2, 1]]), 1.0)
    assert state[0] != state[1]
    pair = keys_of(np.array([0, 0]), 1.0, state)
    assert len({*state, *pair}) == 4


def test_numbers_follow_the_first_visit():
    number, first = number_by_first_visit(np.array([9, 4, 9, 0, 4], np.uint64))
    assert number.tolist() == [0, 1, 0, 2, 1]
    assert first.tolist() == [0, 1, 3]
