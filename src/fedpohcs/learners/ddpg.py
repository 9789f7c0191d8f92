"""DDPG (Lillicrap et al., 2016): a deterministic policy that follows the gradient of its critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.learning import DDPGConfig
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actors import DeterministicActor, sight_of
from fedpohcs.learners.distributions import Gaussian
from fedpohcs.learners.networks import ActorCriticParams
from fedpohcs.learners.off_policy import PolicyAndCritic, Squashed, Transitions, Weights


class NoiseSchedule(NamedTuple):
    """Exploration in a round."""

    spread: AnyArray


class Info(NamedTuple):
    """Numbers that one local iteration reports, means over its gradient steps."""

    critic_loss: AnyArray
    policy_loss: AnyArray
    value: AnyArray  # action value of the transitions drawn


@dataclass(frozen=True)
class DDPG(Squashed):
    """Deep deterministic policy gradient for continuous actions."""

    config: DDPGConfig

    info = Info._fields
    num_critics: ClassVar[int] = 1

    @property
    def noise(self) -> ActionNoise:
        """Independent normal numbers, or those of an Ornstein-Uhlenbeck process."""
        config = self.config
        return ActionNoise("ou", self.size, config.noise_pull) if config.noise_kind == "ou" else super().noise

    def init_params(self, key: jax.Array) -> ActorCriticParams:
        """Initial weights of policy and critics."""
        return self.init_actor_critic(key)

    def targets(self, params: ActorCriticParams) -> PolicyAndCritic:
        """Both networks."""
        return PolicyAndCritic(params.policy.layers, params.critic)

    def init_moments(self, params: ActorCriticParams) -> PolicyAndCritic:
        """Of both networks."""
        policy = self.adam(self.config.policy_learning_rate).init(params.policy.layers)
        return PolicyAndCritic(policy, self.adam(self.config.learning_rate).init(params.critic))

    def schedule(self, round_number: int) -> NoiseSchedule:
        """Standard deviation of the noise in a round; rounds count from 0."""
        config = self.config
        return NoiseSchedule(np.float32(max(config.noise * config.noise_decay**round_number, config.noise_floor)))

    def actor(self, params: Any, filters: Any, schedule: NoiseSchedule, *, training: bool) -> DeterministicActor:
        """The policy: with the noise of the round in training, without noise in evaluations."""
        spread = schedule.spread if training else np.float32(0)
        sight = sight_of(filters, self.config.observation_limit)
        layers = params.policy.layers
        return DeterministicActor(self.noise, layers, sight, spread, self.bounds, self.policy_apply)

    def update(self, now: Weights, batch: Transitions, noise: jax.Array, number: jax.Array) -> tuple[Weights, Info]:
        """One step of the critics, then one of the policy."""
        now, loss, value = self.critic_step(now, batch, noise)
        now, policy_loss = self.policy_step(now, batch, number)
        return now, Info(loss, policy_loss, value)

    def critic_step(self, now: Weights, batch: Transitions, noise: jax.Array) -> tuple[Weights, jax.Array, jax.Array]:
        """A step of the critics towards the target, their loss and the mean action value."""
        wanted, critic = self.target_value(now.target, batch, noise), now.params.critic
        (loss, value), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(critic, batch, wanted)
        critic, moments = self.descended(self.config.learning_rate, gradient, now.moments.critic, critic)
        after = now._replace(params=now.params._replace(critic=critic), moments=now.moments._replace(critic=moments))
        return after, loss, value

    def policy_step(self, now: Weights, batch: Transitions, number: jax.Array) -> tuple[Weights, jax.Array]:
        """A step of the policy towards actions of larger value, after which the target networks follow."""
        policy = now.params.policy

        def mean_loss(layers: Any) -> jax.Array:
            return self.policy_losses(now.params, layers, batch, None).mean()

        loss, gradient = jax.value_and_grad(mean_loss)(policy.layers)
        rate = self.config.policy_learning_rate
        layers, moments = self.descended(rate, gradient, now.moments.policy, policy.layers)
        params = now.params._replace(policy=policy._replace(layers=layers))
        target = self.followed(now.target, params, number)
        return Weights(params, target, now.moments._replace(policy=moments)), loss

    def target_value(self, target: PolicyAndCritic, batch: Transitions, noise: jax.Array) -> jax.Array:
        """r + gamma Q'(s', pi'(s')), by the target networks."""
        del noise
        action = self.best_action(target.policy, batch.next_observation)
        return self.discounted(batch, self.least_value(target.critic, batch.next_observation, action))

    def policy_losses(self, params: Any, policy: Any, batch: Transitions, noise: Any) -> jax.Array:
        """-Q(s, pi(s)), by the first critic."""
        del noise
        action = self.best_action(policy, batch.observation)
        first = jax.tree.map(lambda x: x[:1], params.critic)
        return -self.least_value(first, batch.observation, action)

    def best_action(self, policy: Any, observation: AnyArray) -> AnyArray:
        """pi(s)."""
        return jnp.tanh(self.policy_apply(policy, observation))

    def distribution(self, params: ActorCriticParams, observation: AnyArray) -> Gaussian:
        """Normal around the policy's actions, with the least noise of training."""
        mean = self.bounds.scaled(self.best_action(params.policy.layers, observation))
        return Gaussian(mean, jnp.full_like(mean, np.log(self.config.noise_floor * self.bounds.half)))
