"""A metric of your own, the return of a client's worst episode, and a selector that trains where that is lowest."""

import sys
from collections.abc import Sequence

from fedpohcs.cli import main as fedpohcs
from fedpohcs.core.registries import METRICS, SELECTORS
from fedpohcs.metrics.base import Metric, MetricContext, each
from fedpohcs.metrics.returns import episode_totals
from fedpohcs.server.selection import Selector, by_score


def worst_return(context: MetricContext, client: int) -> float:
    """Return of the worst episode of the client's latest evaluation."""
    returns, _ = episode_totals(context.episodes(client)[-1])
    return returns.min()


def worst_first() -> Selector:
    """The K candidates with the lowest worst return."""
    return by_score("loss", "worst_return", lambda question, metrics: {"loss": -metrics.column("worst_return")})


METRICS["worst_return"] = Metric(each(worst_return), hide="number", prefers="low")
SELECTORS["worst-first"] = worst_first


def main(more: Sequence[str] = ("--rounds", "20", "--out", "runs/own-metric")) -> int:
    """Train with it on the small world. Whatever the command line can do, it can do with this metric too."""
    return fedpohcs(["train", "tabular", "--selector", "worst-first", *more])


if __name__ == "__main__":
    sys.exit(main())
