"""Power-of-Choice: clients with the largest loss, here the lowest return (Cho et al., 2022)."""

from fedpohcs.server.selection.base import Selector, by_score


def power_of_choice() -> Selector:
    """The K candidates with the lowest return (Cho et al., 2022)."""
    return by_score(
        "loss", "mean_return", lambda question, metrics: {"loss": -metrics.column("mean_return")}, prefers="low"
    )
