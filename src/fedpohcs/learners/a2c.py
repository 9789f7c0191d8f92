"""Advantage actor-critic (A2C; Mnih et al., 2016): one step along the policy gradient per local iteration.

Advantages are those of PPO here: generalised (Schulman et al., 2016) and standardised over the batch.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from fedpohcs.core.learning import A2CConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.learners.actor_critic import (
    ActorCritic,
    Schedule,
    UpdateInfo,
    critic_optimiser,
    decayed_entropy,
    make_batch,
)
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.networks import ActorCriticParams
from fedpohcs.learners.ppo import OptimiserState

SMALLEST_ROOT = 1e-5  # added to the root of the mean square


@dataclass(frozen=True)
class A2C(ActorCritic):
    """A step of RMSProp along the gradient of mean(log pi A) on the whole batch, then the critic's epochs."""

    config: A2CConfig

    info = UpdateInfo._fields

    def init_memory(self, params: ActorCriticParams) -> OptimiserState:
        """Initial states of both optimisers."""
        return OptimiserState(self._optimiser().init(params.policy), critic_optimiser(self.config).init(params.critic))

    def schedule(self, round_number: int) -> Schedule:
        """Learning rate and entropy bonus of a round; rounds count from 0."""
        rate = self.config.learning_rate * self.config.learning_rate_decay**round_number
        return Schedule(np.float32(rate), np.float32(decayed_entropy(self.config, round_number)))

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: jax.Array) -> IterationResult:
        """One step of the policy, the critic's epochs, then the filters are updated."""
        batch = make_batch(self.config, now.params, now.filters, trajectory, self.networks)
        gradient = jax.grad(self.surrogate)(
            now.params.policy, batch.samples, batch.valid, sent.schedule.entropy_coefficient
        )
        direction, state = self._optimiser().update(gradient, now.memory.policy)
        step = jax.tree.map(lambda x: sent.schedule.learning_rate * x, direction)
        policy: Any = optax.apply_updates(now.params.policy, step)
        critic, critic_state = self.critic_learned(now.params.critic, now.memory.critic, batch, draws)
        memory, info = OptimiserState(state, critic_state), self.report(policy, critic, batch)
        after = Progress(ActorCriticParams(policy, critic), self.observe(now.filters, trajectory), memory)
        return IterationResult(after, batch.valid.sum(), info)

    def _optimiser(self) -> optax.GradientTransformation:
        config = self.config
        return optax.chain(
            optax.clip_by_global_norm(config.max_gradient_norm),
            optax.scale_by_rms(config.square_decay, SMALLEST_ROOT, eps_in_sqrt=False),
        )
