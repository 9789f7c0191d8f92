"""Clients drawn in proportion to what they add to the mean return, instead of those with the largest score.

Local training makes updates whose length says little about how much a client has to gain: advantages are standardised,
and the steps of the policy are kept small. Drawing clients in proportion to the norm of the gradient of their return,
with equal weights, puts the lost factor back on average, and with the least variance. See
docs/what-averaging-aims-at.md.
"""

from typing import Any

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector
from fedpohcs.server.selection.base import Question, Selector
from fedpohcs.server.selection.fedpohcs import heterogeneity_scores
from fedpohcs.server.selection.memory import Known, ask_who_is_not_up_to_date, remember
from fedpohcs.server.selection.sampling import draw_in_proportion

TABLE, LENGTH, GRADIENT = "weighted_advantage", "episode_length", "return_gradient"
OPTIMISER = "momentum"


def potential_sampling() -> Selector:
    """K candidates drawn in proportion to episode length times learning potential ||D_n A_n||_F, and momentum."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        scores = heterogeneity_scores(question, metrics.client, metrics.column(TABLE))
        scores["episode_potential"] = metrics.column(LENGTH) * scores["learning_potential"]
        return sample(question, metrics.client, "episode_potential", scores), state

    return Selector(select, requires=frozenset({TABLE, LENGTH}), optimiser=OPTIMISER)


def gradient_sampling() -> Selector:
    """K candidates drawn in proportion to the norm of the gradient of their return, one number each, and momentum."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        if metrics.chosen is not None:
            return Selection(metrics.chosen, weight=_unless_zero(metrics.chosen_weight)), state
        return sample(question, metrics.client, GRADIENT, {GRADIENT: metrics.column(GRADIENT)}), state

    return Selector(select, requires=frozenset({GRADIENT}), optimiser=OPTIMISER, prefers="proportional")


def gradient_sampling_one_phase() -> Selector:
    """gradient-sampling from outdated numbers: clients send one in round 1, then only after they have trained."""

    def select(question: Question, metrics: CandidateMetrics, state: Known | None) -> tuple[Selection, Known]:
        known = remember(question, metrics, state, GRADIENT)
        scores = {GRADIENT: known[question.candidates]}
        selection = sample(question, question.candidates, GRADIENT, scores)
        return selection, {"known": known, "trained": selection.client}

    return Selector(select, requires=frozenset({GRADIENT}), asks=ask_who_is_not_up_to_date, optimiser=OPTIMISER)


def sample(question: Question, clients: ClientIds, name: str, scores: dict[str, Vector]) -> Selection:
    """K of the clients, drawn in proportion to q_n times the score of this name.

    The weight of an update is q_n times the score over the inclusion probability.
    """
    order = np.argsort(clients)  # so that the draw does not depend on the order of the clients
    size = question.weight[clients] * np.nan_to_num(scores[name], nan=0.0, posinf=0.0).clip(min=0.0)
    drawn = draw_in_proportion(size[order], question.num_selected, question.generator)
    return Selection(clients[order[drawn.place]], scores, drawn.probability, _unless_zero(drawn.weight))


def _unless_zero(weight: Vector | None) -> Vector | None:
    """The weights, or None if nobody has a size: then updates count as the config says."""
    return weight if weight is not None and weight.any() else None
