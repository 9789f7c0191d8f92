"""A table of any size as a short vector that keeps norms and inner products: the count sketch, and fixed point."""

import hashlib
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpohcs.core.types import Vector, WeightedAdvantage
from fedpohcs.privacy.errors import demand

Integers = NDArray[np.int64]


def sketch_seed(name: bytes, round_number: int) -> int:
    """The seed all candidates of a round share. It is public: the server never sees a sketch."""
    digest = hashlib.sha256(b"fedpohcs sketch" + name + round_number.to_bytes(4, "little")).digest()
    return int.from_bytes(digest[:8], "big")


def count_sketch(table: WeightedAdvantage, seed: int, num_slots: int) -> Vector:
    """Every entry of D_n A_n added, with a sign, to one slot; sign and slot are hashes of its key (Charikar, 2002)."""
    demand(bool(np.isfinite(table.value).all()), "the table holds a number that is not finite")
    return _scatter(table.pair, table.value, np.uint64(seed), num_slots)


@njit(nogil=True, cache=True)
def _scatter(pair, value, seed, num_slots):
    sketch = np.zeros(num_slots)
    for entry in range(len(pair)):
        key = pair[entry] ^ seed
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        key ^= key >> np.uint64(31)
        slot = ((key >> np.uint64(32)) * np.uint64(num_slots)) >> np.uint64(32)
        sketch[slot] += value[entry] if key & np.uint64(1) else -value[entry]
    return sketch


class FixedPoint(NamedTuple):
    """Numbers between plus and minus `limit` as integers between plus and minus `largest`."""

    limit: float
    largest: int

    @property
    def scale(self) -> float:
        """Integers per unit."""
        return self.largest / self.limit

    def encode(self, values: Vector, weight: float) -> Integers:
        """`weight * values`, rounded. Weights of a cohort sum to 1, so sums exceed `largest` at most by rounding."""
        return _rounded(values, self.limit, weight * self.scale)

    def decode(self, integers: Integers) -> Vector:
        """The numbers back."""
        return integers / self.scale


@njit(nogil=True, cache=True)
def _rounded(values, limit, factor):
    """Values within the limit, times the factor, as integers; in one pass, because every candidate does it."""
    integers = np.empty(len(values), np.int64)
    for place in range(len(values)):
        integers[place] = np.rint(min(max(values[place], -limit), limit) * factor)
    return integers


def relative_metric(mean: Vector, own: Vector) -> float:
    """Delta_n / ||S||, between -1 and 1, of a client with sketch `own` in a cohort with mean S. Paper: Eq. (DeltaN)."""
    size, potential, heterogeneity = _norms(mean, own)
    return (potential - heterogeneity) / size if size else 0.0


@njit(nogil=True, cache=True)
def _norms(mean, own):
    """Norms of both vectors and of their difference, without BLAS, which would start threads."""
    of_mean, of_own, of_difference = 0.0, 0.0, 0.0
    for slot in range(len(mean)):
        of_mean += mean[slot] ** 2
        of_own += own[slot] ** 2
        of_difference += (mean[slot] - own[slot]) ** 2
    return np.sqrt(of_mean), np.sqrt(of_own), np.sqrt(of_difference)
