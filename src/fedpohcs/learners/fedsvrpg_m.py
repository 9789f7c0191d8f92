"""FedSVRPG-M (Wang et al., 2024): local steps with the server's momentum, corrected on the client's own episodes.

    u = beta g(theta) + (1 - beta) (u_server + g(theta) - w g(theta_server)),     theta <- theta + eta u

with w = pi_theta_server / pi_theta and u_server the mean direction of the previous round.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedpohcs.core.learning import FedSVRPGMConfig
from fedpohcs.core.steering import CHANGE
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import tree_like
from fedpohcs.learners.actor_critic import masked_mean
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class FedSVRPGM(PolicyGradient):
    """Plain steps mixed with the server's direction. The server optimiser `last-change` sends it."""

    config: FedSVRPGMConfig

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """One step of the policy, then the filters are updated."""
        del draws
        config, anchor = self.config, sent.params.policy
        batch = self.batch(now.params, now.filters, trajectory, sent.extra)
        weight = self.bounded_importance(anchor, batch.samples)
        own, earlier = self.ascent(now.params.policy, *batch), self.ascent(anchor, *batch, weight)
        common = jax.tree.map(jnp.zeros_like, own)  # of the first round
        if any(name.startswith(CHANGE) for name in sent.extra):
            change = tree_like(sent.params, sent.extra, CHANGE).policy
            common = jax.tree.map(lambda x: x / (config.learning_rate * config.local_iterations), change)

        def mixed(own: jax.Array, earlier: jax.Array, common: jax.Array) -> jax.Array:
            return config.beta * own + (1 - config.beta) * (common + own - earlier)

        direction = jax.tree.map(mixed, own, earlier, common)
        return self.stepped(now, trajectory, batch, direction, masked_mean(weight, batch.valid))
