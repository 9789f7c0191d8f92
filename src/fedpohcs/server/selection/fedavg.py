"""FedAvg's selection: clients at random, or all of them (McMahan et al., 2017)."""

from typing import Any

import numpy as np

from fedpohcs.core.types import CandidateMetrics, Selection
from fedpohcs.server.selection.base import Question, Selector, ask_nobody, choose_at_random


def fedavg() -> Selector:
    """K candidates at random: the unbiased baseline (McMahan et al., 2017)."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        del metrics
        return Selection(choose_at_random(question, question.candidates)), state

    return Selector(select, asks=ask_nobody)


def full() -> Selector:
    """Every client, every round: full participation."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        del metrics
        return Selection(np.sort(question.candidates)), state

    return Selector(select, asks=ask_nobody, everyone=True)
