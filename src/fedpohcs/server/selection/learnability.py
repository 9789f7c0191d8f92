"""Learnability: clients whose episodes differ most, so that there is something to learn from (Tzannetos et al., 2023).

For episodes that succeed with probability p or fail, the variance is p (1 - p): largest where the policy succeeds in
half of them, zero where a task is solved or out of reach.
"""

from fedpohcs.server.selection.base import Selector, by_score


def learnability() -> Selector:
    """The K candidates with the largest variance of the return over episodes (Tzannetos et al., 2023)."""
    return by_score(
        "learnability", "return_std", lambda question, metrics: {"learnability": metrics.column("return_std") ** 2}
    )
