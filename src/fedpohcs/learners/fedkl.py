"""FedKL (Xie and Song, 2023): a penalty on the distance between the local policy and the one that the server sent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.learning import FedKLConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actor_critic import Samples, make_batch, masked_mean
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.learners.networks import AgentParams, action_distribution
from fedpohcs.learners.ppo import KL_TOLERANCE, LARGEST_KL_COEFFICIENT, PPO, OptimiserState, update

SMALLEST_SQUARE = 1e-8  # under a root, whose slope has no bound at 0

Distribution = Gaussian | Categorical
Distance = Callable[[Any, Any, Samples], jax.Array]
"""From the policy sent, the new policy and the samples to a distance per sample."""


class Memory(NamedTuple):
    """What a client keeps between local iterations."""

    optimisers: OptimiserState
    coefficient: AnyArray  # sigma; every round starts from the value of the config


class Info(NamedTuple):
    """Numbers that one local iteration reports."""

    kl: jax.Array
    entropy: jax.Array
    critic_loss: jax.Array
    anchor_distance: jax.Array  # mean over the batch
    anchor_coefficient: jax.Array  # sigma of this iteration


def root(square: jax.Array) -> jax.Array:
    """The root of a square, constant where it is tiny."""
    return jnp.sqrt(jnp.maximum(square, SMALLEST_SQUARE))


def divergence(sent: Any, new: Any, samples: Samples) -> jax.Array:
    """KL(sent || new)."""
    del samples
    return sent.kl_to(new)


def root_divergence(sent: Any, new: Any, samples: Samples) -> jax.Array:
    """The root of the divergence, which bounds the total variation (Pinsker)."""
    return root(divergence(sent, new, samples))


def total_variation(sent: Any, new: Any, samples: Samples) -> jax.Array:
    """Half the sum of |new - sent| over actions. For normal distributions, its estimate from the action taken."""
    if isinstance(new, Categorical):
        return 0.5 * jnp.abs(jnp.exp(new.logits) - jnp.exp(sent.logits)).sum(-1)
    taken = samples.old.log_prob(samples.action)
    ratios = (jnp.exp(policy.log_prob(samples.action) - taken) for policy in (new, sent))
    return 0.5 * jnp.abs(next(ratios) - next(ratios))


def mahalanobis(sent: Gaussian, new: Gaussian, samples: Samples) -> jax.Array:
    """Distance of the means in units of the mean variance of both."""
    del samples
    variance = 0.5 * (jnp.exp(2 * sent.log_std) + jnp.exp(2 * new.log_std))
    return root(((new.mean - sent.mean) ** 2 / variance).sum(-1))


def wasserstein(sent: Gaussian, new: Gaussian, samples: Samples) -> jax.Array:
    """The 2-Wasserstein distance of normal distributions with independent actions."""
    del samples
    stds = (jnp.exp(new.log_std) - jnp.exp(sent.log_std)) ** 2
    return root(((new.mean - sent.mean) ** 2 + stds).sum(-1))


DISTANCES: dict[str, Distance] = {
    "sqrt-kl": root_divergence,
    "kl": divergence,
    "tv": total_variation,
    "mahalanobis": mahalanobis,
    "wasserstein": wasserstein,
}


def adapt_coefficient(
    coefficient: jax.Array, distance: jax.Array, target: float, least: float, largest_advantage: jax.Array
) -> jax.Array:
    """sigma doubles if the mean distance is too large and halves if it is small, but not below `least`.

    It is bounded, so that the penalty alone does not exceed the largest advantage.
    """
    doubled = jnp.where(distance > target * KL_TOLERANCE, 2 * coefficient, coefficient)
    adapted = jnp.where(distance < target / KL_TOLERANCE, 0.5 * coefficient, doubled)
    ceiling = jnp.minimum(LARGEST_KL_COEFFICIENT, largest_advantage / jnp.maximum(distance, 1e-12))
    return jnp.minimum(jnp.maximum(adapted, least), ceiling)


@dataclass(frozen=True)
class FedKL(PPO):
    """PPO with an adaptive penalty on the distance to the policy that the server sent."""

    config: FedKLConfig

    info = Info._fields

    def init_memory(self, params: AgentParams) -> Memory:
        """Initial states of both optimisers, and sigma."""
        return Memory(super().init_memory(params), np.float32(self.config.anchor_coefficient))

    def draws(self, generator: np.random.Generator) -> Any:
        """As for PPO, with the numbers of the local iterations."""
        return super().draws(generator), np.arange(self.config.local_iterations)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """A local iteration of PPO with the penalty; then sigma adapts."""
        config, networks = self.config, self.networks
        shuffles, number = draws
        optimisers, kept = now.memory
        sigma = jnp.where(number == 0, jnp.float32(config.anchor_coefficient), kept)
        rule = self.rule(sent.params)
        if config.anchor_coefficient > 0:
            rule = rule._replace(penalty=lambda samples, new: sigma * self.distance(sent.params, samples, new))
        batch = make_batch(config, now.params, now.filters, trajectory, networks)
        params, optimisers, info = update(
            config, sent.schedule, now.params, optimisers, batch, shuffles, networks, rule
        )
        new = action_distribution(params.policy, batch.samples.observation, networks.policy)
        distance = masked_mean(self.distance(sent.params, batch.samples, new), batch.valid)
        largest = jnp.where(batch.valid, batch.samples.advantage, -jnp.inf).max()
        adapted = adapt_coefficient(sigma, distance, config.anchor_target, config.anchor_coefficient, largest)
        now = Progress(params, self.observe(now.filters, trajectory), Memory(optimisers, adapted))
        return IterationResult(now, batch.valid.sum(), Info(*info, distance, sigma))

    def distance(self, anchor: AgentParams, samples: Samples, new: Distribution) -> jax.Array:
        """Distance to the policy sent, in the states of the samples."""
        sent = action_distribution(anchor.policy, samples.observation, self.networks.policy)
        return DISTANCES[self.config.anchor_distance](sent, new, samples)
