"""Clustered sampling: one client from each of K groups of clients with similar updates (Fraboni et al., 2021, Alg. 2).

The groups are made anew in every round from the latest update of each client, which the server has anyway. Every client
is drawn as often on average as without groups, but two similar clients rarely in the same round.
"""

from typing import Any

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientUpdates, Params, Selection, Vector
from fedpohcs.server.parts import rows_of, vector_of
from fedpohcs.server.selection.base import Question, Selector, ask_nobody

Updates = dict[int, Vector]
"""By client: the latest change of the policy's weights."""


def clustered_sampling() -> Selector:
    """One candidate from each of K groups of equal weight, made by Ward's method from the angles of latest updates."""

    def select(question: Question, metrics: CandidateMetrics, state: Updates) -> tuple[Selection, Updates]:
        del metrics
        clients = np.sort(question.candidates)
        weight = question.weight[clients] / question.weight[clients].sum()
        groups = equal_groups(angles(clients.tolist(), state), weight, min(question.num_selected, len(clients)))
        drawn = [question.generator.choice(clients, p=group / group.sum()) for group in groups]
        chosen, times = np.unique(drawn, return_counts=True)
        return Selection(chosen, weight=times.astype(float)), state

    return Selector(select, init=dict, asks=ask_nobody, observe=observe)


def observe(state: Updates, updates: ClientUpdates, previous: Params) -> Updates:
    """The state with the updates of a round."""
    rows = rows_of(updates.params.policy) - vector_of(previous.policy)
    return state | {client: rows[place] for place, client in enumerate(updates.client.tolist()) if updates.steps[place]}


def angles(clients: list[int], updates: Updates) -> Vector:
    """Angles between the latest updates of every two clients; a right angle to a client without one, 0 between two."""
    size = next((len(row) for row in updates.values()), 0)
    rows = np.array([updates.get(client, np.zeros(size)) for client in clients])
    norm = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(norm > 0, norm, 1.0)[:, None]
    angle = np.arccos(np.clip(unit @ unit.T, -1.0, 1.0))
    angle[np.ix_(norm == 0, norm == 0)] = 0.0
    np.fill_diagonal(angle, 0.0)
    return angle


def equal_groups(distance: Vector, weight: Vector, number: int) -> Vector:
    """How much of each client is in each of `number` groups of weight 1 / number, [number, C].

    The heaviest clusters become groups; what is in none fills them up, so a client may belong to several groups.
    """
    share = number * weight  # a group has room for 1
    clusters = sorted(_clusters(distance, share, number), key=lambda cluster: (-share[cluster].sum(), cluster[0]))
    groups, left = np.zeros((number, len(weight))), share.copy()
    for group, cluster in zip(groups, clusters, strict=False):
        _fill(group, left, cluster)
    for group in groups:
        _fill(group, left, np.concatenate(clusters))
    return groups


def _fill(group: Vector, left: Vector, clients: np.ndarray) -> None:
    """Move what is left of these clients into the group, as far as it has room."""
    for client in clients.tolist():
        moved = min(left[client], 1.0 - group.sum())
        if moved > 1e-12:
            group[client] += moved
            left[client] -= moved


def _clusters(distance: Vector, share: Vector, number: int) -> list[np.ndarray]:
    """Ward's clusters, at least `number` and as few as leave none heavier than a group, or single clients."""
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    count = len(share)
    if count == 1:
        return [np.arange(1)]
    labels = cut_tree(linkage(squareform(distance, checks=False), "ward"))  # a column per merge, from C clusters to 1
    for clusters in range(number, count):
        label: Any = labels[:, count - clusters]
        if np.bincount(label, share).max() <= 1 + 1e-9:
            return [np.flatnonzero(label == one) for one in range(clusters)]
    return [np.array([client]) for client in range(count)]
