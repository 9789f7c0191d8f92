"""DQN (Mnih et al., 2015) with a soft target network; double DQN (van Hasselt et al., 2016) by default.

What is federated is the online network, whose outputs are action values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedpohcs.core.learning import DQNConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.networks import PolicyParams
from fedpohcs.learners.off_policy import EpsilonGreedy, Transitions, Weights


class QParams(NamedTuple):
    """What is federated: the online network, whose outputs are action values; acting greedily on them is the policy."""

    policy: PolicyParams


class Info(NamedTuple):
    """Numbers that one local iteration reports, means over its gradient steps."""

    loss: AnyArray
    value: AnyArray  # action value of the transitions drawn


@dataclass(frozen=True)
class DQN(EpsilonGreedy):
    """Deep Q-learning for discrete actions."""

    config: DQNConfig

    info = Info._fields

    def init_params(self, key: jax.Array) -> QParams:
        """Initial weights, the same for every selector of a seed."""
        return QParams(PolicyParams(self.init_network(key), jnp.zeros(0)))

    def targets(self, params: QParams) -> Any:
        """The network of action values."""
        return params.policy.layers

    def init_moments(self, params: QParams) -> Any:
        """Of the one network."""
        return self.adam(self.config.learning_rate).init(params.policy.layers)

    def update(self, now: Weights, batch: Transitions, noise: jax.Array, number: jax.Array) -> tuple[Weights, Info]:
        """One step towards the target."""
        del noise
        layers = now.params.policy.layers
        (loss, value), gradient = jax.value_and_grad(self.loss, has_aux=True)(layers, now.target, batch)
        layers, moments = self.descended(self.config.learning_rate, gradient, now.moments, layers)
        params = QParams(now.params.policy._replace(layers=layers))
        return Weights(params, self.followed(now.target, params, number), moments), Info(loss, value)

    def loss(self, online: Any, target: Any, batch: Transitions) -> tuple[jax.Array, jax.Array]:
        """Mean Huber loss of the temporal difference, and the mean action value."""
        value = self.taken_value(online, batch)
        wanted = jax.lax.stop_gradient(self.target_value(online, target, batch))
        return optax.huber_loss(value, wanted).mean(), value.mean()

    def target_value(self, online: Any, target: Any, batch: Transitions) -> jax.Array:
        """r + gamma Q'(s', a'), where a' is the target network's own choice or, if double, the online network's."""
        following = self.apply(target, batch.next_observation)
        chooser = self.apply(online, batch.next_observation) if self.config.double else following
        best = jnp.take_along_axis(following, jnp.argmax(chooser, axis=-1)[:, None], axis=-1)[:, 0]
        return self.discounted(batch, best)

    def taken_value(self, online: Any, batch: Transitions) -> jax.Array:
        """Q(s, a) of the actions that were taken."""
        values = self.apply(online, batch.observation)
        return jnp.take_along_axis(values, batch.action[..., None], axis=-1)[..., 0]

    def values(self, params: QParams, observation: AnyArray) -> AnyArray:
        """V(s) as the largest action value."""
        return self.apply(params.policy.layers, observation).max(axis=-1)

    def step_advantages(self, params: QParams, filters: Any, trajectory: Trajectory) -> jax.Array:
        """Q(s, a) - max Q(s, .) of recorded steps, [T, E]."""
        values = self.apply(params.policy.layers, self.filtered(filters, trajectory.observation))
        taken = jnp.take_along_axis(values, trajectory.action[..., None].astype(jnp.int32), axis=-1)[..., 0]
        return jnp.where(trajectory.valid, taken - values.max(axis=-1), 0.0)

    def gradient(self, params: QParams, samples: Transitions, mask: jax.Array) -> Any:
        """Gradient of the temporal-difference loss, with the online network as the target network."""
        layers = params.policy.layers

        def masked(online: Any) -> jax.Array:
            wanted = jax.lax.stop_gradient(self.target_value(layers, layers, samples))
            return (optax.huber_loss(self.taken_value(online, samples), wanted) * mask).sum() / jnp.maximum(
                mask.sum(), 1
            )

        return jax.grad(masked)(layers)
