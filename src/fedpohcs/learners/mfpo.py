"""MFPO (Yue et al., 2024): local steps with momentum that goes on through rounds, because it is averaged like weights.

    u_t = g(theta_t) + nu (u_{t-1} - w g(theta_{t-1})),     theta_{t+1} = theta_t + alpha u_t

with w = pi_theta_{t-1} / pi_theta_t. As theta_{t-1} = theta_t - alpha u_{t-1}, also after both were averaged, a client
needs nothing but weights and direction, and keeps nothing between rounds.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedpohcs.core.learning import MFPOConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.learners.actor_critic import masked_mean
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.networks import MomentumParams
from fedpohcs.learners.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class MFPO(PolicyGradient):
    """Steps with momentum, corrected for the change of the policy since the last step."""

    config: MFPOConfig

    def init_params(self, key: jax.Array) -> Any:
        """Initial weights, and no direction yet."""
        policy = super().init_params(key).policy
        return MomentumParams(policy, jax.tree.map(jnp.zeros_like, policy))

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """One step of the policy, then the filters are updated."""
        del draws
        rate, momentum = self.config.learning_rate, self.config.momentum
        policy, last = now.params
        before = jax.tree.map(lambda x, step: x - rate * step, policy, last)
        batch = self.batch(now.params, now.filters, trajectory, sent.extra)
        weight = self.bounded_importance(before, batch.samples)
        own, earlier = self.ascent(policy, *batch), self.ascent(before, *batch, weight)
        started = jnp.any(jnp.array([jnp.any(x != 0) for x in jax.tree.leaves(last)]))  # the first step has no past
        kept = jnp.where(started, momentum, 0.0)
        direction = jax.tree.map(lambda new, u, old: new + kept * (u - old), own, last, earlier)
        result = self.stepped(now, trajectory, batch, direction, masked_mean(weight, batch.valid))
        params = result.now.params._replace(direction=direction)
        return result._replace(now=result.now._replace(params=params))
