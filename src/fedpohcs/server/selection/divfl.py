"""DivFL: clients whose gradients represent those of all candidates (Balakrishnan et al., 2022)."""

from typing import Any

import numpy as np

from fedpohcs.core.types import CandidateMetrics, Selection, Vector
from fedpohcs.server.selection.base import Question, Selector

GRADIENT = "policy_gradient"


def divfl() -> Selector:
    """The K candidates whose policy gradients represent those of all; each counts for those it represents."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        order = np.argsort(metrics.client)  # so that the lower id wins a tie
        clients, gradient = metrics.client[order], np.asarray(metrics.column(GRADIENT), float)[order]
        distance, weight = squared_distances(gradient), question.weight[clients]
        chosen = np.sort(most_central(distance, weight, question.num_selected))
        nearest = chosen[distance[:, chosen].argmin(axis=1)]
        nearest[chosen] = chosen  # also where another has the same gradient
        counted = np.array([weight[nearest == place].sum() for place in chosen])
        score = np.empty(len(order))
        score[order] = distance[:, chosen].min(axis=1)
        return Selection(clients[chosen], {"distance": score}, weight=counted), state

    return Selector(select, requires=frozenset({GRADIENT}))


def squared_distances(rows: Vector) -> Vector:
    """Squared Euclidean distance of every two rows, [C, C]; exactly 0 for equal rows."""
    return np.array([((rows - row) ** 2).sum(axis=1) for row in rows])


def most_central(distance: Vector, weight: Vector, number: int) -> np.ndarray:
    """Positions of so many rows, taken greedily so that the weighted sum of distances to the nearest one is least.

    Example:
        >>> places = np.array([[0.0], [1.0], [10.0], [11.0], [12.0]])
        >>> most_central(squared_distances(places), np.ones(5), 2).tolist()
        [2, 0]
    """
    chosen: list[int] = []
    nearest = np.full(len(distance), np.inf)
    for _ in range(min(number, len(distance))):
        cost = (weight[:, None] * np.minimum(nearest[:, None], distance)).sum(axis=0)
        cost[chosen] = np.inf
        chosen.append(int(cost.argmin()))
        nearest = np.minimum(nearest, distance[:, chosen[-1]])
    return np.array(chosen, int)
