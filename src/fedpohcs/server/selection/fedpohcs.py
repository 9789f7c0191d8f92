"""FedPOHCS: clients with much to learn in an environment like the others'. Paper: Alg. 3, Eq. (DeltaN)."""

from fedpohcs.core.types import CandidateMetrics, ClientIds, Vector, WeightedAdvantage
from fedpohcs.server.selection.base import Question, Selector, by_score


def fedpohcs() -> Selector:
    """The paper's rule: the K candidates with the largest Delta_n. Paper: Alg. 3."""
    return by_score("selection_metric", "weighted_advantage", table_scores, private=True, prefers="high")


def table_scores(question: Question, metrics: CandidateMetrics) -> dict[str, Vector]:
    """The scores of the candidates' tables; Delta_n alone where tables stay on the clients."""
    if metrics.private:
        return {"selection_metric": metrics.column("selection_metric")}
    return heterogeneity_scores(question, metrics.client, metrics.column("weighted_advantage"))


def heterogeneity_scores(
    question: Question, clients: ClientIds, tables: tuple[WeightedAdvantage, ...]
) -> dict[str, Vector]:
    """Learning potential, heterogeneity and their difference Delta_n, of each client. Paper: Eq. (DeltaN)."""
    from fedpohcs.metrics import comparison as metric  # imports SciPy and Numba, which only tables need

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
