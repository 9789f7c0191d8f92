"""`np.random.default_rng([...])`, compiled: NumPy's version takes longer than half a control step of MuJoCo.

Every episode needs a generator, and an untrained hopper falls after about 15 steps. NumPy guarantees that the algorithm
of `SeedSequence` does not change; the generators made here equal NumPy's to the bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.random.bit_generator import ISeedSequence

POOL_SIZE = 4  # words of 32 bits, SeedSequence's default
HASH_START, HASH_STEP = np.uint32(0x43B0D7E5), np.uint32(0x931E8875)
OUTPUT_START, OUTPUT_STEP = np.uint32(0x8B51F9DD), np.uint32(0x58F38DED)
MIX_LEFT, MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
HALF = np.uint32(16)


def seeded_generator(numbers: Sequence[int]) -> np.random.Generator:
    """The generator of `np.random.default_rng(numbers)`; every number is below 2**32."""
    words: Any = _Words(_generated_state(np.array(numbers, np.uint32)))  # NumPy's stubs do not allow subclasses
    return np.random.Generator(np.random.PCG64(words))


class _Words(ISeedSequence):
    """A seed sequence that holds the result of the only call that PCG64 makes: `generate_state(4, np.uint64)`."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> np.ndarray:
        return self.words


@njit(cache=True)
def _generated_state(entropy):
    """`SeedSequence(entropy).generate_state(4, np.uint64)`."""
    pool = np.zeros(POOL_SIZE, np.uint32)
    constant = HASH_START
    for i in range(POOL_SIZE):
        pool[i], constant = _hashed(entropy[i] if i < len(entropy) else np.uint32(0), constant, HASH_STEP)
    for source in range(POOL_SIZE):
        for i in range(POOL_SIZE):
            if i != source:
                word, constant = _hashed(pool[source], constant, HASH_STEP)
                pool[i] = _mixed(pool[i], word)
    for source in range(POOL_SIZE, len(entropy)):
        for i in range(POOL_SIZE):
            word, constant = _hashed(entropy[source], constant, HASH_STEP)
            pool[i] = _mixed(pool[i], word)
    state = np.zeros(8, np.uint32)
    constant = OUTPUT_START
    for i in range(len(state)):
        state[i], constant = _hashed(pool[i % POOL_SIZE], constant, OUTPUT_STEP)
    return state.view(np.uint64)


@njit(cache=True)
def _hashed(word, constant, step):
    """The hashed word, and the constant for the next word."""
    following = np.uint32(constant * step)
    product = np.uint32(np.uint32(word ^ constant) * following)
    return np.uint32(product ^ (product >> HALF)), following


@njit(cache=True)
def _mixed(word, other):
    difference = np.uint32(np.uint32(MIX_LEFT * word) - np.uint32(MIX_RIGHT * other))
    return np.uint32(difference ^ (difference >> HALF))
