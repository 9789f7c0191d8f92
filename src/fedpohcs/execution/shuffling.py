"""Permutations of JAX keys, sorted on the host: XLA takes ten times as long to sort on a processor."""

import math
from functools import partial

import jax
import numpy as np

from fedpohcs.core.types import ClientIds

PASSES_PER_DIGIT = 3  # as in `jax.random.permutation`: so unlikely are equal sort keys in all passes


def permutations(key: jax.Array, clients: ClientIds, size: int) -> np.ndarray:
    """`jax.random.permutation(jax.random.fold_in(key, client), size)` of each client, [C, size]."""
    passes = math.ceil(PASSES_PER_DIGIT * math.log(max(1, size)) / math.log(np.iinfo(np.uint32).max))
    sort_keys = np.asarray(_sort_keys(key, clients, size, passes), np.uint64)
    order = np.broadcast_to(np.arange(size, dtype=np.int32), (len(clients), size))
    for step in range(passes):
        # The place below the key makes the sort stable.
        ranked = np.sort(sort_keys[:, step] << np.uint64(32) | np.arange(size, dtype=np.uint64), axis=-1)
        order = np.take_along_axis(order, (ranked & np.uint64(0xFFFFFFFF)).astype(np.int64), axis=-1)
    return order


@partial(jax.jit, static_argnames=("size", "passes"))
def _sort_keys(key: jax.Array, clients: jax.Array, size: int, passes: int) -> jax.Array:
    """The numbers by which each pass sorts, [C, passes, size]."""

    def of_client(client: jax.Array) -> jax.Array:
        keys, now = [], jax.random.fold_in(key, client)
        for _ in range(passes):
            now, drawn = jax.random.split(now)
            keys.append(jax.random.bits(drawn, (size,)))
        return jax.numpy.stack(keys) if keys else jax.numpy.zeros((0, size), jax.numpy.uint32)

    return jax.vmap(of_client)(clients)
