"""Permutations that are sorted on the host."""

import jax
import numpy as np
import pytest

from fedpohcs.execution.shuffling import permutations


@pytest.mark.parametrize("size", [1, 2, 50, 2100, 70_000])
def test_permutations_are_those_of_jax(size: int) -> None:
    """Results of earlier versions depend on them."""
    key, clients = jax.random.key(3), np.array([5, 0, 59])
    found = permutations(key, clients, size)
    wanted = [jax.random.permutation(jax.random.fold_in(key, client), size) for client in clients.tolist()]
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.int32
