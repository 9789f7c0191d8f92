"""Metrics of the update that a client would send: it trains before it is known whether it is selected."""

import numpy as np

from fedpohcs.core.types import ClientIds, Vector
from fedpohcs.metrics.base import Metric, MetricContext


def update_norm(context: MetricContext, clients: ClientIds) -> Vector:
    """Norm of the change of the policy's weights in a local training of this round; NaN if the client cannot train."""
    import jax

    trained, steps = context.rehearse(clients)
    leaves = zip(jax.tree.leaves(trained.policy), jax.tree.leaves(context.params.policy), strict=True)
    squares = [((np.asarray(new, float) - old) ** 2).reshape(len(clients), -1).sum(axis=1) for new, old in leaves]
    return np.where(steps > 0, np.sqrt(np.sum(squares, axis=0)), np.nan)


UPDATE_NORM = Metric(update_norm, reads=None, hide="number", prefers="high")
