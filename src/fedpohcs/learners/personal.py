"""Personal weights: some arrays of the parameters stay with each client, and only the others are shared.

The weights that a client keeps are part of its filters, which actors read and executors do not look into. So every
learner can be personal. What the server sends in place of these weights is used once, before a client first trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import require
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import AnyArray, ClientIds, Params
from fedpohcs.learners.base import Broadcast, IterationResult, Learner, Progress
from fedpohcs.learners.networks import Embedded
from fedpohcs.learners.shared_filters import filtering_learner
from fedpohcs.learners.wrapped import WrappedLearner
from fedpohcs.worlds.base import World


class Own(NamedTuple):
    """What acting reads of a client: its filters and the weights that it keeps."""

    filters: Any
    weights: Params  # as the parameters; arrays that are shared are empty
    trained: AnyArray  # False: there are no weights yet, and those of the server are used


class LaneActors(NamedTuple):
    """Actors of many lanes with weights of their own."""

    make: Any  # from own filters and weights to the actor of a lane
    own: Own  # with a leading axis of lanes

    def act(self, observation: jax.Array, noise: jax.Array) -> jax.Array:
        """The actions of all lanes."""
        return jax.vmap(lambda own, seen, drawn: self.make(own).act(seen, drawn))(self.own, observation, noise)


@dataclass(frozen=True)
class Personal(WrappedLearner):
    """Another learner, of whose parameters each client keeps some for itself."""

    kept: str
    filters: str = "own"  # or "shared"

    @property
    def inner(self) -> Learner:
        """The learner that learns."""
        return filtering_learner(self.config, self.world, self.filters)

    def within(self, filters: Own) -> Any:
        """The filters of the client without its weights."""
        return filters.filters

    def init_filters(self) -> Any:
        """Filters that have seen nothing, and no weights."""
        shapes = jax.eval_shape(self.inner.init_params, jax.random.key(0))
        kept = keeps(shapes, self.kept)
        empty = jax.tree.map(lambda x, keep: np.zeros(x.shape if keep else (0,), x.dtype), shapes, kept)
        return Own(self.inner.init_filters(), empty, np.zeros((), bool))

    def weights(self, params: Params, own: Own) -> Params:
        """The parameters of a client: those that it keeps, and the others as they are sent."""

        def choose(sent: AnyArray, mine: AnyArray, keep: bool) -> AnyArray:
            return mine.__array_namespace__().where(own.trained, mine, sent) if keep else sent

        return jax.tree.map(choose, params, own.weights, keeps(params, self.kept))

    def actor(self, params: Params, filters: Own, schedule: Any, *, training: bool) -> Any:
        """The actor of a client, or of many clients along a leading axis."""

        def make(own: Own) -> Any:
            return self.inner.actor(self.weights(params, own), own.filters, schedule, training=training)

        return make(filters) if filters.trained.ndim == 0 else LaneActors(make, filters)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """A local iteration from the weights of the client."""
        own: Own = now.filters
        start = Progress(self.weights(now.params, own), own.filters, now.memory)
        result = self.inner.learn(sent, start, trajectory, draws)
        params, filters, memory = result.now
        kept = jax.tree.map(lambda x, keep: x if keep else jnp.zeros(0, x.dtype), params, keeps(params, self.kept))
        return result._replace(now=Progress(params, Own(filters, kept, jnp.ones((), bool)), memory))

    def observe(self, filters: Any, trajectory: Trajectory, weight: float = 1.0) -> Any:
        """The filters, updated with the steps of a trajectory."""
        return filters._replace(filters=self.inner.observe(filters.filters, trajectory, weight))


def keeps(params: Params, kept: str) -> Any:
    """Which arrays of the parameters a client keeps, as a tree of truth values."""
    flags = jax.tree.map(lambda _: kept == "all", params)
    if kept == "critic":
        rule = "is for learners with a critic"
        require(hasattr(params, "critic"), "federation.personal", kept, rule)
        return flags._replace(critic=jax.tree.map(lambda _: True, params.critic))
    if kept == "embedding":
        found = jax.tree.map(_only_vector, params, is_leaf=_is_embedded)
        require(any(jax.tree.leaves(found)), "federation.personal", kept, "is for learners with networks")
        return found
    if kept == "last-layer":
        layers = flags.policy.layers
        rule = "is for networks of layers, not for those of learner.network"
        require(isinstance(layers, tuple), "federation.personal", kept, rule)
        last = jax.tree.map(lambda _: True, layers[-1])
        return flags._replace(policy=flags.policy._replace(layers=(*layers[:-1], last)))
    return flags


def _is_embedded(node: Any) -> bool:
    return isinstance(node, Embedded)


def _only_vector(node: Any) -> Any:
    if not _is_embedded(node):
        return False
    return Embedded(True, jax.tree.map(lambda _: False, node.within))  # pyright: ignore[reportArgumentType]


def with_own_vectors(filters: Own, seed: int, clients: ClientIds, num_clients: int) -> Own:
    """The filters of these clients, of whom those that train get vectors between -1 and 1 of their own.

    Others use the mean of the vectors that were averaged last, as what the server sends has it.
    """
    for row, client in enumerate(clients.tolist()):
        if client < num_clients:
            generator = host_generator(seed, Purpose.EMBEDDING, client=client)
            for rows in jax.tree.leaves(filters.weights):
                rows[row] = generator.uniform(-1, 1, rows.shape[1:])
            filters.trained[row] = True
    return filters


def client_learner(config: ExperimentConfig, world: World) -> Learner:
    """The learner of the clients of an experiment."""
    federation = config.federation
    learner = filtering_learner(config.learner, world, federation.filters)
    if federation.personal == "none":
        return learner
    keeps(jax.eval_shape(learner.init_params, jax.random.key(0)), federation.personal)  # refuses what it does not have
    return Personal(config.learner, world, federation.personal, federation.filters)
