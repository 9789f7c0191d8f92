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
