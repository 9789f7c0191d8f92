"""Means of rows that a few liars among them cannot move far. Plain NumPy; who uses them decides what a row is."""

import numpy as np

from fedpohcs.core.types import Vector

Rows = Vector  # [K, P] one row a client
Merged = tuple[Vector, Vector]  # [P] the merged row, and [K] how much of each row is in it, from 0 to 1


def without_extremes(rows: Rows, cut: int) -> Merged:
    """The mean of each column without its `cut` lowest and `cut` highest numbers; the median if all but it are cut."""
    end = len(rows) - cut
    rank = rows.argsort(axis=0, kind="stable").argsort(axis=0)
    return np.sort(rows, axis=0)[cut:end].mean(axis=0), ((rank >= cut) & (rank < end)).mean(axis=1)


def nearest_to_centre(rows: Rows, liars: int) -> Merged:
    """The mean of each column without the `liars` numbers that are farthest from its trimmed mean."""
    centre, _ = without_extremes(rows, liars)
    rank = np.abs(rows - centre).argsort(axis=0, kind="stable").argsort(axis=0)
    kept = rank < len(rows) - liars
    return rows.mean(axis=0, where=kept), kept.mean(axis=1)


def most_central(rows: Rows, liars: int, count: int) -> Merged:
    """The mean of the `count` rows with the least sum of squared distances to their K - liars - 2 nearest others.

    The lower row wins a tie.
    """
    distance = np.array([((rows - row) ** 2).sum(axis=1) for row in rows])
    nearest = np.sort(distance, axis=1)[:, 1 : len(rows) - liars - 1]  # the first is the row itself
    chosen = np.sort(np.argsort(nearest.sum(axis=1), kind="stable")[:count])
    return rows[chosen].mean(axis=0), np.isin(np.arange(len(rows)), chosen).astype(float)


def clipped_changes(rows: Rows, start: Vector, limit: float) -> Merged:
    """The mean of the rows, after those farther from `start` than `limit` times the median distance are moved there."""
    change = rows - start
    scale = shrinkage(np.sqrt((change**2).sum(axis=1)), limit)
    return start + (scale[:, None] * change).mean(axis=0), scale


def shrinkage(norm: Vector, limit: float) -> Vector:
    """The factors after which no norm exceeds `limit` times the median norm; all 1 if the median is 0."""
    largest = limit * np.median(norm)
    return np.minimum(1.0, largest / np.where(norm > 0, norm, 1.0)) if largest > 0 else np.ones(len(norm))
