"""Natural policy gradient (Kakade, 2001), with the step normalised to a given divergence (Rajeswaran et al., 2017)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from fedpohcs.core.learning import NPGConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actor_critic import (
    ActorCritic,
    Batch,
    UpdateInfo,
    critic_optimiser,
    decayed_entropy,
    make_batch,
    masked_mean,
)
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.networks import ActorCriticParams, PolicyParams, action_distribution

SMALLEST_RESIDUAL = 1e-10  # squared norm at which conjugate gradients stop
Weights = jax.Array  # all weights of the policy, [P]


def conjugate_gradients(product: Callable[[jax.Array], jax.Array], wanted: jax.Array, steps: int) -> jax.Array:
    """x with product(x) = wanted, up to the error of so many steps."""

    def step(_: int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, residual, direction, square = carry
        image = product(direction)
        length = square / (direction @ image)
        left = residual - length * image
        new = (x + length * direction, left, left + (left @ left / square) * direction, left @ left)
        return tuple(jnp.where(square > SMALLEST_RESIDUAL, a, b) for a, b in zip(new, carry, strict=True))

    start = (jnp.zeros_like(wanted), wanted, wanted, wanted @ wanted)
    return jax.lax.fori_loop(0, steps, step, start)[0]


class Problem(NamedTuple):
    """What a local iteration improves, as functions of all weights of the policy."""

    gain: Callable[[Weights], jax.Array]  # mean(w A) with the entropy bonus
    divergence: Callable[[Weights], jax.Array]  # mean KL(old || new)


@dataclass(frozen=True)
class NPG(ActorCritic):
    """One natural gradient step of the policy per local iteration, then the critic's epochs."""

    config: NPGConfig

    info = UpdateInfo._fields

    def init_memory(self, params: ActorCriticParams) -> optax.OptState:
        """The initial state of the critic's optimiser."""
        return critic_optimiser(self.config).init(params.critic)

    def schedule(self, round_number: int) -> AnyArray:
        """The entropy bonus of a round; rounds count from 0."""
        return np.float32(decayed_entropy(self.config, round_number))

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: jax.Array) -> IterationResult:
        """One step of the policy, the critic's epochs, then the filters are updated."""
        batch = make_batch(self.config, now.params, now.filters, trajectory, self.networks)
        policy = self.improved(now.params.policy, batch, sent.schedule)
        critic, memory = self.critic_learned(now.params.critic, now.memory, batch, draws)
        after = Progress(ActorCriticParams(policy, critic), self.observe(now.filters, trajectory), memory)
        return IterationResult(after, batch.valid.sum(), self.report(policy, critic, batch))

    def improved(self, policy: PolicyParams, batch: Batch, entropy_coefficient: jax.Array) -> PolicyParams:
        """The policy after its step."""
        start, unravel = ravel_pytree(policy)
        samples, valid = batch

        def divergence(weights: Weights) -> jax.Array:
            new = action_distribution(unravel(weights), samples.observation, self.networks.policy)
            return masked_mean(samples.old.kl_to(new), valid)  # pyright: ignore[reportArgumentType]

        problem = Problem(
            lambda weights: self.surrogate(unravel(weights), samples, valid, entropy_coefficient), divergence
        )
        return unravel(self.step(problem, start, self.full_step(problem, start)))

    def full_step(self, problem: Problem, start: Weights) -> Weights:
        """sqrt(2 delta / xHx) x with Hx = g, where g is the gradient of the gain and H the damped Fisher matrix."""
        slope = jax.grad(problem.divergence)

        def product(vector: jax.Array) -> jax.Array:
            return jax.jvp(slope, (start,), (vector,))[1] + self.config.damping * vector

        x = conjugate_gradients(product, jax.grad(problem.gain)(start), self.config.conjugate_steps)
        curvature = x @ product(x)
        # Without a gradient there is no step.
        return jnp.where(curvature > 0, jnp.sqrt(2 * self.config.kl_target / jnp.maximum(curvature, 1e-30)), 0.0) * x

    def step(self, problem: Problem, start: Weights, full: Weights) -> Weights:
        """The weights after the step: the whole of it."""
        del problem
        return start + full
