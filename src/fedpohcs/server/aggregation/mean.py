"""The weighted mean of the updates, as in FedAvg (McMahan et al., 2017)."""

import numpy as np

from fedpohcs.core.types import Params, Vector
from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates


def parameter_mean(updates: SoundUpdates) -> Combination:
    """theta <- sum_k q_k theta_k, leaf by leaf. Paper: Alg. 1 and 2, last line of a round."""
    return Combination(weighted_mean(updates.params, updates.weight))


def weighted_mean(stacked: Params, weight: Vector) -> Params:
    """The mean over the leading axis of every leaf."""
    import jax

    return jax.tree.map(lambda x: np.tensordot(weight, x, axes=1).astype(x.dtype), stacked)


PARAMETER_MEAN = Aggregator(parameter_mean)
