"""Optimal client sampling: draw in proportion to the length of the update, count it by 1/p (Chen et al., 2022).

All candidates train; each sends the length of its update, and only those that are drawn send the update itself. Of all
draws of K on average without bias this has the least variance. The publication draws every client independently; here
systematic sampling draws with the same probabilities, and never more than K.
"""

from typing import Any

import numpy as np

from fedpohcs.core.types import CandidateMetrics, Selection, Vector
from fedpohcs.server.selection.base import Question, Selector
from fedpohcs.server.selection.sampling import draw_up_to, inclusion_probabilities

NORM = "update_norm"
ADJUSTMENTS = 4  # of the approximate probabilities, as published


def optimal_sampling() -> Selector:
    """K candidates drawn in proportion to the length of their update, each counted by 1/p (Chen et al., 2022)."""
    return _by_update_norm(inclusion_probabilities)


def optimal_sampling_approximate() -> Selector:
    """optimal-sampling with approximate probabilities, which need only sums of lengths (Chen et al., 2022)."""
    return _by_update_norm(approximate_probabilities)


def approximate_probabilities(size: Vector, number: int) -> Vector:
    """Probabilities in proportion to `size`, at most 1 each, whose sum approaches `number` from below.

    Example:
        >>> approximate_probabilities(np.array([1.0, 1.0, 2.0, 12.0]), 2).tolist()
        [0.25, 0.25, 0.5, 1.0]
    """
    size = np.where(np.isfinite(size) & (size > 0), size, 0.0)
    if not size.any():
        return inclusion_probabilities(size, number)
    probability = np.minimum(1.0, number * size / size.sum())
    for _ in range(ADJUSTMENTS):
        below = probability < 1
        rest = probability[below].sum()
        if rest == 0:
            break
        factor = (number - len(size) + below.sum()) / rest
        probability[below] = np.minimum(1.0, factor * probability[below])
        if factor <= 1:
            break
    return probability


def _by_update_norm(probabilities: Any) -> Selector:
    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        clients, weight, norm = metrics.client, question.weight[metrics.client], metrics.column(NORM)
        order = np.argsort(clients)  # so that the draw does not depend on the order of the clients
        probability = probabilities(weight[order] * norm[order], min(question.num_selected, len(clients)))
        drawn = draw_up_to(probability, question.generator)
        chosen = clients[order[drawn]]
        return Selection(chosen, {NORM: norm}, probability[drawn], total=float(weight.sum())), state

    return Selector(select, requires=frozenset({NORM}))
