"""Client selection: who trains this round. A selector is one function and one line in `SELECTORS`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.types import CandidateMetrics, ClientIds, Selection, Vector, WeightedAdvantage


class Question(NamedTuple):
    """The situation in which a selector is asked to choose."""

    candidates: ClientIds  # [C]
    num_selected: int  # K
    num_clients: int  # N
    weight: Vector  # [N] q_n
    generator: np.random.Generator  # of this seed and round


class Selector(NamedTuple):
    """Picks K candidates.

    `requires` names the metrics it reads: only those are measured, and only of the clients that `asks` names.
    """

    select: Callable[[Question, CandidateMetrics, Any], tuple[Selection, Any]]
    requires: frozenset[str] = frozenset()
    init: Callable[[], Any] = lambda: None
    asks: Callable[[Question, Any], ClientIds] = lambda question, state: question.candidates
    everyone: bool = False  # all clients are candidates and all are selected


Scores = Callable[[Question, CandidateMetrics], dict[str, Vector]]


def top_k(clients: ClientIds, score: Vector, k: int) -> ClientIds:
    """The ids of the k largest scores; the lower id wins a tie, a score that is not a number loses to all."""
    score = np.where(np.isnan(score), -np.inf, score)
    return np.sort(clients[np.lexsort((clients, -score))[:k]])


def by_score(name: str, requires: str, scores: Scores) -> Selector:
    """A stateless selector: the K candidates with the largest `scores[name]`."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        values = scores(question, metrics)
        return Selection(top_k(metrics.client, values[name], question.num_selected), values), state

    return Selector(select, requires=frozenset({requires}))


def fedavg() -> Selector:
    """K candidates at random: the unbiased baseline (McMahan et al., 2017)."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        del metrics
        chosen = question.generator.choice(np.sort(question.candidates), question.num_selected, replace=False)
        return Selection(np.sort(chosen)), state

    return Selector(select, asks=lambda question, state: question.candidates[:0])


def full() -> Selector:
    """Every client, every round: full participation."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        del metrics
        return Selection(np.sort(question.candidates)), state

    return Selector(select, asks=lambda question, state: question.candidates[:0], everyone=True)


def power_of_choice() -> Selector:
    """The K candidates with the lowest return (Cho et al., 2022)."""
    return by_score("loss", "mean_return", lambda question, metrics: {"loss": -_known(metrics.mean_return)})


def gradient_norm() -> Selector:
    """The K candidates with the largest policy gradient (Marnissi et al., 2021)."""
    return by_score(
        "gradient_norm", "gradient_norm", lambda question, metrics: {"gradient_norm": _known(metrics.gradient_norm)}
    )


def heterogeneity_scores(
    question: Question, clients: ClientIds, tables: tuple[WeightedAdvantage, ...]
) -> dict[str, Vector]:
    """Learning potential, heterogeneity and their difference Delta_n, of each client. Paper: Eq. (DeltaN)."""
    from fedpohcs.heterogeneity import metric  # SciPy and Numba: only where a table is compared

    stacked = metric.stack_tables(tables)
    potential = metric.learning_potential(stacked)
    heterogeneity = metric.heterogeneity(stacked, question.weight[clients])
    return {
        "selection_metric": potential - heterogeneity,
        "learning_potential": potential,
        "heterogeneity": heterogeneity,
        "similarity": -heterogeneity,
    }


def _table_scores(question: Question, metrics: CandidateMetrics) -> dict[str, Vector]:
    return heterogeneity_scores(question, metrics.client, _known(metrics.weighted_advantage))


def fedpohcs() -> Selector:
    """The paper's rule: the K candidates with the largest Delta_n. Paper: Alg. 3."""
    return by_score("selection_metric", "weighted_advantage", _table_scores)


def heterogeneity_only() -> Selector:
    """Ablation: the K candidates closest to the imaginary MDP, however much they have learned."""
    return by_score("similarity", "weighted_advantage", _table_scores)


def potential_only() -> Selector:
    """Ablation: the K candidates with the largest learning potential, however odd their world."""
    return by_score("learning_potential", "weighted_advantage", _table_scores)


class OnePhaseState(NamedTuple):
    """The server's memory of tables: by client, and whose is to be refreshed next."""

    tables: dict[int, WeightedAdvantage]
    refresh: ClientIds | None  # None: nobody was asked yet


def fedpohcs_one_phase() -> Selector:
    """Delta_n from outdated tables: everyone is asked once, then each only after it has trained. Paper: Sec. 4.3."""

    def asks(question: Question, state: OnePhaseState) -> ClientIds:
        if state.refresh is None:
            return np.arange(question.num_clients)
        unknown = [client for client in question.candidates.tolist() if client not in state.tables]
        return np.union1d(state.refresh, unknown).astype(int)

    def select(question: Question, metrics: CandidateMetrics, state: OnePhaseState) -> tuple[Selection, OnePhaseState]:
        fresh = zip(metrics.client.tolist(), _known(metrics.weighted_advantage), strict=True)
        tables = state.tables | dict(fresh)
        candidates = question.candidates
        scores = heterogeneity_scores(question, candidates, tuple(tables[client] for client in candidates.tolist()))
        chosen = top_k(candidates, scores["selection_metric"], question.num_selected)
        return Selection(chosen, scores), OnePhaseState(tables, chosen)

    return Selector(select, requires=frozenset({"weighted_advantage"}), init=lambda: OnePhaseState({}, None), asks=asks)


def _known(metric: Any) -> Any:
    if metric is None:
        raise RuntimeError("the executor did not measure what the selector requires")
    return metric


SELECTORS: dict[str, Callable[[], Selector]] = {
    "fedavg": fedavg,
    "power-of-choice": power_of_choice,
    "gradient-norm": gradient_norm,
    "fedpohcs": fedpohcs,
    "fedpohcs-one-phase": fedpohcs_one_phase,
    "full": full,
    "heterogeneity-only": heterogeneity_only,
    "potential-only": potential_only,
}
