"""Limits on norms, for rows of updates and for tables alike."""

import numpy as np

from fedpohcs.core.types import Vector


def shrinkage(norm: Vector, limit: float) -> Vector:
    """Factors that scale each norm down to at most `limit` times the median norm; all 1 if the median is 0.

    Example:
        >>> shrinkage(np.array([1.0, 2.0, 8.0]), limit=1.5).tolist()
        [1.0, 1.0, 0.375]
    """
    largest = limit * np.median(norm)
    return np.minimum(1.0, largest / np.where(norm > 0, norm, 1.0)) if largest > 0 else np.ones(len(norm))
