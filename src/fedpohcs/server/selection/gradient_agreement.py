"""Gradient agreement: clients whose gradient points where those of the others do."""

import numpy as np

from fedpohcs.core.types import CandidateMetrics, Vector
from fedpohcs.server.selection.base import Question, Selector, by_score

GRADIENT = "policy_gradient"


def gradient_agreement() -> Selector:
    """The K candidates along whose policy gradient the others gain most: <g_n, mean of the others> / ||g_n||."""
    return by_score("agreement", GRADIENT, agreement_scores)


def agreement_scores(question: Question, metrics: CandidateMetrics) -> dict[str, Vector]:
    """How fast the mean surrogate of the other candidates grows along the direction of each candidate's gradient."""
    gradient = np.asarray(metrics.column(GRADIENT), float)
    weight = question.weight[metrics.client][:, None]
    others = (weight * gradient).sum(axis=0) - weight * gradient
    share = weight.sum() - weight
    mean = np.divide(others, share, out=np.zeros_like(others), where=share > 0)
    norm = np.linalg.norm(gradient, axis=1)
    product = (gradient * mean).sum(axis=1)
    return {"agreement": np.divide(product, norm, out=np.zeros(len(norm)), where=norm > 0), "gradient_norm": norm}
