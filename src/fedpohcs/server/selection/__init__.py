"""Client selection: which candidates train in a round. One file per family of selectors, named as in the literature.

A selector is one function that makes a `Selector`, and one line in `SELECTORS`. Nothing here loads JAX, SciPy or Numba.
"""

from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import Selection
from fedpohcs.server.selection.ablations import heterogeneity_only, potential_only
from fedpohcs.server.selection.base import Question, Scores, Selector, by_score, choose, top_k
from fedpohcs.server.selection.checks import make_selector
from fedpohcs.server.selection.fedavg import fedavg, full
from fedpohcs.server.selection.fedpohcs import fedpohcs, heterogeneity_scores
from fedpohcs.server.selection.gradient_norm import gradient_norm
from fedpohcs.server.selection.one_phase import OnePhaseState, fedpohcs_one_phase
from fedpohcs.server.selection.power_of_choice import power_of_choice
from fedpohcs.server.selection.proportional import gradient_sampling, gradient_sampling_one_phase, potential_sampling

__all__ = [
    "SELECTORS",
    "OnePhaseState",
    "Question",
    "Scores",
    "Selection",
    "Selector",
    "by_score",
    "choose",
    "fedavg",
    "fedpohcs",
    "fedpohcs_one_phase",
    "full",
    "gradient_norm",
    "gradient_sampling",
    "gradient_sampling_one_phase",
    "heterogeneity_only",
    "heterogeneity_scores",
    "make_selector",
    "potential_only",
    "potential_sampling",
    "power_of_choice",
    "top_k",
]
