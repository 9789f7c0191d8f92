"""Action distributions, written with array operators only so that NumPy and JAX arrays both work."""

import math
from typing import Any, NamedTuple

import numpy as np

Array = Any
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """Independent normal actions; `log_std` does not depend on the state but is broadcast to `mean`."""

    mean: Array  # [..., act]
    log_std: Array  # [..., act]

    def sample(self, noise: Array) -> Array:
        """The action that corresponds to standard normal `noise`."""
        return self.mean + self.mean.__array_namespace__().exp(self.log_std) * noise

    def log_prob(self, action: Array) -> Array:
        xp = self.mean.__array_namespace__()
        deviation = (action - self.mean) * xp.exp(-self.log_std)
        return (-0.5 * deviation * deviation - self.log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Array:
        return (self.log_std + 0.5 + _HALF_LOG_2PI).sum(-1)

    def kl_to(self, other: "Gaussian") -> Array:
        """KL(self || other)."""
        xp = self.mean.__array_namespace__()
        ratio = xp.exp(2 * (self.log_std - other.log_std))
        distance = (self.mean - other.mean) * xp.exp(-other.log_std)
        return (other.log_std - self.log_std + 0.5 * (ratio + distance * distance - 1)).sum(-1)


class SquashedGaussian(NamedTuple):
    """The tanh of independent normal numbers, scaled from -1 and 1 to `low` and `high`."""

    mean: Array  # [..., act], before the tanh
    log_std: Array  # [..., act]
    low: Array  # [..., act]
    high: Array  # [..., act]

    def sample(self, noise: Array) -> Array:
        """The action that corresponds to standard normal `noise`."""
        return self.sample_with_log_prob(noise)[0]

    def sample_with_log_prob(self, noise: Array) -> tuple[Array, Array]:
        """The action that corresponds to standard normal `noise`, and its log density."""
        xp = self.mean.__array_namespace__()
        before = self.mean + xp.exp(self.log_std) * noise
        normal = -0.5 * noise * noise - self.log_std - _HALF_LOG_2PI
        half = (self.high - self.low) / 2
        action = (self.high + self.low) / 2 + half * xp.tanh(before)
        return action, (normal - _log_slope(before) - xp.log(half)).sum(-1)

    def log_prob(self, action: Array) -> Array:
        """The log density at an action. That of an action at a bound is taken just inside, because it is infinite."""
        xp = self.mean.__array_namespace__()
        share = (2 * action - self.high - self.low) / (self.high - self.low)
        before = xp.atanh(share.clip(-INNERMOST, INNERMOST))
        return self.sample_with_log_prob((before - self.mean) * xp.exp(-self.log_std))[1]


INNERMOST = 1 - 1e-6
"""Largest share of the range whose hyperbolic tangent is inverted."""
LOG_STD_LIMITS = (-20.0, 2.0)


def _log_slope(x: Array) -> Array:
    """log(1 - tanh(x)^2), without the rounding error of a difference between numbers near 1."""
    xp = x.__array_namespace__()
    return 2 * (math.log(2) - x - xp.logaddexp(xp.zeros_like(x), -2 * x))


def squashed_gaussian(output: Array, low: float = -1.0, high: float = 1.0) -> SquashedGaussian:
    """The distribution of a network whose outputs are means and logarithms of standard deviations, [..., 2 act]."""
    xp = output.__array_namespace__()
    size = output.shape[-1] // 2
    mean, log_std = output[..., :size], output[..., size:].clip(*LOG_STD_LIMITS)
    return SquashedGaussian(mean, log_std, xp.full_like(mean, low), xp.full_like(mean, high))


class Categorical(NamedTuple):
    """One of finitely many actions; `logits` are normalised log-probabilities."""

    logits: Array  # [..., A]

    def sample(self, noise: Array) -> Array:
        """The action that corresponds to standard Gumbel `noise`."""
        return self.logits.__array_namespace__().argmax(self.logits + noise, axis=-1)

    def log_prob(self, action: Array) -> Array:
        xp = self.logits.__array_namespace__()
        shape = xp.broadcast_shapes(action.shape, self.logits.shape[:-1])
        logits = xp.broadcast_to(self.logits, (*shape, self.logits.shape[-1]))
        index = xp.broadcast_to(action, shape)[..., None]
        return xp.take_along_axis(logits, index, axis=-1)[..., 0]

    def entropy(self) -> Array:
        return -(self.logits.__array_namespace__().exp(self.logits) * self.logits).sum(-1)

    def kl_to(self, other: "Categorical") -> Array:
        """KL(self || other)."""
        return (self.logits.__array_namespace__().exp(self.logits) * (self.logits - other.logits)).sum(-1)


def categorical(unnormalised: Array) -> Categorical:
    """The distribution whose log-probabilities are the given numbers up to a constant."""
    if isinstance(unnormalised, np.ndarray):
        from scipy.special import log_softmax

        return Categorical(log_softmax(unnormalised, axis=-1))
    from jax.nn import log_softmax

    return Categorical(log_softmax(unnormalised))
