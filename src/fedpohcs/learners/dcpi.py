"""Deep conservative policy iteration (Vieillard et al., 2020), for discrete actions.

A policy is fitted to a mixture of its earlier self and the greedy policy, as conservative policy iteration (Kakade and
Langford, 2002) improves: pi <- (1 - alpha) pi + alpha greedy(Q). Action values are those of the earlier policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.learning import DCPIConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.networks import ActorCriticParams, PolicyParams
from fedpohcs.learners.off_policy import EpsilonGreedy, PolicyAndCritic, Transitions, Weights

ESTIMATE_RATE = 0.01  # of the running means that the adaptive mixture reads


class MixtureMoments(NamedTuple):
    """States of the optimisers, and running means for the adaptive mixture."""

    policy: Any
    critic: Any
    advantage: AnyArray  # of the greedy policy
    spread: AnyArray  # of action values: the largest less the smallest


class Info(NamedTuple):
    """Numbers that one local iteration reports, means over its gradient steps."""

    critic_loss: AnyArray
    divergence: AnyArray  # from the mixture to the policy
    value: AnyArray  # action value of the transitions drawn
    mixture: AnyArray  # alpha


@dataclass(frozen=True)
class DCPI(EpsilonGreedy):
    """Conservative policy iteration with networks for policy and action values."""

    config: DCPIConfig

    info = Info._fields

    def init_params(self, key: jax.Array) -> ActorCriticParams:
        """Initial weights of logits and action values."""
        key_policy, key_critic = jax.random.split(key)
        return ActorCriticParams(
            PolicyParams(self.init_network(key_policy), jnp.zeros(0)), self.init_network(key_critic)
        )

    def targets(self, params: ActorCriticParams) -> PolicyAndCritic:
        """Both networks."""
        return PolicyAndCritic(params.policy.layers, params.critic)

    def init_moments(self, params: ActorCriticParams) -> MixtureMoments:
        """Of both networks; no advantage is known."""
        policy = self.adam(self.config.policy_learning_rate).init(params.policy.layers)
        critic = self.adam(self.config.learning_rate).init(params.critic)
        return MixtureMoments(policy, critic, np.zeros((), np.float32), np.zeros((), np.float32))

    def update(self, now: Weights, batch: Transitions, noise: jax.Array, number: jax.Array) -> tuple[Weights, Info]:
        """One step of the action values, then one of the policy."""
        del noise
        config, params, moments = self.config, now.params, now.moments
        wanted = self.target_value(now.target, batch)
        (loss, value), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(params.critic, batch, wanted)
        critic, of_critic = self.descended(config.learning_rate, gradient, moments.critic, params.critic)
        values = self.apply(critic, batch.observation)
        earlier = jax.nn.softmax(self.apply(now.target.policy, batch.observation))
        moments = estimated(moments._replace(critic=of_critic), earlier, values)
        share = self.share(moments)
        layers, wished = params.policy.layers, mixture(earlier, values, share)
        divergence, gradient = jax.value_and_grad(self.policy_loss)(layers, batch, wished)
        layers, of_policy = self.descended(config.policy_learning_rate, gradient, moments.policy, layers)
        params = ActorCriticParams(params.policy._replace(layers=layers), critic)
        weights = Weights(params, self.followed(now.target, params, number), moments._replace(policy=of_policy))
        return weights, Info(loss, divergence, value, share)

    def target_value(self, target: PolicyAndCritic, batch: Transitions) -> jax.Array:
        """r + gamma sum_a pi(a | s') Q(s', a), by the target networks."""
        values = self.apply(target.critic, batch.next_observation)
        return self.discounted(batch, (self.probabilities(target.policy, batch.next_observation) * values).sum(axis=-1))

    def critic_loss(self, critic: Any, batch: Transitions, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Half the mean squared error, and the mean action value."""
        value = jnp.take_along_axis(self.apply(critic, batch.observation), batch.action[:, None], axis=-1)[:, 0]
        return 0.5 * jnp.square(value - wanted).mean(), value.mean()

    def policy_loss(self, layers: Any, batch: Transitions, wished: jax.Array) -> jax.Array:
        """Mean KL divergence from the mixture to the policy."""
        return self.divergences(layers, batch, wished).mean()

    def divergences(self, layers: Any, batch: Transitions, wished: jax.Array) -> jax.Array:
        """KL(mixture || pi) of each transition."""
        logits = jax.nn.log_softmax(self.apply(layers, batch.observation))
        return jax.scipy.special.rel_entr(wished, jnp.exp(logits)).sum(axis=-1)

    def share(self, moments: MixtureMoments) -> jax.Array:
        """alpha. Adaptive, it follows Pirotta et al. (2013): the advantage of the greedy policy over the range of Q."""
        if self.config.mixture_rule == "constant":
            return jnp.float32(self.config.mixture)
        return self.config.mixture * (moments.advantage / jnp.maximum(moments.spread, 1e-6)).clip(0, 1)

    def probabilities(self, layers: Any, observation: AnyArray) -> jax.Array:
        """pi(a | s)."""
        return jax.nn.softmax(self.apply(layers, observation))

    def values(self, params: ActorCriticParams, observation: AnyArray) -> AnyArray:
        """V(s) of the policy."""
        chosen = self.probabilities(params.policy.layers, observation)
        return (chosen * self.apply(params.critic, observation)).sum(axis=-1)

    def step_advantages(self, params: ActorCriticParams, filters: Any, trajectory: Trajectory) -> jax.Array:
        """Q(s, a) - V(s) of recorded steps, [T, E]."""
        observation = self.filtered(filters, trajectory.observation)
        values = self.apply(params.critic, observation)
        taken = jnp.take_along_axis(values, trajectory.action[..., None].astype(jnp.int32), axis=-1)[..., 0]
        return jnp.where(trajectory.valid, taken - self.values(params, observation), 0.0)

    def gradient(self, params: ActorCriticParams, samples: Transitions, mask: jax.Array) -> Any:
        """Gradient of the divergence from the mixture of the present policy, whose share is `mixture`."""
        earlier = self.probabilities(params.policy.layers, samples.observation)
        wished = mixture(earlier, self.apply(params.critic, samples.observation), jnp.float32(self.config.mixture))

        def masked(layers: Any) -> jax.Array:
            return (self.divergences(layers, samples, wished) * mask).sum() / jnp.maximum(mask.sum(), 1)

        return jax.grad(masked)(params.policy.layers)


def mixture(earlier: jax.Array, values: jax.Array, share: jax.Array) -> jax.Array:
    """(1 - alpha) pi + alpha greedy(Q), [..., actions]."""
    greedy = jax.nn.one_hot(jnp.argmax(values, axis=-1), values.shape[-1])
    return (1 - share) * earlier + share * greedy


def estimated(moments: MixtureMoments, earlier: jax.Array, values: jax.Array) -> MixtureMoments:
    """The moments with this minibatch in their running means."""
    advantage = (values.max(axis=-1) - (earlier * values).sum(axis=-1)).mean()
    spread = values.max() - values.min()
    return moments._replace(
        advantage=moments.advantage + ESTIMATE_RATE * (advantage - moments.advantage),
        spread=moments.spread + ESTIMATE_RATE * (spread - moments.spread),
    )
