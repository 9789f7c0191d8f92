"""FedVARP: the latest changes of absent clients stand in for them (Jhunjhunwala et al., 2022)."""

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.types import Vector
from fedpohcs.server.optimisers.base import Change, ServerOptimiser, Vectors, by_part
from fedpohcs.server.optimisers.memory import empty_memory, memorise, recall


def fedvarp(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedVARP: the mean change; the latest changes of absent clients stand in for them (Jhunjhunwala et al., 2022).

    v <- sum_k w_k (Delta_k - y_k) + mean over all N of y_n, theta <- theta + learning_rate v, y_k <- Delta_k; y starts
    at 0. With full participation and equal weights it is the mean change.
    """
    rate = 1.0 if settings.learning_rate is None else settings.learning_rate

    def step(state: Vectors, change: Change) -> tuple[Vector, Vectors]:
        absent = state["row"].sum(axis=0, dtype=float) / max(len(change.returns), 1)
        present = change.weight @ recall(state, change.client)
        return rate * (change.mean + (absent - present)), memorise(state, change.client, change.updates)

    return by_part(settings, empty_memory, step)
