"""FedPOHCS without a separate phase for measurements: the server stores tables. Paper: Sec. 4.3."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector, WeightedAdvantage
from fedpohcs.server.selection.base import Question, Selector, choose
from fedpohcs.server.selection.fedpohcs import heterogeneity_scores


class OnePhaseState(NamedTuple):
    """State: the table of each client, or its score with privacy, and the clients to ask in the next round."""

    tables: dict[int, WeightedAdvantage]
    refresh: ClientIds | None  # clients to ask in the next round; None: nobody was asked yet
    scores: Mapping[int, float] = {}


def fedpohcs_one_phase() -> Selector:
    """Delta_n from outdated tables: clients send one in round 1, then only after they have trained. Paper: Sec. 4.3."""

    def select(question: Question, metrics: CandidateMetrics, state: OnePhaseState) -> tuple[Selection, OnePhaseState]:
        state = _remember(state, metrics)
        scores = _latest_scores(question, metrics, state)
        chosen = choose(question, question.candidates, scores["selection_metric"])
        return Selection(chosen, scores), state._replace(refresh=chosen)

    requires = frozenset({"weighted_advantage"})
    return Selector(select, requires, lambda: OnePhaseState({}, None), _asks, private=True)


def _asks(question: Question, state: OnePhaseState) -> ClientIds:
    """All clients at first; later those that trained in the previous round, and candidates without a stored entry."""
    if state.refresh is None:
        return np.arange(question.num_clients)
    known = state.tables.keys() | state.scores.keys()
    unknown = [client for client in question.candidates.tolist() if client not in known]
    return np.union1d(state.refresh, unknown).astype(int)


def _remember(state: OnePhaseState, metrics: CandidateMetrics) -> OnePhaseState:
    """The state with the new answers; a client that sent none keeps its old entry."""
    clients = metrics.client.tolist()
    if metrics.private:
        answers = zip(clients, metrics.column("selection_metric").tolist(), strict=True)
        new = {client: score for client, score in answers if not np.isnan(score)}
        return state._replace(scores={**state.scores, **new})
    tables = dict(zip(clients, metrics.column("weighted_advantage"), strict=True))
    return state._replace(tables=state.tables | tables)


def _latest_scores(question: Question, metrics: CandidateMetrics, state: OnePhaseState) -> dict[str, Vector]:
    """The scores of the candidates from the stored entries."""
    candidates = question.candidates
    if metrics.private:
        return {"selection_metric": np.array([state.scores.get(client, np.nan) for client in candidates.tolist()])}
    tables = tuple(state.tables[client] for client in candidates.tolist())
    return heterogeneity_scores(question, candidates, tables)
