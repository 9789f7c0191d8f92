"""Clients drawn in proportion to what they add to the mean return, instead of those with the largest score.

Local training makes updates whose length says little about how much a client has to gain: advantages are standardised,
and the steps of the policy are kept small. Drawing clients in proportion to the norm of the gradient of their return,
with equal weights, puts the lost factor back on average, and with the least variance. See
docs/what-averaging-aims-at.md.
"""

from typing import Any

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector
from fedpohcs.server.selection.base import Question, Selector, choose
from fedpohcs.server.selection.fedpohcs import heterogeneity_scores
from fedpohcs.server.selection.memory import Known, ask_who_is_not_up_to_date, remember
from fedpohcs.server.selection.sampling import draw, inclusion_probabilities

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
            return Selection(metrics.chosen, weight=np.ones(len(metrics.chosen))), state
        numbers = {GRADIENT: metrics.column(GRADIENT)}
        if metrics.private:
            return first_tickets(question, metrics.client, numbers), state
        return sample(question, metrics.client, GRADIENT, numbers), state

    return Selector(select, requires=frozenset({GRADIENT}), optimiser=OPTIMISER, prefers="low")


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

    The weight of an update is q_n times the score over the inclusion probability. It is the same for all updates,
    except for clients so large that they are always drawn.
    """
    order = np.argsort(clients)  # so that the draw does not depend on the order of the clients
    size = question.weight[clients] * np.nan_to_num(scores[name], nan=0.0, posinf=0.0).clip(min=0.0)
    probability = inclusion_probabilities(size, question.num_selected)
    place = order[draw(probability[order], question.generator)]
    weight = size[place] / probability[place]
    return Selection(clients[place], scores, probability[place], weight if weight.any() else None)


def first_tickets(question: Question, clients: ClientIds, tickets: dict[str, Vector]) -> Selection:
    """The K clients with the smallest lottery tickets, which they drew themselves: in proportion to their numbers.

    A ticket is the logarithm of a waiting time, so that q_n is subtracted as a logarithm. All updates count alike.
    """
    waiting = tickets[GRADIENT] - np.log(question.weight[clients])
    chosen = choose(question, clients, -waiting)
    return Selection(chosen, tickets, weight=np.ones(len(chosen)))
