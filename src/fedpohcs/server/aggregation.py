"""From the clients' updates to one global policy. An aggregator is one function and one line in `AGGREGATORS`.

Robust aggregators bound what a few lying clients can do. They count every update alike: the steps behind an update are
what its sender says. They treat policy, critic and KL coefficient apart, because their scales do not compare.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.registries import AGGREGATORS
from fedpohcs.core.trees import finite_clients
from fedpohcs.core.types import ClientIds, ClientUpdates, Params, Vector
from fedpohcs.server.robust import Merged, Rows, clipped_changes, most_central, nearest_to_centre, without_extremes


class Arrived(NamedTuple):
    """The sound updates of a round, by ascending id, as an aggregator sees them."""

    params: Params  # every leaf has a leading axis K
    weight: Vector  # [K], summing to one
    previous: Params  # from which all of them were trained
    settings: FederationConfig = FederationConfig()


class Combined(NamedTuple):
    """One policy, and how much of each update is in it."""

    params: Params
    counted: Vector | None = None  # [K], from 0 to 1; None: all of all


class Aggregator(NamedTuple):
    """How updates become one policy."""

    combine: Callable[[Arrived], Combined]
    least: Callable[[int], int] = lambda liars: 1  # updates it takes to tolerate so many liars


class Aggregated(NamedTuple):
    """The new global parameters, whose update was left out, and what there is to know about each update."""

    params: Params
    rejected: ClientIds
    info: Mapping[str, Vector] = {}  # each [K]


def parameter_mean(arrived: Arrived) -> Combined:
    """theta <- sum_k q_k theta_k, leaf by leaf. Paper: Alg. 1 and 2, last line of a round."""
    return Combined(_mean(arrived.params, arrived.weight))


def policy_mean(arrived: Arrived) -> Combined:
    """pi(a|s) <- sum_k q_k pi_k(a|s) for tabular policies; the rest is averaged. Paper: Alg. 3, l. 14.

    A tabular policy is one softmax layer on one-hot states, so its logits of state s are kernel[s] + bias.
    """
    averaged = _mean(arrived.params, arrived.weight)
    (layer,) = arrived.params.policy.layers
    probability = np.tensordot(arrived.weight, tabular_policy(layer.kernel, layer.bias), axes=1)
    mixed = type(layer)(np.log(probability).astype(layer.kernel.dtype), np.zeros_like(averaged.policy.layers[0].bias))
    return Combined(averaged._replace(policy=averaged.policy._replace(layers=(mixed,))))


def _mean(stacked: Params, weight: Vector) -> Params:
    return jax.tree.map(lambda x: np.tensordot(weight, x, axes=1).astype(x.dtype), stacked)


def tabular_policy(kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """pi(a|s) of stacked one-layer policies: [K, S, A]."""
    logits = kernel.astype(float) + bias[:, None, :]
    exponential = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


def coordinate_median(arrived: Arrived) -> Combined:
    """Robust: the median of every single weight (Yin et al., 2018)."""
    return _by_part(arrived, lambda rows, start: without_extremes(rows, (len(rows) - 1) // 2))


def trimmed_mean(arrived: Arrived) -> Combined:
    """Robust: the mean of every single weight without its lowest and highest `tolerated_liars` (Yin et al., 2018)."""
    return _by_part(arrived, lambda rows, start: without_extremes(rows, arrived.settings.tolerated_liars))


def phocas(arrived: Arrived) -> Combined:
    """Robust: the mean of every single weight without what is farthest from its trimmed mean (Xie et al., 2018)."""
    return _by_part(arrived, lambda rows, start: nearest_to_centre(rows, arrived.settings.tolerated_liars))


def krum(arrived: Arrived) -> Combined:
    """Robust: the one update that is closest to its nearest neighbours (Blanchard et al., 2017)."""
    return _by_part(arrived, lambda rows, start: most_central(rows, arrived.settings.tolerated_liars, 1))


def multi_krum(arrived: Arrived) -> Combined:
    """Robust: the mean of all updates but the `tolerated_liars` that are farthest from their nearest neighbours."""
    liars = arrived.settings.tolerated_liars
    return _by_part(arrived, lambda rows, start: most_central(rows, liars, len(rows) - liars))


def norm_clip(arrived: Arrived) -> Combined:
    """Robust: the mean, after changes longer than `change_limit` times the median change are scaled down to that."""
    return _by_part(arrived, lambda rows, start: clipped_changes(rows, start, arrived.settings.change_limit))


Rule = Callable[[Rows, Vector], Merged]  # of the updates, and of what they were trained from


def _by_part(arrived: Arrived, rule: Rule) -> Combined:
    """Merge policy, critic and KL coefficient by the same rule, each as one vector."""
    parts, shares, sizes = [], [], []
    for stacked, previous in zip(arrived.params, arrived.previous, strict=True):
        leaves, tree = jax.tree.flatten(stacked)
        rows = np.concatenate([np.reshape(x, (len(x), -1)).astype(float) for x in leaves], axis=1)
        start = np.concatenate([np.ravel(x).astype(float) for x in jax.tree.leaves(previous)])
        merged, share = rule(rows, start)
        ends = np.cumsum([x[0].size for x in leaves])
        pieces = zip(np.split(merged, ends[:-1]), leaves, strict=True)
        parts.append(jax.tree.unflatten(tree, [piece.reshape(x.shape[1:]).astype(x.dtype) for piece, x in pieces]))
        shares.append(share)
        sizes.append(len(merged))
    return Combined(type(arrived.params)(*parts), np.average(shares, axis=0, weights=sizes))


PARAMETER_MEAN = Aggregator(parameter_mean)
POLICY_MEAN = Aggregator(policy_mean)
COORDINATE_MEDIAN = Aggregator(coordinate_median, lambda liars: 2 * liars + 1)
TRIMMED_MEAN = Aggregator(trimmed_mean, lambda liars: 2 * liars + 1)
PHOCAS = Aggregator(phocas, lambda liars: 2 * liars + 1)
KRUM = Aggregator(krum, lambda liars: 2 * liars + 3)
MULTI_KRUM = Aggregator(multi_krum, lambda liars: 2 * liars + 3)
NORM_CLIP = Aggregator(norm_clip, lambda liars: 2 * liars + 1)


def aggregate(previous: Params, updates: ClientUpdates, weight: Vector, settings: FederationConfig) -> Aggregated:
    """Combine the updates that are finite; with too few for the aggregator, none counts and the policy stays.

    Args:
        previous: global parameters of this round.
        updates: of the selected clients.
        weight: of each update, not normalised; 0 leaves it out.
        settings: which aggregator, and how many liars it must tolerate.
    """
    aggregator = AGGREGATORS[settings.aggregator]
    finite = finite_clients(updates.params) & np.isfinite(weight) & (weight > 0)
    sound = np.flatnonzero(finite)
    if len(sound) < max(1, aggregator.least(settings.tolerated_liars)):
        return Aggregated(previous, updates.client)
    sound = sound[np.argsort(updates.client[sound])]  # so that no result depends on the order of arrival
    stacked = jax.tree.map(lambda x: np.asarray(x)[sound], updates.params)
    params, counted = aggregator.combine(Arrived(stacked, weight[sound] / weight[sound].sum(), previous, settings))
    info = {}
    if counted is not None:
        info["counted"] = np.zeros(len(weight))
        info["counted"][sound] = counted
    return Aggregated(params, updates.client[~finite], info)
