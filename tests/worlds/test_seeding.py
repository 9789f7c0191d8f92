"""Compiled seeding is NumPy's own."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.worlds.seeding import seeded_generator


@settings(deadline=None)  # the first example compiles
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9))
def test_a_seeded_generator_draws_what_numpys_default_generator_draws(numbers: list[int]) -> None:
    ours, numpys = seeded_generator(numbers), np.random.default_rng(numbers)
    assert ours.bit_generator.state == numpys.bit_generator.state
    np.testing.assert_array_equal(ours.standard_normal(7, np.float32), numpys.standard_normal(7, np.float32))
