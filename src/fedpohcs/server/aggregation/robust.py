"""Means of rows that a few Byzantine rows cannot move far. Plain NumPy; the caller decides what a row is."""

import numpy as np

from fedpohcs.core.norms import shrinkage
from fedpohcs.core.types import Vector

Rows = Vector  # [K, P] one row per client
Merged = tuple[Vector, Vector]  # [P] the merged row, and [K] how much of each row is in it, from 0 to 1


def without_extremes(rows: Rows, cut: int) -> Merged:
    """The mean of each column without its `cut` lowest and `cut` highest values; the median if one or two are left.

    Example:
        >>> merged, share = without_extremes(np.array([[1.0], [2.0], [3.0], [1e6]]), cut=1)
        >>> merged.tolist(), share.tolist()
        ([2.5], [0.0, 1.0, 1.0, 0.0])
    """
    end = len(rows) - cut
    rank = rows.argsort(axis=0, kind="stable").argsort(axis=0)
    return np.sort(rows, axis=0)[cut:end].mean(axis=0), ((rank >= cut) & (rank < end)).mean(axis=1)


def nearest_to_centre(rows: Rows, byzantine: int) -> Merged:
    """The mean of each column without the `byzantine` values that are farthest from its trimmed mean.

    Example:
        >>> merged, share = nearest_to_centre(np.array([[1.0], [2.0], [3.0], [1e6]]), byzantine=1)
        >>> merged.tolist(), share.tolist()
        ([2.0], [1.0, 1.0, 1.0, 0.0])
    """
    centre, _ = without_extremes(rows, byzantine)
    rank = np.abs(rows - centre).argsort(axis=0, kind="stable").argsort(axis=0)
    kept = rank < len(rows) - byzantine
    return rows.mean(axis=0, where=kept), kept.mean(axis=1)


def most_central(rows: Rows, byzantine: int, count: int) -> Merged:
    """The mean of the `count` rows with the least sum of squared distances to their K - byzantine - 2 nearest rows.

    The lower row wins a tie.
    """
    distance = np.array([((rows - row) ** 2).sum(axis=1) for row in rows])
    nearest = np.sort(distance, axis=1)[:, 1 : len(rows) - byzantine - 1]  # the first is the row itself
    chosen = np.sort(np.argsort(nearest.sum(axis=1), kind="stable")[:count])
    return rows[chosen].mean(axis=0), np.isin(np.arange(len(rows)), chosen).astype(float)


def clipped_changes(rows: Rows, start: Vector, limit: float) -> Merged:
    """The mean of the rows, after each change from `start` is cut to at most `limit` times the median length.

    Example:
        >>> merged, scale = clipped_changes(np.array([[1.0], [-1.0], [100.0]]), start=np.zeros(1), limit=2.0)
        >>> merged.round(2).tolist(), scale.tolist()
        ([0.67], [1.0, 1.0, 0.02])
    """
    change = rows - start
    scale = shrinkage(np.sqrt((change**2).sum(axis=1)), limit)
    return start + (scale[:, None] * change).mean(axis=0), scale
