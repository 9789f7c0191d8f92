"""Shared filters: all clients rescale by the same statistics, those of all clients together.

A client acts and learns with the statistics that were pooled last, and counts what it sees apart. After every training
and every evaluation the executor pools the counts of all clients, as if each had sent them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import ClientIds, Params
from fedpohcs.learners.base import Broadcast, IterationResult, Learner, Progress, make_learner
from fedpohcs.learners.filters import Moments
from fedpohcs.learners.wrapped import WrappedLearner


class SharedFilters(NamedTuple):
    """The filters of a client."""

    pooled: Any  # of all clients; constant between two poolings
    own: Any  # of what the client itself has seen


@dataclass(frozen=True)
class FilterSharing(WrappedLearner):
    """Another learner, whose clients rescale observations and rewards by pooled statistics."""

    @property
    def inner(self) -> Learner:
        """The learner that learns."""
        return make_learner(self.config, self.world)

    def within(self, filters: SharedFilters) -> Any:
        """The pooled filters."""
        return filters.pooled

    def init_filters(self) -> Any:
        """Filters that have seen nothing."""
        return SharedFilters(self.inner.init_filters(), self.inner.init_filters())

    def observe(self, filters: Any, trajectory: Trajectory, weight: float = 1.0) -> Any:
        """The filters, of which the client's own are updated with the steps of a trajectory."""
        return filters._replace(own=self.inner.observe(filters.own, trajectory, weight))

    def actor(self, params: Params, filters: Any, schedule: Any, *, training: bool) -> Any:
        """The actor of the learner within, with the pooled filters."""
        return self.inner.actor(params, filters.pooled, schedule, training=training)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """A local iteration with the pooled filters, which stay as they are until they are pooled again."""
        result = self.inner.learn(sent, now._replace(filters=now.filters.pooled), trajectory, draws)
        return result._replace(now=result.now._replace(filters=self.observe(now.filters, trajectory)))


def pool_filters(filters: Any, members: ClientIds) -> Any:
    """The filters of all clients, [N, ...], with pooled ones made of those that the members have themselves.

    Filters that are not shared stay as they are.
    """

    def pool(node: Any) -> Any:
        if not isinstance(node, SharedFilters):
            return node
        pooled = jax.tree.map(
            lambda own, old: _for_all(pooled_moments(own, members), old), node.own, node.pooled, is_leaf=_is_moments
        )
        return node._replace(pooled=pooled)

    return jax.tree.map(pool, filters, is_leaf=lambda node: isinstance(node, SharedFilters))


def known_filters(
    stored: dict[str, np.ndarray], clients: ClientIds, number: int, held_out: int
) -> dict[str, np.ndarray]:
    """Stored filters as `policy.npz` has them: all in the order of ids, or the default one if some never acted.

    Args:
        stored: filters of the clients that have acted.
        clients: whose they are.
        number: of clients that train.
        held_out: of clients that do not, whose ids follow.
    """
    if len(clients) == number + held_out:
        order = np.argsort(clients)
        return {name: rows[order] for name, rows in stored.items()}
    if not stored:
        return {}
    count, mean, variance = (stored[f"filters/{name}"] for name in ("count", "mean", "variance"))
    pooled = pooled_moments(Moments(count, mean, variance * count[:, None]), np.flatnonzero(clients < number))
    variance = pooled.squares / max(pooled.seen, 1)
    return {
        "filters/default_mean": pooled.mean.astype(mean.dtype),
        "filters/default_variance": variance.astype(mean.dtype),
    }


def with_pooled_moments(filters: Any, others: Any) -> Any:
    """Filters of new clients with the statistics of others together, each counted as the mean client of those.

    Shared filters stay as they are, because they are pooled anyway.

    Args:
        filters: of the new clients, with a leading client axis.
        others: of clients that have acted, with a leading client axis.
    """

    def begin(new: Any, old: Any) -> Any:
        if not _is_moments(new):
            return new
        number = len(old.seen)
        seen, mean, squares = pooled_moments(old, np.arange(number))
        return _for_all(Moments(seen / number, mean, squares / number), new)

    return jax.tree.map(
        begin, filters, others, is_leaf=lambda node: _is_moments(node) or isinstance(node, SharedFilters)
    )


def pooled_moments(moments: Moments, members: ClientIds) -> Moments:
    """The moments of the streams of several clients, [N, ...], as if they were one stream (Chan et al., 1983)."""
    seen, means, squares = (np.asarray(x, np.float64)[members] for x in moments)
    share = seen / max(seen.sum(), 1.0)
    mean = np.tensordot(share, means, axes=1)
    between = np.tensordot(seen, (means - mean) ** 2, axes=1)
    return Moments(seen.sum(), mean, squares.sum(axis=0) + between)


def _for_all(moments: Moments, like: Moments) -> Moments:
    """One set of moments for every client, of the types that they have."""
    return Moments(*(np.broadcast_to(one, old.shape).astype(old.dtype) for one, old in zip(moments, like, strict=True)))


def _is_moments(node: Any) -> bool:
    return isinstance(node, Moments)


def filtering_learner(config: Any, world: Any, filters: str) -> Learner:
    """The learner of a config, with filters of the client's own or with shared ones."""
    return FilterSharing(config, world) if filters == "shared" else make_learner(config, world)
