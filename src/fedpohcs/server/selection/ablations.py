"""FedPOHCS with one of its two terms alone. Not in the paper."""

from fedpohcs.server.selection.base import Selector, by_score
from fedpohcs.server.selection.fedpohcs import table_scores


def heterogeneity_only() -> Selector:
    """Ablation: the K candidates closest to the imaginary MDP, whatever their learning potential."""
    return by_score("similarity", "weighted_advantage", table_scores)


def potential_only() -> Selector:
    """Ablation: the K candidates with the largest learning potential, whatever their heterogeneity."""
    return by_score("learning_potential", "weighted_advantage", table_scores)
