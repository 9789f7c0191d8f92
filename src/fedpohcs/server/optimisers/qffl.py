"""q-FedAvg, the solver of q-FFL: clients with a large loss count more (Li et al., 2020)."""

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.types import Vector
from fedpohcs.server.optimisers.base import Change, ServerOptimiser, Vectors, by_part

SMALLEST_LOSS = 0.01  # a loss of 0 has no power q - 1


def qffl(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """q-FedAvg: changes weighed by F_k^q, the power q of the client's loss (Li et al., 2020).

    F_k is how far the return of client k is below the best that any client has had, from 0 to 1, where 1 is the worst.
    theta <- theta + sum_k w_k F_k^q Delta_k / sum_k w_k (F_k^q + q F_k^(q-1) L |Delta_k|^2). With q = 0 it is FedAvg.
    """
    q, lipschitz = settings.q, settings.lipschitz

    def step(state: Vectors, change: Change) -> tuple[Vector, Vectors]:
        best, worst = np.fmax(state["best"], _best(change.returns)), np.fmin(state["worst"], -_best(-change.returns))
        loss = losses(change.returns[change.client], best, worst)
        length = (change.updates**2).sum(axis=1)
        weight = loss**q
        total = change.weight @ (weight + q * loss ** (q - 1) * lipschitz * length)
        # In this order of operations, equal weights give exactly the mean change.
        step = change.mean + (change.weight * (weight / total - 1)) @ change.updates
        return step, {"best": best, "worst": worst}

    return by_part(settings, lambda size: {"best": np.array(np.nan), "worst": np.array(np.nan)}, step)


def losses(returns: Vector, best: np.ndarray, worst: np.ndarray) -> Vector:
    """1 for the worst return seen so far, almost 0 for the best, and the mean of the others for an unknown one."""
    spread = best - worst
    if not spread > 0:
        return np.ones(len(returns))
    loss = np.clip((best - returns) / spread, SMALLEST_LOSS, 1.0)
    return np.where(np.isnan(loss), np.nanmean(loss) if np.isfinite(loss).any() else 1.0, loss)


def _best(returns: Vector) -> float:
    return float(np.nanmax(returns)) if np.isfinite(returns).any() else np.nan
