"""From the clients' updates to one global policy. An aggregator is one function and one line in `AGGREGATORS`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedpohcs.types import ClientIds, ClientUpdates, Params, Vector

Aggregator = Callable[[Params, Vector], Params]


class Aggregated(NamedTuple):
    """The new global parameters, and whose update was left out."""

    params: Params
    rejected: ClientIds


def parameter_mean(stacked: Params, weight: Vector) -> Params:
    """theta <- sum_k q_k theta_k, leaf by leaf. Paper: Alg. 1 and 2, last line of a round."""
    return jax.tree.map(lambda x: np.tensordot(weight, x, axes=1).astype(x.dtype), stacked)


def policy_mean(stacked: Params, weight: Vector) -> Params:
    """pi(a|s) <- sum_k q_k pi_k(a|s) for tabular policies; the rest is averaged. Paper: Alg. 3, l. 14.

    A tabular policy is one softmax layer on one-hot states, so its logits of state s are kernel[s] + bias.
    """
    averaged = parameter_mean(stacked, weight)
    (layer,) = stacked.policy.layers
    probability = np.tensordot(weight, tabular_policy(layer.kernel, layer.bias), axes=1)
    mixed = type(layer)(np.log(probability).astype(layer.kernel.dtype), np.zeros_like(averaged.policy.layers[0].bias))
    return averaged._replace(policy=averaged.policy._replace(layers=(mixed,)))


def tabular_policy(kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """pi(a|s) of stacked one-layer policies: [K, S, A]."""
    logits = kernel.astype(float) + bias[:, None, :]
    exponential = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


def finite_clients(stacked: Any) -> NDArray[np.bool_]:
    """Which clients have only finite numbers in a pytree with a leading client axis."""
    leaves = [np.asarray(x) for x in jax.tree.leaves(stacked)]
    return np.all([np.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in leaves], axis=0)


AGGREGATORS: dict[str, Aggregator] = {"parameter-mean": parameter_mean, "policy-mean": policy_mean}


def aggregate(previous: Params, updates: ClientUpdates, weight: Vector, aggregator: Aggregator) -> Aggregated:
    """Combine the updates that are finite; with none, the policy stays as it was.

    Args:
        previous: global parameters of this round.
        updates: of the selected clients.
        weight: of each update, not normalised.
        aggregator: how stacked parameters and normalised weights become one.
    """
    finite = finite_clients(updates.params) & np.isfinite(weight) & (weight > 0)
    rejected = updates.client[~finite]
    if not finite.any():
        return Aggregated(previous, rejected)
    share = weight[finite] / weight[finite].sum()
    return Aggregated(aggregator(jax.tree.map(lambda x: np.asarray(x)[finite], updates.params), share), rejected)
