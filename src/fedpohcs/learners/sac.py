"""SAC (Haarnoja et al., 2018): a stochastic policy that also earns entropy, twin critics, an adaptive temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedpohcs.core.learning import SACConfig
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actors import SquashedActor, sight_of
from fedpohcs.learners.distributions import SquashedGaussian, squashed_gaussian
from fedpohcs.learners.networks import PolicyParams
from fedpohcs.learners.off_policy import Squashed, Transitions, Weights


class SACParams(NamedTuple):
    """What is federated: policy, twin critics, and the temperature, which is averaged like a weight."""

    policy: PolicyParams
    critic: Any
    log_temperature: AnyArray

    controls = ("log_temperature",)  # parts that are averaged like weights, but that no server optimiser changes


class SACMoments(NamedTuple):
    """States of the optimisers."""

    policy: Any
    critic: Any
    log_temperature: Any


class Info(NamedTuple):
    """Numbers that one local iteration reports, means over its gradient steps."""

    critic_loss: AnyArray
    policy_loss: AnyArray
    value: AnyArray  # action value of the transitions drawn
    entropy: AnyArray  # of the policy, for actions scaled to -1 and 1
    temperature: AnyArray


@dataclass(frozen=True)
class SAC(Squashed):
    """Soft actor-critic for continuous actions."""

    config: SACConfig

    info = Info._fields
    outputs_per_action: ClassVar[int] = 2
    loss_noise: ClassVar[int] = 2  # of the action after the step, and of a new action before it

    @property
    def target_entropy(self) -> float:
        """The entropy that the temperature adapts to."""
        return -float(self.size) if self.config.target_entropy is None else self.config.target_entropy

    def init_params(self, key: jax.Array) -> SACParams:
        """Initial weights of policy and critics, and the initial temperature."""
        return SACParams(*self.init_actor_critic(key), jnp.log(jnp.float32(self.config.temperature)))

    def targets(self, params: SACParams) -> Any:
        """The critics."""
        return params.critic

    def init_moments(self, params: SACParams) -> SACMoments:
        """Of both networks and of the temperature."""
        config = self.config
        rates = (config.policy_learning_rate, config.learning_rate, config.temperature_learning_rate)
        learned = (params.policy.layers, params.critic, params.log_temperature)
        return SACMoments(*(self.adam(rate).init(one) for rate, one in zip(rates, learned, strict=True)))

    def actor(self, params: SACParams, filters: Any, schedule: Any, *, training: bool) -> SquashedActor:
        """The policy, which draws its actions, in training and in evaluations."""
        del schedule, training
        sight = sight_of(filters, self.config.observation_limit)
        return SquashedActor(self.noise, params.policy.layers, sight, self.bounds, self.policy_apply)

    def update(self, now: Weights, batch: Transitions, noise: jax.Array, number: jax.Array) -> tuple[Weights, Info]:
        """One step of the critics, of the policy and of the temperature."""
        config, (policy, critic, log_temperature), moments = self.config, now.params, now.moments
        after, before = noise[..., : self.size], noise[..., self.size :]

        wanted = self.target_value(now.params, now.target, batch, after)
        (loss, value), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(critic, batch, wanted)
        critic, of_critic = self.descended(config.learning_rate, gradient, moments.critic, critic)

        def mean_loss(layers: Any) -> tuple[jax.Array, jax.Array]:
            losses, log_prob = self.losses(now.params._replace(critic=critic), layers, batch, before)
            return losses.mean(), log_prob.mean()

        (policy_loss, log_prob), gradient = jax.value_and_grad(mean_loss, has_aux=True)(policy.layers)
        layers, of_policy = self.descended(config.policy_learning_rate, gradient, moments.policy, policy.layers)

        gradient = jax.grad(self.temperature_loss)(log_temperature, log_prob)
        rate, of_temperature = config.temperature_learning_rate, moments.log_temperature
        log_temperature, of_temperature = self.descended(rate, gradient, of_temperature, log_temperature)

        params = SACParams(policy._replace(layers=layers), critic, log_temperature)
        weights = Weights(
            params, self.followed(now.target, params, number), SACMoments(of_policy, of_critic, of_temperature)
        )
        return weights, Info(loss, policy_loss, value, -log_prob, jnp.exp(log_temperature))

    def target_value(self, params: SACParams, target: Any, batch: Transitions, noise: jax.Array) -> jax.Array:
        """r + gamma (min_i Q'_i(s', a') - alpha log pi(a' | s')), where a' is drawn from the policy."""
        action, log_prob = self.drawn(params.policy.layers, batch.next_observation, noise)
        value = self.least_value(target, batch.next_observation, action)
        return self.discounted(batch, value - jnp.exp(params.log_temperature) * log_prob)

    def losses(
        self, params: SACParams, policy: Any, batch: Transitions, noise: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """alpha log pi(a | s) - min_i Q_i(s, a) where a is drawn from the policy, and log pi(a | s)."""
        action, log_prob = self.drawn(policy, batch.observation, noise)
        value = self.least_value(params.critic, batch.observation, action)
        return jnp.exp(params.log_temperature) * log_prob - value, log_prob

    def temperature_loss(self, log_temperature: jax.Array, log_prob: jax.Array) -> jax.Array:
        """Falls as the temperature grows where the policy has less entropy than wanted."""
        return -log_temperature * (log_prob + self.target_entropy)

    def policy_losses(self, params: SACParams, policy: Any, batch: Transitions, noise: jax.Array) -> jax.Array:
        """As the losses of a gradient step."""
        return self.losses(params, policy, batch, noise[..., self.size :])[0]

    def drawn(self, policy: Any, observation: AnyArray, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """An action between -1 and 1, and the logarithm of its density."""
        return squashed_gaussian(self.policy_apply(policy, observation)).sample_with_log_prob(noise)

    def best_action(self, policy: Any, observation: AnyArray) -> AnyArray:
        """The action in the middle of the policy."""
        return jnp.tanh(self.policy_apply(policy, observation)[..., : self.size])

    def distribution(self, params: SACParams, observation: AnyArray) -> SquashedGaussian:
        """The policy, in the units of the world."""
        low, high = self.bounds.scaled(-1.0), self.bounds.scaled(1.0)
        return squashed_gaussian(self.policy_apply(params.policy.layers, observation), low, high)
