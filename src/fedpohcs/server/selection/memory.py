"""For selectors that remember the latest number of every client, and ask only clients whose number has changed."""

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds
from fedpohcs.server.selection.base import Question

Known = dict[str, np.ndarray]
"""`known` [N]: the latest number of every client, NaN where none has come; `trained`: the clients that trained last."""


def remember(question: Question, metrics: CandidateMetrics, state: Known | None, name: str) -> np.ndarray:
    """The latest number of every client; one that sent none now keeps its old one."""
    known = np.full(question.num_clients, np.nan) if state is None else state["known"].copy()
    if len(metrics.client):
        came = ~np.isnan(metrics.column(name))
        known[metrics.client[came]] = metrics.column(name)[came]
    return known


def ask_those_that_trained(question: Question, state: Known | None) -> ClientIds:
    """The clients that trained in the previous round."""
    return question.candidates[:0] if state is None else state["trained"]


def ask_who_is_not_up_to_date(question: Question, state: Known | None) -> ClientIds:
    """Everyone at first; then the clients that trained last, and candidates without a number."""
    if state is None:
        return np.arange(question.num_clients)
    unknown = question.candidates[np.isnan(state["known"][question.candidates])]
    return np.union1d(state["trained"], unknown)
