"""GradientNorm: clients with the largest gradient (Marnissi et al., 2021)."""

from fedpohcs.server.selection.base import Selector, by_score


def gradient_norm() -> Selector:
    """The K candidates with the largest policy gradient (Marnissi et al., 2021)."""
    return by_score(
        "gradient_norm",
        "gradient_norm",
        lambda question, metrics: {"gradient_norm": metrics.column("gradient_norm")},
        prefers="high",
    )
