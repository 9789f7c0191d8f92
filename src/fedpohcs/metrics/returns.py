"""Metrics of the returns and lengths of episodes."""

import math

import numpy as np

from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import ClientIds, Vector
from fedpohcs.metrics.base import Metric, MetricContext, each
from fedpohcs.metrics.episodes import first_steps, in_order


def mean_return(context: MetricContext, clients: ClientIds) -> Vector:
    """Mean undiscounted return of the latest evaluation."""
    return context.latest_returns(clients)


def episode_return(context: MetricContext, client: int) -> float:
    """Undiscounted return of a single episode of the latest evaluation, the first."""
    returns, _ = _totals(context, client)
    return float(returns[0]) if len(returns) else math.nan


def return_std(context: MetricContext, client: int) -> float:
    """Standard deviation of the undiscounted return over the episodes of the latest evaluation."""
    returns, _ = _totals(context, client)
    return float(returns.std()) if len(returns) else math.nan


def episode_length(context: MetricContext, client: int) -> float:
    """Mean number of steps of the episodes of the latest evaluation."""
    _, lengths = _totals(context, client)
    return float(lengths.mean()) if len(lengths) else math.nan


def _totals(context: MetricContext, client: int) -> tuple[Vector, Vector]:
    return episode_totals(context.episodes(client)[-1])


def episode_totals(trajectory: Trajectory) -> tuple[Vector, Vector]:
    """Return and length of each recorded episode."""
    steps = first_steps(in_order(trajectory), None)
    if not len(steps.reward):
        return np.empty(0), np.empty(0)
    end = np.flatnonzero(steps.last) + 1
    begin = np.concatenate(([0], end[:-1]))
    return np.add.reduceat(steps.reward.astype(np.float64), begin), (end - begin).astype(np.float64)


MEAN_RETURN = Metric(mean_return, reads="returns", hide="number", prefers="low")
EPISODE_RETURN = Metric(each(episode_return), hide="number", prefers="low")
RETURN_STD = Metric(each(return_std), hide="number", prefers="high")
EPISODE_LENGTH = Metric(each(episode_length), hide="number", prefers="high")
