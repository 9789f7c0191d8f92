"""The interface of aggregators, and how a round uses them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.registries import AGGREGATORS
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import NO_EXTRA, ClientIds, ClientUpdates, Extra, Params, Vector
from fedpohcs.server.aggregation.robust import Merged, Rows
from fedpohcs.server.parts import from_parts, from_vector, parts_of, rows_of, scaled_change, vector_of, weight_parts


class SoundUpdates(NamedTuple):
    """The sound updates of a round, by ascending id, as an aggregator sees them."""

    params: Params  # every leaf has a leading axis K
    weight: Vector  # [K], summing to one
    previous: Params  # the global parameters from which all of them were trained
    settings: FederationConfig = FederationConfig()
    client: ClientIds = np.arange(0)  # [K] who sent them; empty where nobody asks
    sent: Extra = NO_EXTRA  # arrays that the server sent to them with the policy


class Combination(NamedTuple):
    """One policy, and how much of each update is in it."""

    params: Params
    counted: Vector | None = None  # [K], from 0 to 1; None: all of every update


class Aggregator(NamedTuple):
    """A rule that combines updates into one policy."""

    combine: Callable[[SoundUpdates], Combination]
    least: Callable[[int], int] = lambda byzantine: 1  # updates needed to tolerate this many Byzantine clients


class Aggregation(NamedTuple):
    """The new global parameters, the clients whose updates were left out, and facts about each update."""

    params: Params
    rejected: ClientIds
    info: Mapping[str, Vector] = {}  # each [K]
    sound: SoundUpdates | None = None  # the updates that were combined; None: too few, and the parameters are unchanged


def aggregate(
    previous: Params,
    updates: ClientUpdates,
    weight: Vector,
    settings: FederationConfig,
    total: float | None = None,
    extra: Extra = NO_EXTRA,
) -> Aggregation:
    """Combine the sound updates. If there are fewer than the aggregator needs, the policy stays as it was.

    Args:
        previous: global parameters of this round.
        updates: of the selected clients, as `server.replies.sound_updates` gives them.
        weight: of each update, finite and not normalised; 0 leaves it out.
        settings: which aggregator, and how many Byzantine clients it must tolerate.
        total: what the change of the policy is divided by in place of the sum of the weights; see `Selection.total`.
        extra: arrays that the server sent to the clients with the policy.
    """
    aggregator = AGGREGATORS[settings.aggregator]
    is_sound = weight > 0
    rows = np.flatnonzero(is_sound)
    if len(rows) < max(1, aggregator.least(settings.tolerated_liars)):
        return Aggregation(previous, updates.client)
    rows = rows[np.argsort(updates.client[rows])]  # so that no result depends on the order of arrival
    normalised = weight[rows] / weight[rows].sum()
    params, client = take_clients(updates.params, rows), updates.client[rows]
    sound = SoundUpdates(params, normalised, previous, settings, client, extra)
    params, counted = aggregator.combine(sound)
    if total is not None:
        params = scaled_change(previous, params, weight[rows].sum() / total, weight_parts(params))
    info = {}
    if counted is not None:
        info["counted"] = np.zeros(len(weight))
        info["counted"][rows] = counted
    return Aggregation(params, updates.client[~is_sound], info, sound)


Rule = Callable[[Rows, Vector], Merged]
"""Merges the updates [K, P] of one part, given the previous parameters [P] of that part."""


def by_part(updates: SoundUpdates, rule: Rule) -> Combination:
    """Merge every part of the parameters by the same rule, each as one vector."""
    previous, merged, shares, sizes = parts_of(updates.previous), {}, [], []
    for name, stacked in parts_of(updates.params).items():
        rows, like = rows_of(stacked), take_clients(stacked, 0)
        if not rows.size:
            merged[name] = like
            continue
        vector, share = rule(rows, vector_of(previous[name]))
        merged[name] = from_vector(vector, like)
        shares.append(share)
        sizes.append(len(vector))
    counted = np.average(shares, axis=0, weights=sizes) if shares else None
    return Combination(from_parts(merged, updates.params), counted)
