"""What a random sample of clients tells about all of them."""

import math

import numpy as np

from fedpohcs.core.types import Vector

LEVEL = 0.95


def sample_interval(sample: Vector, population: int) -> tuple[float, float]:
    """Limits of the population's mean: Student's t interval with the correction for a finite population.

    The sample is drawn without replacement, so its mean has the variance s^2 / m (1 - m / N): none where all are
    evaluated. NaN for fewer than two clients.

    Example:
        >>> sample_interval(np.array([1.0, 3.0]), 2)
        (2.0, 2.0)
    """
    from scipy.special import stdtrit  # SciPy takes a while to load

    size = len(sample)
    if size < 2:
        return math.nan, math.nan
    mean, error = float(np.mean(sample)), float(np.std(sample, ddof=1)) * math.sqrt((1 - size / population) / size)
    reach = float(stdtrit(size - 1, (1 + LEVEL) / 2)) * error
    return mean - reach, mean + reach
