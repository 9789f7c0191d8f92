"""Random generators keyed by (seed, purpose, round, client): draws do not depend on order, executor or resuming."""

from enum import IntEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax


class Purpose(IntEnum):
    """Purpose of a draw. The numbers determine results: never renumber them."""

    INITIAL_WEIGHTS = 0
    CANDIDATES = 1
    SELECTION = 2
    TRAINING = 3
    SHUFFLING = 4
    EVALUATION = 5
    WARM_UP = 6
    GRADIENT_SAMPLE = 7
    MODELLING = 8
    PRIVACY_NOISE = 9
    ATTACK = 10
    SERVER = 11  # batch sizes and inner loops of a server optimiser
    SIMULATION = 12  # episodes that the server plays itself
    SPEED = 21
    AVAILABILITY = 22
    EMBEDDING = 23
    EVALUATED_SAMPLE = 24


def host_generator(
    seed: int, purpose: Purpose, round_number: int = 0, client: int = 0, *more: int
) -> np.random.Generator:
    """The NumPy generator of one draw."""
    entropy = [seed, purpose, round_number, client, *more]
    if all(0 <= number < 2**32 for number in entropy):  # the words that NumPy would make of them, which takes it longer
        return np.random.default_rng(np.array(entropy, np.uint32))
    return np.random.default_rng(entropy)


def device_key(seed: int, purpose: Purpose, round_number: int = 0) -> "jax.Array":
    """The JAX key of one purpose and round; a client folds in its own id."""
    return _folded()(_purpose_key(seed, purpose), np.uint32(round_number))


@lru_cache(maxsize=256)
def _purpose_key(seed: int, purpose: Purpose) -> "jax.Array":
    import jax

    return jax.random.fold_in(jax.random.key(seed), purpose)


@cache
def _folded() -> Any:
    """`fold_in` as one compiled call: as single operations it takes half a millisecond in every round."""
    import jax

    return jax.jit(jax.random.fold_in)
