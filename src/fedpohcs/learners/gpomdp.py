"""GPOMDP (Baxter and Bartlett, 2001): the gradient of mean(log pi G) over the episodes of one batch.

With an anchor, which SVRPG and FedPG-BR send, it is the difference of two gradients on the same episodes, with which
the server reduces the variance of its own steps (Papini et al., 2018).
"""

from dataclasses import dataclass
from typing import Any

import jax

from fedpohcs.core.learning import GPOMDPConfig
from fedpohcs.core.steering import ANCHOR, ANCHORED
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import tree_like
from fedpohcs.learners.actor_critic import masked_mean
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class GPOMDP(PolicyGradient):
    """A step along the gradient of every batch."""

    config: GPOMDPConfig

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """One step of the policy, then the filters are updated."""
        del draws
        batch = self.batch(now.params, now.filters, trajectory, sent.extra)
        direction, importance = self.ascent(now.params.policy, *batch), 1.0
        if ANCHORED in sent.extra:
            anchor = tree_like(now.params, sent.extra, ANCHOR).policy
            weight = self.importance(anchor, batch.samples)
            earlier = self.ascent(anchor, *batch, weight)
            direction = jax.tree.map(lambda new, old: new - sent.extra[ANCHORED] * old, direction, earlier)
            importance = masked_mean(weight, batch.valid)
        return self.stepped(now, trajectory, batch, direction, importance)
