"""Actors, which turn an observation and noise into an action, on NumPy or JAX arrays. This module loads no JAX."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.distributions import categorical, squashed_gaussian
from fedpohcs.learners.filters import Filters, rescaled, standard_deviation
from fedpohcs.learners.networks import Apply, Dense, PolicyParams, apply_layers
from fedpohcs.worlds.base import ContinuousActions

RowActions = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Sight(NamedTuple):
    """An observation filter: mean, standard deviation and bound."""

    mean: AnyArray
    std: AnyArray
    limit: float

    def __call__(self, observation: AnyArray) -> AnyArray:
        """The filtered observation, which the policy reads."""
        return rescaled(observation, self.mean, self.std, self.limit)


def sight_of(filters: Filters, limit: float) -> Sight:
    """The observation filter of one client, or of many along a leading axis."""
    moments = filters.observation
    return Sight(moments.mean, standard_deviation(moments, moments.mean.__array_namespace__()), limit)


class PolicyActor(NamedTuple):
    """Draws from a stochastic policy."""

    noise: ActionNoise
    policy: PolicyParams
    spread: AnyArray | None  # standard deviation of actions; None: they are discrete
    sight: Sight
    apply: Apply = apply_layers

    def act(self, observation: AnyArray, noise: AnyArray) -> AnyArray:
        """The action that corresponds to the noise."""
        return self._drawn(self.apply(self.policy.layers, self.sight(observation)), noise)

    def _drawn(self, output: AnyArray, noise: AnyArray) -> AnyArray:
        if self.spread is None and isinstance(output, np.ndarray):
            return (output + noise).argmax(axis=-1).astype(np.int32)  # what normalised logits give, in less time
        if self.spread is None:
            return categorical(output).sample(noise)
        return output + self.spread * noise

    def crowd(self, actors: Sequence["PolicyActor"]) -> "PolicyCrowd | RowByRow":
        """Many such actors at once: one pass through the tanh layers, or row by row for networks of a user."""
        if self.apply is not apply_layers:
            return RowByRow(actors)
        layers = stacked_layers([actor.policy.layers for actor in actors], actors)
        spreads = [actor.spread for actor in actors[: len(layers.layers[0].kernel)] if actor.spread is not None]
        return PolicyCrowd(layers, np.stack(spreads) if spreads else None, self)


def policy_actor(noise: ActionNoise, policy: PolicyParams, sight: Sight, apply: Apply = apply_layers) -> PolicyActor:
    """The actor of a policy."""
    xp = policy.log_std.__array_namespace__()
    return PolicyActor(noise, policy, xp.exp(policy.log_std) if policy.log_std.size else None, sight, apply)


class EpsilonGreedyActor(NamedTuple):
    """Takes the action with the largest output; with probability epsilon a uniformly random action."""

    noise: ActionNoise
    layers: Any
    sight: Sight
    epsilon: AnyArray
    num_choices: int
    apply: Apply

    def act(self, observation: AnyArray, noise: AnyArray) -> AnyArray:
        """The action that corresponds to the noise."""
        return self.drawn(self.apply(self.layers, self.sight(observation)), noise)

    def drawn(self, output: AnyArray, noise: AnyArray) -> AnyArray:
        """The first uniform number decides whether to explore, the second chooses."""
        xp = noise.__array_namespace__()
        anything = xp.minimum(noise[..., 1] * self.num_choices, self.num_choices - 1)
        return xp.where(noise[..., 0] < self.epsilon, anything, xp.argmax(output, axis=-1)).astype(np.int32)

    def crowd(self, actors: Sequence[Any]) -> "LayersCrowd | RowByRow":
        """Many such actors at once."""
        return crowd_of(actors)


class Bounds(NamedTuple):
    """Centre and half range of continuous actions: a policy gives numbers between -1 and 1."""

    centre: float
    half: float

    def scaled(self, share: AnyArray) -> AnyArray:
        """Actions in the units of the world, from numbers between -1 and 1."""
        return self.centre + self.half * share

    def shares(self, action: AnyArray) -> AnyArray:
        """Numbers between -1 and 1, from actions in the units of the world."""
        return (action - self.centre) / self.half


def bounds_of(actions: ContinuousActions) -> Bounds:
    """The bounds of a world with finite ones."""
    return Bounds((actions.high + actions.low) / 2, (actions.high - actions.low) / 2)


class DeterministicActor(NamedTuple):
    """The tanh of the outputs, and noise on top of it, within the bounds of actions."""

    noise: ActionNoise
    layers: Any
    sight: Sight
    spread: AnyArray  # standard deviation of the noise; 0 in evaluations
    bounds: Bounds
    apply: Apply

    def act(self, observation: AnyArray, noise: AnyArray) -> AnyArray:
        """The action that corresponds to the noise."""
        return self.drawn(self.apply(self.layers, self.sight(observation)), noise)

    def drawn(self, output: AnyArray, noise: AnyArray) -> AnyArray:
        """Actions of outputs."""
        xp = output.__array_namespace__()
        return self.bounds.scaled((xp.tanh(output) + self.spread * noise).clip(-1, 1))

    def crowd(self, actors: Sequence[Any]) -> "LayersCrowd | RowByRow":
        """Many such actors at once."""
        return crowd_of(actors)


class SquashedActor(NamedTuple):
    """Draws from a normal distribution whose mean and spread the network gives, and squashes by tanh."""

    noise: ActionNoise
    layers: Any
    sight: Sight
    bounds: Bounds
    apply: Apply

    def act(self, observation: AnyArray, noise: AnyArray) -> AnyArray:
        """The action that corresponds to the noise."""
        return self.drawn(self.apply(self.layers, self.sight(observation)), noise)

    def drawn(self, output: AnyArray, noise: AnyArray) -> AnyArray:
        """Actions of outputs."""
        return self.bounds.scaled(squashed_gaussian(output).sample(noise))

    def crowd(self, actors: Sequence[Any]) -> "LayersCrowd | RowByRow":
        """Many such actors at once."""
        return crowd_of(actors)


class StackedLayers(NamedTuple):
    """Networks of tanh layers of many clients, and their filters. Layers that all share have a first axis of 1."""

    layers: tuple[Dense, ...]
    mean: np.ndarray
    std: np.ndarray
    limit: float

    def rows(self, owner: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """From observations to outputs, row by row. Filters of the owners are gathered once."""
        from fedpohcs.learners.rows import row_affine  # imports Numba, which only batches of clients need

        mean, std = self.mean[owner], self.std[owner]

        def through(x: np.ndarray, layer: Dense) -> np.ndarray:
            return row_affine(x, layer, owner)

        return lambda observation: apply_layers(self.layers, rescaled(observation, mean, std, self.limit), through)


def stacked_layers(networks: Sequence[tuple[Dense, ...]], actors: Sequence[Any]) -> StackedLayers:
    """Stack networks of one shape, and the filters of their actors."""
    if all(network is networks[0] for network in networks):
        networks = networks[:1]
    layers = zip(*networks, strict=True)
    return StackedLayers(
        tuple(Dense(np.stack([x.kernel for x in same]), np.stack([x.bias for x in same])) for same in layers),
        np.stack([actor.sight.mean for actor in actors]),
        np.stack([actor.sight.std for actor in actors]),
        actors[0].sight.limit,
    )


class PolicyCrowd(NamedTuple):
    """Many stochastic policies of tanh layers."""

    layers: StackedLayers
    spread: np.ndarray | None
    first: PolicyActor

    def rows(self, owner: np.ndarray) -> RowActions:
        """The function of rows. Spreads of their owners are gathered once."""
        spread = None if self.spread is None else self.spread[owner % len(self.spread)]
        output, actor = self.layers.rows(owner), self.first._replace(spread=spread)
        return lambda observation, noise: actor._drawn(output(observation), noise)


class LayersCrowd(NamedTuple):
    """Many actors of tanh layers that differ in weights and filters alone."""

    layers: StackedLayers
    first: Any

    def rows(self, owner: np.ndarray) -> RowActions:
        """The function of rows."""
        output = self.layers.rows(owner)
        return lambda observation, noise: self.first.drawn(output(observation), noise)


def crowd_of(actors: Sequence[Any]) -> "LayersCrowd | RowByRow":
    """One pass through the tanh layers of many actors, or row by row for networks of a user."""
    first = actors[0]
    if first.apply is not apply_layers:
        return RowByRow(actors)
    return LayersCrowd(stacked_layers([actor.layers for actor in actors], actors), first)


class RowByRow(NamedTuple):
    """Many actors, called one row at a time. Slow, but works for every class of actors."""

    actors: Sequence[Any]

    def rows(self, owner: np.ndarray) -> RowActions:
        """The function of rows, which calls the actor of each row."""
        owners = owner.tolist()

        def act(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
            rows = zip(owners, observation, noise, strict=True)
            return np.stack([np.asarray(self.actors[own].act(seen, drawn)) for own, seen, drawn in rows])

        return act
