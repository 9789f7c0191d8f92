"""Actors, which turn an observation and noise into an action, on NumPy or JAX arrays. This module loads no JAX."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.distributions import categorical
from fedpohcs.learners.filters import Filters, rescaled, standard_deviation
from fedpohcs.learners.networks import Apply, Dense, PolicyParams, apply_layers

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
        return stacked(actors) if self.apply is apply_layers else RowByRow(actors)


def policy_actor(noise: ActionNoise, policy: PolicyParams, sight: Sight, apply: Apply = apply_layers) -> PolicyActor:
    """The actor of a policy."""
    xp = policy.log_std.__array_namespace__()
    return PolicyActor(noise, policy, xp.exp(policy.log_std) if policy.log_std.size else None, sight, apply)


class PolicyCrowd(NamedTuple):
    """Many policies of tanh layers, stacked along a first axis, which has the length 1 if they are all the same."""

    layers: tuple[Dense, ...]
    spread: np.ndarray | None
    mean: np.ndarray
    std: np.ndarray
    first: PolicyActor

    def rows(self, owner: np.ndarray) -> RowActions:
        """The function of rows. Weights and filters of their owners are gathered once."""
        from fedpohcs.learners.rows import row_affine  # imports Numba, which only batches of clients need

        spread = None if self.spread is None else self.spread[owner % len(self.spread)]
        mean, std, limit = self.mean[owner], self.std[owner], self.first.sight.limit

        def through(x: np.ndarray, layer: Dense) -> np.ndarray:
            return row_affine(x, layer, owner)

        actor = self.first._replace(spread=spread)

        def act(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
            return actor._drawn(apply_layers(self.layers, rescaled(observation, mean, std, limit), through), noise)

        return act


def stacked(actors: Sequence[PolicyActor]) -> PolicyCrowd:
    """Stack policies of one shape."""
    policies = [actor.policy for actor in actors]
    if all(policy is policies[0] for policy in policies):
        policies = policies[:1]
    layers = zip(*[policy.layers for policy in policies], strict=True)
    spreads = [actor.spread for actor in actors[: len(policies)] if actor.spread is not None]
    return PolicyCrowd(
        tuple(Dense(np.stack([x.kernel for x in same]), np.stack([x.bias for x in same])) for same in layers),
        np.stack(spreads) if spreads else None,
        np.stack([actor.sight.mean for actor in actors]),
        np.stack([actor.sight.std for actor in actors]),
        actors[0],
    )


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
