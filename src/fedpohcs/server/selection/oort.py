"""Oort: clients with much to learn, and clients that have not trained yet (Lai et al., 2021).

A client's statistical utility is |B| sqrt(mean of squared losses over its batch B). The loss of a step here is its
advantage, and the batch an episode: the metric `gradient_scale`. Where time is simulated, a client that takes longer
than is preferred counts less.
"""

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector
from fedpohcs.server.selection.base import Question, Selector
from fedpohcs.server.selection.memory import Known, ask_those_that_trained, remember

UTILITY = "gradient_scale"
EXPLORATION, DECAY, LEAST_EXPLORATION = 0.9, 0.98, 0.3  # share of the K that has not trained yet, falling every round
UNCERTAINTY = 0.1  # factor of log(round) / last round in the bonus of clients that trained long ago
CUT_OFF = 0.95  # clients above this share of the score of the last one needed may be drawn
LARGEST = 0.95  # utilities above this quantile are cut to it
PREFERRED = 0.3  # quantile of the durations of explored candidates beyond which a client is slow
PENALTY = 2.0  # exponent of preferred duration / own duration


def oort() -> Selector:
    """Candidates drawn by utility and time since their last training, and candidates that never trained."""

    def select(question: Question, metrics: CandidateMetrics, state: Known | None) -> tuple[Selection, Known]:
        known = remember(question, metrics, state, UTILITY)
        last = np.zeros(question.num_clients, int) if state is None else state["last"].copy()
        number = 1 if state is None else int(state["round"]) + 1
        clients, score = np.sort(question.candidates), np.full(question.num_clients, np.nan)
        explored = clients[(last[clients] > 0) & ~np.isnan(known[clients])]
        score[explored] = scores(known[explored], last[explored], number)
        if question.seconds is not None:
            score[explored] *= slowness(question.seconds[explored])
        chosen = explore_and_exploit(question, clients, explored, score[explored], number)
        last[chosen] = number
        kept = {"known": known, "trained": chosen, "last": last, "round": np.array(number)}
        return Selection(chosen, {"utility": score[question.candidates]}), kept

    return Selector(select, requires=frozenset({UTILITY}), asks=ask_those_that_trained)


def explore_and_exploit(
    question: Question, clients: ClientIds, explored: ClientIds, score: Vector, number: int
) -> ClientIds:
    """K clients: a share that falls with the number of the round has not trained yet, the others are drawn by score."""
    fresh, size = np.setdiff1d(clients, explored), min(question.num_selected, len(clients))
    share = max(EXPLORATION * DECAY ** (number - 1), LEAST_EXPLORATION)
    count = min(max(round(share * size), size - len(explored)), len(fresh))
    first = question.generator.choice(fresh, count, replace=False) if count else fresh[:0]
    return np.sort(np.append(first, explored[exploit(score, size - count, question.generator)]))


def scores(utility: Vector, last: np.ndarray, number: int) -> Vector:
    """Utility scaled to 0 to 1, plus sqrt(.1 log(round) / last round of training)."""
    if not len(utility):
        return utility
    utility = np.minimum(utility, np.quantile(utility, LARGEST))
    spread = np.ptp(utility)
    scaled = (utility - utility.min()) / spread if spread > 0 else np.ones(len(utility))
    return scaled + np.sqrt(UNCERTAINTY * np.log(number) / last)


def slowness(seconds: Vector) -> Vector:
    """(preferred / own)^2 for clients that take longer than the preferred duration, else 1."""
    if not len(seconds):
        return seconds
    preferred = np.sort(seconds)[min(int(len(seconds) * PREFERRED), len(seconds) - 1)]
    return np.minimum(1.0, preferred / seconds) ** PENALTY


def exploit(score: Vector, number: int, generator: np.random.Generator) -> np.ndarray:
    """So many positions, drawn by score among those that reach most of the score of the last one needed."""
    if number <= 0:
        return np.arange(0)
    needed = np.sort(score)[::-1][number - 1]
    able = np.flatnonzero(score >= CUT_OFF * needed)
    weight = np.maximum(score[able], 1e-9)  # a score of 0 is drawn where no other is left
    return able[generator.choice(len(able), number, replace=False, p=weight / weight.sum())]
