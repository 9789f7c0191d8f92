"""TD3 (Fujimoto et al., 2018): DDPG with twin critics, smoothed target actions, and delayed steps of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedpohcs.core.learning import TD3Config
from fedpohcs.learners.ddpg import DDPG, Info
from fedpohcs.learners.off_policy import PolicyAndCritic, Transitions, Weights


@dataclass(frozen=True)
class TD3(DDPG):
    """Twin delayed DDPG."""

    config: TD3Config

    num_critics: ClassVar[int] = 2
    loss_noise: ClassVar[int] = 1

    def update(self, now: Weights, batch: Transitions, noise: jax.Array, number: jax.Array) -> tuple[Weights, Info]:
        """One step of the critics; every `policy_delay` of them one of the policy and of the target networks."""
        now, loss, value = self.critic_step(now, batch, noise)

        def delayed(now: Weights) -> tuple[Weights, jax.Array]:
            return self.policy_step(now, batch, number // self.config.policy_delay)

        def skipped(now: Weights) -> tuple[Weights, jax.Array]:
            return now, jnp.float32(0)

        # `number` is the same for all clients, so that those mapped together skip the step together.
        now, policy_loss = jax.lax.cond(number % self.config.policy_delay == 0, delayed, skipped, now)
        return now, Info(loss, policy_loss * self.config.policy_delay, value)

    def target_value(self, target: PolicyAndCritic, batch: Transitions, noise: jax.Array) -> jax.Array:
        """r + gamma min_i Q'_i(s', a'), where a' is the target policy's action with clipped noise."""
        action = self.smoothed(self.best_action(target.policy, batch.next_observation), noise)
        return self.discounted(batch, self.least_value(target.critic, batch.next_observation, action))

    def smoothed(self, action: jax.Array, noise: jax.Array) -> Any:
        """Actions between -1 and 1 with noise that stays within its own bounds."""
        limit = self.config.smoothing_clip
        return (action + (self.config.smoothing * noise).clip(-limit, limit)).clip(-1, 1)
