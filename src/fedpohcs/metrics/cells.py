"""Cells of observations and actions, and 64-bit keys that mean the same cell for every client. Paper: Sec. 4.2."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Keys = NDArray[np.uint64]


def centres_of(values: NDArray[np.generic], width: float) -> NDArray[np.generic]:
    """The middle of the cell around each value. Integers, such as discrete actions, are their own cells."""
    if np.issubdtype(values.dtype, np.integer):
        return values
    # Adding 0 turns -0.0 into 0.0: one cell, one centre, to the bit.
    return (np.rint(values.astype(np.float64) / width) * width + 0.0).astype(np.float32)


def keys_of(values: NDArray[np.generic], width: float, parent: Keys | None = None) -> Keys:
    """A 64-bit key for the cell of each row of values; below a `parent` key, one for the pair (parent, cell).

    Keys are hashes: two cells of a million share one with a chance of 3e-8.
    """
    values = np.ascontiguousarray(values.reshape(len(values), -1))
    if parent is None:
        parent = np.zeros(len(values), np.uint64)
    # Dividing integers by 1 leaves them as they are.
    return _hash_rows(values, 1.0 if np.issubdtype(values.dtype, np.integer) else width, parent)


@njit(nogil=True, cache=True)
def _hash_rows(values, width, parent):
    keys = np.empty(len(values), np.uint64)
    for row in range(len(values)):
        key = parent[row]
        for column in range(values.shape[1]):
            # In float64, so that clients that record in different precision share their cells.
            cell = np.int64(np.rint(np.float64(values[row, column]) / width))
            # SplitMix64. Its increment avoids the fixed point 0; its shifts and products mix all bits.
            key = (key ^ np.uint64(cell)) + np.uint64(0x9E3779B97F4A7C15)
            key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            key ^= key >> np.uint64(31)
        keys[row] = key
    return keys


@njit(nogil=True, cache=True)
def number_by_first_visit(keys):
    """Number distinct keys in order of appearance. Returns the number of each key, and the first index of each number.

    Uses a hash table, because sorting 50,000 keys would take as long as the rest of the model.
    """
    slots = 2
    while slots < 2 * len(keys):
        slots *= 2
    mask = np.uint64(slots - 1)
    holder = np.full(slots, -1, np.int32)
    number = np.empty(len(keys), np.int32)
    first = np.empty(len(keys), np.int64)
    count = 0
    for row in range(len(keys)):
        slot = keys[row] & mask
        while holder[slot] >= 0 and keys[first[holder[slot]]] != keys[row]:
            slot = (slot + np.uint64(1)) & mask
        if holder[slot] < 0:
            holder[slot] = count
            first[count] = row
            count += 1
        number[row] = holder[slot]
    return number, first[:count].copy()
