"""Sparse rows of transitions: merging, transposing, ordering, and the two layouts the recursions run on."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedpohcs.core.types import Vector

LANES = 16  # rows of a slice; the compiler makes two or four vector registers of them


class SparseRows(NamedTuple):
    """Compressed rows: row s holds the entries begin[s] to begin[s+1]. Columns of a row are distinct, in any order."""

    begin: NDArray[np.int64]  # [S+1]
    column: NDArray[np.uint32]  # [E]; unsigned, or every access would first look for a negative index
    value: Vector  # [E]


class SlicedRows(NamedTuple):
    """Rows in slices of `LANES`, each slice padded to its longest row and stored column by column (sliced ELL).

    The rows are sorted by length, so little is padding. Row i of the layout is state `order[i]`.
    """

    begin: NDArray[np.int64]  # [slices+1]
    column: NDArray[np.uint32]
    value: Vector
    order: NDArray[np.int64]  # [S]


class SplitRows(NamedTuple):
    """I - gamma P_pi as diagonal, lower and upper part after the states have been put in `order`.

    Row i holds the entries of gamma P_pi left of the diagonal, begin[i] to middle[i], and those right of it,
    middle[i] to begin[i+1].
    """

    begin: NDArray[np.int64]  # [S+1]
    middle: NDArray[np.int64]  # [S]
    column: NDArray[np.uint32]
    value: Vector
    inverse_diagonal: Vector  # [S] 1 / (1 - gamma P_pi(s|s))
    order: NDArray[np.int64]  # [S]


@njit(nogil=True, cache=True)
def merge_steps(row, column, weight, num_rows):
    """Adds up the weights of the steps with the same row and column; a negative column is dropped."""
    begin, member = _bucket(row, num_rows)
    merged_begin = np.zeros(num_rows + 1, np.int64)
    merged_column = np.empty(len(row), np.uint32)
    merged_value = np.empty(len(row))
    where = np.full(num_rows, -1, np.int64)  # entry of each column; an earlier row's if before the start of this one
    count = 0
    for state in range(num_rows):
        for step in member[begin[state] : begin[state + 1]]:
            target = column[step]
            if target < 0:
                continue
            if where[target] < merged_begin[state]:
                where[target] = count
                merged_column[count] = target
                merged_value[count] = 0.0
                count += 1
            merged_value[where[target]] += weight[step]
        merged_begin[state + 1] = count
    return merged_begin, merged_column[:count].copy(), merged_value[:count].copy()


@njit(nogil=True, cache=True)
def _bucket(group, num_groups):
    """Members of each group in their order: begin [groups+1] and member [n] (a counting sort)."""
    begin = np.zeros(num_groups + 1, np.int64)
    for item in range(len(group)):
        begin[group[item] + 1] += 1
    begin = np.cumsum(begin)
    cursor = begin[:-1].copy()
    member = np.empty(len(group), np.int64)
    for item in range(len(group)):
        member[cursor[group[item]]] = item
        cursor[group[item]] += 1
    return begin, member


@njit(nogil=True, cache=True)
def transpose(begin, column, value):
    """The same entries by column: transitions into a state instead of transitions from it."""
    num_rows = len(begin) - 1
    new_begin, member = _bucket(column, num_rows)
    row = np.empty(len(column), np.uint32)
    for state in range(num_rows):
        row[begin[state] : begin[state + 1]] = state
    return new_begin, row[member], value[member]


@njit(nogil=True, cache=True)
def slice_rows(begin, column, value):
    """The sliced layout of compressed rows; rows and columns are renumbered, longest row first."""
    num_rows = len(begin) - 1
    length = begin[1:] - begin[:-1]
    order = _bucket(length.max() - length, length.max() + 1)[1]
    rank = np.empty(num_rows, np.uint32)
    for position in range(num_rows):
        rank[order[position]] = position
    slices = (num_rows + LANES - 1) // LANES
    sliced_begin = np.zeros(slices + 1, np.int64)
    for part in range(slices):
        sliced_begin[part + 1] = sliced_begin[part] + LANES * length[order[part * LANES]]
    sliced_column = np.zeros(sliced_begin[-1], np.uint32)  # Padding reads state 0 and adds 0 times it.
    sliced_value = np.zeros(sliced_begin[-1])
    for position in range(num_rows):
        target = sliced_begin[position // LANES] + position % LANES
        for entry in range(begin[order[position]], begin[order[position] + 1]):
            sliced_column[target] = rank[column[entry]]
            sliced_value[target] = value[entry]
            target += LANES
    return sliced_begin, sliced_column, sliced_value, order


@njit(nogil=True, cache=True)
def follow_paths(begin, column):
    """States in reverse postorder of a depth-first search: nearly every transition leads to a later state."""
    num_states = len(begin) - 1
    order = np.empty(num_states, np.int64)
    free = num_states
    seen = np.zeros(num_states, np.bool_)
    upcoming = begin[:-1].copy()
    path = np.empty(num_states, np.int64)
    for root in range(num_states):
        if seen[root]:
            continue
        seen[root] = True
        path[0] = root
        depth = 1
        while depth:
            state = path[depth - 1]
            if upcoming[state] == begin[state + 1]:
                free -= 1
                order[free] = state
                depth -= 1
                continue
            target = column[upcoming[state]]
            upcoming[state] += 1
            if not seen[target]:
                seen[target] = True
                path[depth] = target
                depth += 1
    return order


@njit(nogil=True, cache=True)
def split_rows(begin, column, value, discount, order):
    """I - gamma P_pi in parts, its states renumbered in `order`."""
    num_states = len(begin) - 1
    rank = np.empty(num_states, np.uint32)
    for position in range(num_states):
        rank[order[position]] = position
    new_begin = np.zeros(num_states + 1, np.int64)
    middle = np.empty(num_states, np.int64)
    new_column = np.empty(len(column), np.uint32)
    new_value = np.empty(len(column))
    inverse_diagonal = np.ones(num_states)
    count = 0
    for position in range(num_states):
        state = order[position]
        for upper in (False, True):
            if upper:
                middle[position] = count
            for entry in range(begin[state], begin[state + 1]):
                target = rank[column[entry]]
                if target == position:
                    inverse_diagonal[position] = 1.0 / (1.0 - discount * value[entry])
                elif (target > position) == upper:
                    new_column[count] = target
                    new_value[count] = discount * value[entry]
                    count += 1
        new_begin[position + 1] = count
    return new_begin, middle, new_column[:count].copy(), new_value[:count].copy(), inverse_diagonal, order
