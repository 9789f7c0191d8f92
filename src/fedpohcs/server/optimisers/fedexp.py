"""FedExP: a longer step where the clients' changes point in different directions (Jhunjhunwala et al., 2023)."""

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.types import Vector
from fedpohcs.server.optimisers.base import Change, ServerOptimiser, Vectors, by_part


def fedexp(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedExP: the mean change, extrapolated by how much the clients disagree (Jhunjhunwala et al., 2023).

    theta <- theta + eta Delta with eta = max(1, sum_k w_k |Delta_k|^2 / (2 (|Delta|^2 + epsilon))), Delta the mean.
    """

    def step(state: Vectors, change: Change) -> tuple[Vector, Vectors]:
        squares = change.weight @ (change.updates**2).sum(axis=1)
        square = 2 * ((change.mean**2).sum() + settings.epsilon)
        return (max(1.0, squares / square) if square > 0 else 1.0) * change.mean, state

    return by_part(settings, lambda size: {}, step)
