"""Delta_n against the mean of the others. In the paper's Delta_n a candidate is part of the mean itself."""

import numpy as np

from fedpohcs.core.types import CandidateMetrics, Vector
from fedpohcs.server.selection.base import Question, Selector, by_score
from fedpohcs.server.selection.fedpohcs import table_scores


def leave_one_out() -> Selector:
    """The K candidates with the largest Delta_n, compared with the mean of the other candidates."""
    return by_score("leave_one_out", "weighted_advantage", leave_one_out_scores)


def leave_one_out_scores(question: Question, metrics: CandidateMetrics) -> dict[str, Vector]:
    """||x_n|| - ||x_n - y_n||, where x_n = D_n A_n and y_n is the mean of the x_k of the other candidates.

    With q_n summing to 1 over the candidates, x_n - y_n = (x_n - sum_k q_k x_k) / (1 - q_n): the paper's heterogeneity
    with the share of the client itself taken out.
    """
    scores = table_scores(question, metrics)
    weight = question.weight[metrics.client]
    others = 1 - weight / weight.sum()
    far = np.divide(scores["heterogeneity"], others, out=np.zeros(len(others)), where=others > 0)
    return {"leave_one_out": scores["learning_potential"] - far, **scores}
