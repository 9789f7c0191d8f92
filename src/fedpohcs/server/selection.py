"""Client selection: who trains this round. A selector is one function and one line in `SELECTORS`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.registries import SELECTORS  # noqa: F401 - public here, too
from fedpohcs.core.types import CandidateMetrics, ClientIds, Selection, Vector, WeightedAdvantage


class Question(NamedTuple):
    """The situation in which a selector is asked to choose."""

    candidates: ClientIds  # [C]
    num_selected: int  # K
    num_clients: int  # N
    weight: Vector  # [N] q_n
    generator: np.random.Generator  # of this seed and round
    compared_pairs: str = "shared"  # on which tables are compared: "shared" by at least two candidates, or "all"
    table_clip: float | None = None  # tables are scaled down to so many times their median norm; None: they are not

    def among(self, candidates: ClientIds) -> "Question":
        """The same question about fewer candidates, of which perhaps fewer than K are left."""
        return self._replace(candidates=candidates, num_selected=min(self.num_selected, len(candidates)))


class Selector(NamedTuple):
    """Picks K candidates.

    `requires` names the metrics it reads: only those are measured, and only of the clients that `asks` names.
    """

    select: Callable[[Question, CandidateMetrics, Any], tuple[Selection, Any]]
    requires: frozenset[str] = frozenset()
    init: Callable[[], Any] = lambda: None
    asks: Callable[[Question, Any], ClientIds] = lambda question, state: question.candidates
    everyone: bool = False  # all clients are candidates and all are selected
    private: bool = False  # of the tables it needs Delta_n alone, and so it works where they never leave the clients


Scores = Callable[[Question, CandidateMetrics], dict[str, Vector]]


def top_k(clients: ClientIds, score: Vector, k: int) -> ClientIds:
    """The ids of the k largest scores; the lower id wins a tie, a score that is not a number loses to all."""
    score = np.where(np.isnan(score), -np.inf, score)
    return np.sort(clients[np.lexsort((clients, -score))[:k]])


def choose(question: Question, clients: ClientIds, score: Vector) -> ClientIds:
    """The K clients with the largest score; K at random where none has a score."""
    if np.isnan(score).all():
        return _at_random(question, clients)
    return top_k(clients, score, question.num_selected)


def _at_random(question: Question, clients: ClientIds) -> ClientIds:
    size = min(question.num_selected, len(clients))  # a network may lose candidates
    return np.sort(question.generator.choice(np.sort(clients), size, replace=False))


def by_score(name: str, requires: str, scores: Scores, *, private: bool = False) -> Selector:
    """A stateless selector: the K candidates with the largest `scores[name]`."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        values = scores(question, metrics)
        return Selection(choose(question, metrics.client, values[name]), values), state

    return Selector(select, requires=frozenset({requires}), private=private)


def fedavg() -> Selector:
    """K candidates at random: the unbiased baseline (McMahan et al., 2017)."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        del metrics
        return Selection(_at_random(question, question.candidates)), state

    return Selector(select, asks=lambda question, state: question.candidates[:0])


def full() -> Selector:
    """Every client, every round: full participation."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        del metrics
        return Selection(np.sort(question.candidates)), state

    return Selector(select, asks=lambda question, state: question.candidates[:0], everyone=True)


def power_of_choice() -> Selector:
    """The K candidates with the lowest return (Cho et al., 2022)."""
    return by_score("loss", "mean_return", lambda question, metrics: {"loss": -metrics.column("mean_return")})


def gradient_norm() -> Selector:
    """The K candidates with the largest policy gradient (Marnissi et al., 2021)."""
    return by_score(
        "gradient_norm", "gradient_norm", lambda question, metrics: {"gradient_norm": metrics.column("gradient_norm")}
    )


def heterogeneity_scores(
    question: Question, clients: ClientIds, tables: tuple[WeightedAdvantage, ...]
) -> dict[str, Vector]:
    """Learning potential, heterogeneity and their difference Delta_n, of each client. Paper: Eq. (DeltaN)."""
    from fedpohcs.metrics import comparison as metric  # SciPy and Numba: only where a table is compared

    stacked, scale = metric.stack_tables(tables, question.compared_pairs), {}
    if question.table_clip is not None:
        stacked, scale["table_scale"] = metric.clip_rows(stacked, question.table_clip)
    potential = metric.learning_potential(stacked)
    heterogeneity = metric.heterogeneity(stacked, question.weight[clients])
    return {
        "selection_metric": potential - heterogeneity,
        "learning_potential": potential,
        "heterogeneity": heterogeneity,
        "similarity": -heterogeneity,
        **scale,
    }


def _table_scores(question: Question, metrics: CandidateMetrics) -> dict[str, Vector]:
    if metrics.private:
        return {"selection_metric": metrics.column("selection_metric")}
    return heterogeneity_scores(question, metrics.client, metrics.column("weighted_advantage"))


def fedpohcs() -> Selector:
    """The paper's rule: the K candidates with the largest Delta_n. Paper: Alg. 3."""
    return by_score("selection_metric", "weighted_advantage", _table_scores, private=True)


def heterogeneity_only() -> Selector:
    """Ablation: the K candidates closest to the imaginary MDP, however much they have learned."""
    return by_score("similarity", "weighted_advantage", _table_scores)


def potential_only() -> Selector:
    """Ablation: the K candidates with the largest learning potential, however odd their world."""
    return by_score("learning_potential", "weighted_advantage", _table_scores)


class OnePhaseState(NamedTuple):
    """The server's memory: by client its table, or its score where tables are private; and whose is asked for next."""

    tables: dict[int, WeightedAdvantage]
    refresh: ClientIds | None  # None: nobody was asked yet
    scores: Mapping[int, float] = {}


def fedpohcs_one_phase() -> Selector:
    """Delta_n from outdated tables: everyone is asked once, then each only after it has trained. Paper: Sec. 4.3."""

    def asks(question: Question, state: OnePhaseState) -> ClientIds:
        if state.refresh is None:
            return np.arange(question.num_clients)
        known = state.tables.keys() | state.scores.keys()
        unknown = [client for client in question.candidates.tolist() if client not in known]
        return np.union1d(state.refresh, unknown).astype(int)

    def select(question: Question, metrics: CandidateMetrics, state: OnePhaseState) -> tuple[Selection, OnePhaseState]:
        state = _remember(state, metrics)
        candidates = question.candidates
        if metrics.private:
            latest = [state.scores.get(client, np.nan) for client in candidates.tolist()]
            scores = {"selection_metric": np.array(latest)}
        else:
            tables = tuple(state.tables[client] for client in candidates.tolist())
            scores = heterogeneity_scores(question, candidates, tables)
        chosen = choose(question, candidates, scores["selection_metric"])
        return Selection(chosen, scores), state._replace(refresh=chosen)

    requires = frozenset({"weighted_advantage"})
    return Selector(select, requires, lambda: OnePhaseState({}, None), asks, private=True)


def _remember(state: OnePhaseState, metrics: CandidateMetrics) -> OnePhaseState:
    """With what those that were asked have sent; who sent nothing keeps what it had."""
    clients = metrics.client.tolist()
    if metrics.private:
        fresh = zip(clients, metrics.column("selection_metric").tolist(), strict=True)
        return state._replace(
            scores={**state.scores, **{client: score for client, score in fresh if not np.isnan(score)}}
        )
    tables = metrics.column("weighted_advantage")
    return state._replace(tables=state.tables | dict(zip(clients, tables, strict=True)))
