"""FMARL (Xu et al., 2021): learning rates that decay with every gradient step of a round.

Late steps of a round follow a policy that has drifted from the one that the server sent, so they count less.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpohcs.core.learning import FMARLConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.networks import AgentParams
from fedpohcs.learners.ppo import PPO, LocalRule, OptimiserState, plain_rule


@dataclass(frozen=True)
class FMARL(PPO):
    """PPO whose policy takes step j of a round with the learning rate times lambda^(j/2)."""

    config: FMARLConfig

    def rule(self, anchor: AgentParams) -> LocalRule:
        """Steps that get shorter; the optimiser of the policy counts them."""
        del anchor
        decay = optax.scale_by_schedule(lambda step: self.config.local_decay ** (0.5 * step))
        plain = plain_rule(self.config)
        return plain._replace(policy=optax.chain(plain.policy, decay))

    def draws(self, generator: np.random.Generator) -> Any:
        """As for PPO, with the numbers of the local iterations."""
        return super().draws(generator), np.arange(self.config.local_iterations)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """A local iteration of PPO. The first one of a round starts to count steps anew."""
        shuffles, number = draws
        now = now._replace(memory=counted_from(now.memory, number == 0))
        return super().learn(sent, now, trajectory, shuffles)


def counted_from(memory: OptimiserState, anew: jax.Array) -> OptimiserState:
    """The memory with the count of steps set to 0 where `anew` holds; momentum stays."""
    states: Any = memory.policy  # of a chain of two
    plain, decay = states
    return memory._replace(policy=(plain, decay._replace(count=jnp.where(anew, 0, decay.count))))
