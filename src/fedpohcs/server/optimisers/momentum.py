"""FedAvgM: server momentum (Hsu et al., 2019)."""

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.types import Vector
from fedpohcs.server.optimisers.base import Change, ServerOptimiser, Vectors, by_part

LEARNING_RATE = 1.0


def momentum(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedAvgM: the mean change of the round plus `momentum` times the previous velocity (Hsu et al., 2019).

    v <- momentum v + Delta, theta <- theta + learning_rate v.
    """
    rate = LEARNING_RATE if settings.learning_rate is None else settings.learning_rate

    def step(state: Vectors, change: Change) -> tuple[Vector, Vectors]:
        velocity = settings.momentum * state["velocity"] + change.mean
        return rate * velocity, {"velocity": velocity}

    return by_part(settings, lambda size: {"velocity": np.zeros(size)}, step)
