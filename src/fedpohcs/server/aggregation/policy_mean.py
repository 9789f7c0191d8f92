"""The mean of tabular policies as distributions, not as weights. Paper: Alg. 3, l. 14."""

import numpy as np

from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates
from fedpohcs.server.aggregation.mean import weighted_mean


def policy_mean(updates: SoundUpdates) -> Combination:
    """pi(a|s) <- sum_k q_k pi_k(a|s) for tabular policies; the rest is averaged. Paper: Alg. 3, l. 14.

    A tabular policy is one softmax layer on one-hot states, so its logits of state s are kernel[s] + bias.
    """
    averaged = weighted_mean(updates.params, updates.weight)
    (layer,) = updates.params.policy.layers
    probability = np.tensordot(updates.weight, tabular_policy(layer.kernel, layer.bias), axes=1)
    mixed = type(layer)(np.log(probability).astype(layer.kernel.dtype), np.zeros_like(averaged.policy.layers[0].bias))
    return Combination(averaged._replace(policy=averaged.policy._replace(layers=(mixed,))))


def tabular_policy(kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """pi(a|s) of stacked one-layer policies: [K, S, A]."""
    logits = kernel.astype(float) + bias[:, None, :]
    exponential = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


POLICY_MEAN = Aggregator(policy_mean)
