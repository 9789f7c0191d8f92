"""Networks that are applied a block of observations at a time."""

import jax
import numpy as np
import pytest

from fedpohcs.learners.actor_critic import BLOCK, in_blocks
from fedpohcs.learners.networks import apply_layers, init_layers


@pytest.mark.parametrize("steps", [1, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 5 * BLOCK + 77])
@pytest.mark.parametrize("clients", [1, 3])
def test_blocks_change_no_output(steps: int, clients: int) -> None:
    layers = init_layers(jax.random.key(0), (2, 64, 64, 1))
    observation = np.random.default_rng(steps).normal(size=(clients, steps, 1, 2)).astype(np.float32)
    found, wanted = (
        jax.jit(jax.vmap(apply, in_axes=(None, 0)))(layers, observation)
        for apply in (in_blocks(apply_layers), apply_layers)
    )
    assert found.shape == (clients, steps, 1, 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
