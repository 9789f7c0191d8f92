"""A selector of your own: Delta_n mixed with fairness, so that clients that trained less are preferred."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpohcs.cli import main as fedpohcs
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import CandidateMetrics
from fedpohcs.server.selection import Question, Selection, Selector, heterogeneity_scores, top_k

FAIRNESS = 0.5  # 0: only Delta_n counts; 1: only how often a client has trained


def ranks(values: np.ndarray) -> np.ndarray:
    """0 for the smallest value, up to 1 for the largest; equal values share a rank."""
    return np.searchsorted(np.sort(values), values) / max(len(values) - 1, 1)


def fair_fedpohcs() -> Selector:
    """The K candidates with the best mix of a large Delta_n and few trainings so far."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        scores = heterogeneity_scores(question, metrics.client, metrics.column("weighted_advantage"))
        trainings = np.array([state.get(client, 0) for client in metrics.client.tolist()])
        mix = (1 - FAIRNESS) * ranks(scores["selection_metric"]) + FAIRNESS * ranks(-trainings)
        chosen = top_k(metrics.client, mix, question.num_selected)
        counted = {client: state.get(client, 0) + 1 for client in chosen.tolist()}
        return Selection(chosen, {**scores, "trainings": trainings, "mix": mix}), {**state, **counted}

    return Selector(select, requires=frozenset({"weighted_advantage"}), init=dict)


SELECTORS["fair-fedpohcs"] = fair_fedpohcs


def main(more: Sequence[str] = ("--rounds", "20", "--out", "runs/own-selector")) -> int:
    """Compare it on the small world. Every command accepts it, as it does the built-in ones."""
    return fedpohcs(["compare", "tabular", "--selectors", "fedavg,fedpohcs,fair-fedpohcs", "--seeds", "0", *more])


if __name__ == "__main__":
    sys.exit(main())
