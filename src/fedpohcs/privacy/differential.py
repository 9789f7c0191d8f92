"""Rounding and differential privacy of single scores, and the privacy loss over many rounds."""

import math
import random
from collections.abc import Callable

import numpy as np

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.privacy.errors import demand

Uniform = Callable[[], float]  # draws from [0, 1)
DELTA = 1e-6  # probability that the privacy loss exceeds the value of `privacy_loss`
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 257))
system_uniform: Uniform = random.SystemRandom().random


def num_levels(config: ProtectionConfig) -> int:
    """L: a score is one of the integers from -L to L."""
    return 2 ** (config.score_bits - 1) - 1


def protected_level(score: float, config: ProtectionConfig, uniform: Uniform = system_uniform) -> int:
    """A score between -1 and 1 as the integer that is uploaded: rounded, and with noise if the config says so."""
    demand(math.isfinite(score), "the score is not finite")
    largest = num_levels(config)
    level = round(min(max(score, -1.0), 1.0) * largest)
    if config.epsilon is None:
        return level
    noisy = level + discrete_laplace(2 * largest / config.epsilon, uniform)
    return min(max(noisy, -(2**31)), 2**31 - 1)


def score_of_level(level: int, config: ProtectionConfig) -> float:
    """The score that an uploaded integer stands for."""
    largest = num_levels(config)
    demand(config.epsilon is not None or abs(level) <= largest, "the score is out of range")
    return level / largest


def rounded(value: float, config: ProtectionConfig) -> float:
    """A number of any size, rounded to as many significant bits as a score has."""
    demand(math.isfinite(value), "the number is not finite")
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(fraction * 2**config.score_bits), exponent - config.score_bits)


def discrete_laplace(scale: float, uniform: Uniform) -> int:
    """An integer z with probability proportional to exp(-|z| / scale): the difference of two geometric draws.

    Integers are used because the low digits of floating-point Laplace noise reveal the true value (Mironov, 2012).
    """
    return _geometric(scale, uniform) - _geometric(scale, uniform)


def _geometric(scale: float, uniform: Uniform) -> int:
    return math.floor(-math.log1p(-uniform()) * scale)


def privacy_loss(epsilon: float, answers: int) -> float:
    """Epsilon of a client that answered so often, except with a chance of `DELTA`: the better of two compositions.

    Pure losses add up. Over many answers Renyi's is less: its divergence of order a between the outputs of an
    epsilon-private mechanism is at most that of randomised response (Mironov, 2017, Prop. 5), and adds up too.
    """
    renyi = (answers * _renyi_divergence(epsilon, order) + _conversion(order) for order in ORDERS)
    return min(epsilon * answers, *renyi) if answers else 0.0


def _renyi_divergence(epsilon: float, order: float) -> float:
    """log((sinh(a e) - sinh((a - 1) e)) / sinh(e)) / (a - 1), in logarithms: the terms overflow."""
    high, low = _log_sinh(order * epsilon), _log_sinh((order - 1) * epsilon)
    return (high + math.log(-math.expm1(low - high)) - _log_sinh(epsilon)) / (order - 1)


def _log_sinh(x: float) -> float:
    return x + math.log(-math.expm1(-2 * x)) - math.log(2)


def _conversion(order: float) -> float:
    """What converting a Renyi divergence of this order to a loss at `DELTA` adds (Balle, 2020)."""
    return math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)


def spent(epsilon: float, answers: np.ndarray) -> np.ndarray:
    """The privacy loss of every client."""
    return np.array([privacy_loss(epsilon, int(count)) for count in answers])
