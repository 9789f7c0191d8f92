"""AFL: clients drawn by a softmax of their losses (Goetz et al., 2019, *Active Federated Learning*)."""

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector
from fedpohcs.server.selection.base import Question, Selector
from fedpohcs.server.selection.memory import Known, ask_who_is_not_up_to_date, remember

RETURN = "mean_return"
DROPPED = 0.75  # alpha_1: share of the candidates, those with the smallest losses, that the softmax leaves out
SHARPNESS = 0.01  # alpha_2: factor of a loss in the softmax
AT_RANDOM = 0.1  # alpha_3: share of the K that is drawn uniformly


def afl() -> Selector:
    """Candidates drawn in proportion to exp(.01 loss) among those with large losses; a tenth of the K at random."""

    def select(question: Question, metrics: CandidateMetrics, state: Known | None) -> tuple[Selection, Known]:
        known, clients = remember(question, metrics, state, RETURN), np.sort(question.candidates)
        loss = -known
        probability = softmax_of_largest(loss[clients], SHARPNESS, DROPPED)
        chosen = draw_and_explore(question, clients, probability, round(AT_RANDOM * question.num_selected))
        return Selection(chosen, {"loss": loss[question.candidates]}), {"known": known, "trained": chosen}

    return Selector(select, requires=frozenset({RETURN}), asks=ask_who_is_not_up_to_date)


def softmax_of_largest(value: Vector, sharpness: float, dropped: float) -> Vector:
    """Probabilities in proportion to exp(sharpness value), 0 for this share of the values, the smallest, and for NaN.

    Example:
        >>> softmax_of_largest(np.array([0.0, np.nan, 5.0, 5.0]), 1.0, 0.5).tolist()
        [0.0, 0.0, 0.5, 0.5]
    """
    known = np.where(np.isnan(value), -np.inf, value)
    kept = np.zeros(len(value), bool)
    kept[np.argsort(-known, kind="stable")[: len(value) - int(dropped * len(value))]] = True
    kept &= np.isfinite(known)
    if not kept.any():
        return np.zeros(len(value))
    power = np.where(kept, np.exp(sharpness * (np.where(kept, known, 0.0) - known[kept].max())), 0.0)
    return power / power.sum()


def draw_and_explore(question: Question, clients: ClientIds, probability: Vector, at_random: int) -> ClientIds:
    """K clients: `at_random` uniformly, the others by these probabilities, as far as those are above 0."""
    number = min(question.num_selected, len(clients))
    drawn = min(number - at_random, int((probability > 0).sum()))
    first = question.generator.choice(clients, drawn, replace=False, p=probability) if drawn > 0 else clients[:0]
    rest = np.setdiff1d(clients, first)
    return np.sort(np.append(first, question.generator.choice(rest, number - len(first), replace=False)))
