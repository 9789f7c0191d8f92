"""Power-of-Choice: clients with the largest loss, here the lowest return (Cho et al., 2022)."""

import numpy as np

from fedpohcs.core.types import CandidateMetrics, Selection
from fedpohcs.server.selection.base import Question, Selector, by_score, top_k
from fedpohcs.server.selection.memory import Known, ask_those_that_trained, remember

RETURN = "mean_return"


def power_of_choice() -> Selector:
    """The K candidates with the lowest return (Cho et al., 2022)."""
    return by_score("loss", RETURN, lambda question, metrics: {"loss": -metrics.column(RETURN)}, prefers="low")


def cpow_d() -> Selector:
    """The K candidates with the lowest return in a single episode, which is cheap to play (Cho et al., 2022)."""
    return by_score(
        "loss", "episode_return", lambda question, metrics: {"loss": -metrics.column("episode_return")}, prefers="low"
    )


def rpow_d() -> Selector:
    """The K candidates with the lowest return in their last training; those without one first (Cho et al., 2022)."""

    def select(question: Question, metrics: CandidateMetrics, state: Known | None) -> tuple[Selection, Known]:
        known = remember(question, metrics, state, RETURN)
        loss = -known[question.candidates]
        chosen = top_k(question.candidates, np.where(np.isnan(loss), np.inf, loss), question.num_selected)
        return Selection(chosen, {"loss": loss}), {"known": known, "trained": chosen}

    return Selector(select, requires=frozenset({RETURN}), asks=ask_those_that_trained)
