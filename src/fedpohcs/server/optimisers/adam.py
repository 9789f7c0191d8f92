"""FedAdam: steps scaled by a running mean of squared changes (Reddi et al., 2021)."""

from collections.abc import Callable

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.errors import require
from fedpohcs.core.types import Vector
from fedpohcs.server.optimisers.base import Change, ServerOptimiser, Vectors, by_part

LEARNING_RATE = 0.01

SecondMoment = Callable[[Vector, Vector], Vector]
"""From the running second moment v and the squared change of a round to the new v."""


def adam(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedAdam: steps divided by the root of a running mean of squared changes (Reddi et al., 2021)."""
    return adaptive(settings, lambda v, square: settings.beta2 * v + (1 - settings.beta2) * square)


def adaptive(settings: ServerOptimiserConfig, second_moment: SecondMoment) -> ServerOptimiser:
    """FedOpt with any rule for the second moment. There is no correction of the bias of the first rounds.

    m <- beta1 m + (1 - beta1) Delta, theta <- theta + learning_rate m / (sqrt(v) + epsilon); v starts at epsilon^2.
    """
    rate = LEARNING_RATE if settings.learning_rate is None else settings.learning_rate
    epsilon = settings.epsilon
    require(epsilon > 0, "server_optimiser.epsilon", epsilon, "must be above 0 for adam and yogi")

    def step(state: Vectors, change: Change) -> tuple[Vector, Vectors]:
        m = settings.beta1 * state["m"] + (1 - settings.beta1) * change.mean
        v = second_moment(state["v"], change.mean**2)
        return rate * m / (np.sqrt(v) + epsilon), {"m": m, "v": v}

    return by_part(settings, lambda size: {"m": np.zeros(size), "v": np.full(size, epsilon**2)}, step)
