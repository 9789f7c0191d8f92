"""FedNPG-ADMM (Lan et al., 2023): clients agree on a natural gradient and send vectors, no Fisher matrices.

lambda_n <- lambda_n + rho (y_n - y)                            (of the round before, when y has arrived)
y_n = (H_n + rho)^-1 (g_n - lambda_n + rho y)
y = mean(y_n + lambda_n / rho),     theta <- theta + eta y      (server optimiser `last-change`)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedpohcs.core.learning import FedNPGADMMConfig
from fedpohcs.core.steering import CHANGE
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import tree_like
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actor_critic import masked_mean
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.networks import PolicyOnlyParams, PolicyParams, action_distribution
from fedpohcs.learners.npg import conjugate_gradients
from fedpohcs.learners.policy_gradient import Batch, PolicyGradient


class Memory(NamedTuple):
    """What a client keeps between its rounds; all 0 before the first."""

    multiplier: PolicyParams  # lambda_n
    own: PolicyParams  # y_n
    trained: AnyArray  # whether there is a y_n


@dataclass(frozen=True)
class FedNPGADMM(PolicyGradient):
    """One step of the alternating direction method per round."""

    config: FedNPGADMMConfig

    def init_memory(self, params: PolicyOnlyParams) -> Memory:
        """Nothing is known yet."""
        nothing = jax.tree.map(np.zeros_like, params.policy)
        return Memory(nothing, nothing, np.zeros((), bool))

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """The client's natural gradient near the common one; it is sent with the multiplier as a change of weights."""
        del draws
        rho, memory = self.config.penalty, now.memory
        batch = self.batch(now.params, now.filters, trajectory, sent.extra)
        common = jax.tree.map(jnp.zeros_like, now.params.policy)
        if any(name.startswith(CHANGE) for name in sent.extra):
            common = tree_like(sent.params, sent.extra, CHANGE).policy
        gap = jnp.where(memory.trained, rho, 0.0)
        multiplier = jax.tree.map(lambda x, y_n, y: x + gap * (y_n - y), memory.multiplier, memory.own, common)
        gradient = self.ascent(now.params.policy, *batch)
        wanted = jax.tree.map(lambda g, x, y: g - x + rho * y, gradient, multiplier, common)
        own = self.natural(now.params.policy, batch, wanted)
        direction = jax.tree.map(lambda y_n, x: y_n + x / rho, own, multiplier)
        kept = now._replace(memory=Memory(multiplier, own, jnp.ones((), bool)))
        return self.stepped(kept, trajectory, batch, direction)

    def natural(self, policy: PolicyParams, batch: Batch, wanted: PolicyParams) -> PolicyParams:
        """x with (H + rho) x = wanted, H the Fisher matrix of the batch."""
        start, unravel = ravel_pytree(policy)
        samples, valid = batch

        def divergence(weights: jax.Array) -> jax.Array:
            new = action_distribution(unravel(weights), samples.observation, self.network)
            return masked_mean(samples.old.kl_to(new), valid)  # pyright: ignore[reportArgumentType]

        def product(vector: jax.Array) -> jax.Array:
            return jax.jvp(jax.grad(divergence), (start,), (vector,))[1] + self.config.penalty * vector

        return unravel(conjugate_gradients(product, ravel_pytree(wanted)[0], self.config.conjugate_steps))
