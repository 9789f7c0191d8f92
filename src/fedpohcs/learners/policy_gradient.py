"""What learners share that follow the gradient of whole episodes: rewards to go, batches, importance weights.

A local iteration has a number of episodes, not of steps. A server optimiser may ask for fewer than the config by
sending `EPISODES`; then the others do not count.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpohcs.core.learning import PolicyGradientConfig
from fedpohcs.core.steering import EPISODES
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.types import Extra
from fedpohcs.learners.actor_critic import masked_mean
from fedpohcs.learners.actors import PolicyActor, policy_actor, sight_of
from fedpohcs.learners.base import IterationResult, Learner, Progress
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.learners.filters import Filters
from fedpohcs.learners.gae import generalised_advantage
from fedpohcs.learners.networks import (
    Apply,
    PolicyOnlyParams,
    PolicyParams,
    action_distribution,
    agent_of,
    apply_of,
    make_network,
    num_outputs,
)

LEAST_WEIGHT, LARGEST_WEIGHT = 1e-3, 1.8  # bounds of importance weights in local steps
SMALLEST_DEVIATION = 1e-8  # of the returns of an episode, by which they are divided


class Steps(NamedTuple):
    """Values per step that the gradient reads, [M, ...]."""

    observation: jax.Array  # filtered
    action: jax.Array
    gain: jax.Array  # discounted reward to go, whitened
    old: Gaussian | Categorical  # the distribution from which the action was drawn


class Batch(NamedTuple):
    """The steps of one local iteration: flattened lanes, padding included."""

    samples: Steps
    valid: jax.Array  # [M]


class Info(NamedTuple):
    """Numbers that one local iteration reports."""

    gradient_norm: jax.Array  # of the direction that was followed
    entropy: jax.Array
    importance: jax.Array  # mean importance weight of the policy compared with; 1 where there is none


def to_go(x: jax.Array, trajectory: Trajectory, discount: float) -> jax.Array:
    """The discounted sum from each step to the end of its episode, [T, E]; 0 at padding."""
    running = trajectory.status == Status.RUNNING
    return generalised_advantage(jnp.where(trajectory.valid, x, 0.0), running, discount, 1.0)


def episode_mean(x: jax.Array, trajectory: Trajectory) -> jax.Array:
    """The mean of x over the episode of each step, [T, E]."""
    number = jnp.arange(len(x)).reshape(-1, 1)
    opening = jnp.concatenate([jnp.ones_like(trajectory.last[:1]), trajectory.last[:-1]])
    first = jax.lax.cummax(jnp.where(opening, number, 0), axis=0)
    mean = to_go(x, trajectory, 1.0) / jnp.maximum(to_go(jnp.ones_like(x), trajectory, 1.0), 1.0)
    return jnp.take_along_axis(mean, first, axis=0)


def whitened_returns(reward: jax.Array, trajectory: Trajectory, discount: float) -> jax.Array:
    """Rewards to go with mean 0 and standard deviation 1 within each episode (as FedPG-BR's authors have them)."""
    returns = to_go(reward, trajectory, discount)
    deviation = returns - episode_mean(returns, trajectory)
    scale = jnp.sqrt(episode_mean(deviation**2, trajectory))
    return jnp.where(trajectory.valid, deviation / (scale + SMALLEST_DEVIATION), 0.0)


def standardised_returns(reward: jax.Array, trajectory: Trajectory, discount: float) -> jax.Array:
    """Rewards to go with mean 0 and standard deviation 1 over all steps."""
    returns = to_go(reward, trajectory, discount)
    deviation = returns - masked_mean(returns, trajectory.valid)
    scale = jnp.sqrt(masked_mean(deviation**2, trajectory.valid))
    return jnp.where(trajectory.valid, deviation / (scale + SMALLEST_DEVIATION), 0.0)


def counted_steps(trajectory: Trajectory, extra: Extra) -> jax.Array:
    """The steps of the episodes that count, [T, E]: all, or the first of so many as the server asks for.

    Episodes are numbered lane by lane, or one after the other in a single lane.
    """
    if EPISODES not in extra:
        return jnp.asarray(trajectory.valid)
    ended = jnp.cumsum(trajectory.last, axis=0) - trajectory.last  # earlier episodes of the lane
    earlier = jnp.cumsum(trajectory.last.sum(axis=0)) - trajectory.last.sum(axis=0)  # episodes of earlier lanes
    return trajectory.valid & (ended + earlier < extra[EPISODES])


@dataclass(frozen=True)
class PolicyGradient(Learner):
    """A learner with a policy alone. Derived classes say which direction it follows."""

    config: PolicyGradientConfig

    info = Info._fields

    @property
    def records_next(self) -> bool:
        """Rewards to go read nothing of what follows an episode."""
        return False

    @property
    def network(self) -> Apply:
        """The function that computes the policy from weights."""
        return apply_of(self.config, self.world.observation_size, num_outputs(self.world.actions))

    def init_params(self, key: jax.Array) -> PolicyOnlyParams:
        """Initial weights of the policy: those that learners with a critic have too."""
        inputs, outputs = self.world.observation_size, num_outputs(self.world.actions)
        policy, critic = make_network(self.config, inputs, outputs), make_network(self.config, inputs, 1)
        return PolicyOnlyParams(agent_of(key, self.world.actions, policy, critic, kl_coefficient=0.0).policy)

    def init_memory(self, params: PolicyOnlyParams) -> Any:
        """Nothing is remembered."""
        del params
        return ()

    def actor(self, params: PolicyOnlyParams, filters: Filters, schedule: Any, *, training: bool) -> PolicyActor:
        """Draws from the policy, in training and in evaluations alike."""
        del schedule, training
        return policy_actor(self.noise, params.policy, sight_of(filters, self.config.observation_limit), self.network)

    def distribution(self, params: PolicyOnlyParams, observation: jax.Array) -> Gaussian | Categorical:
        """pi(. | s) of filtered observations."""
        return action_distribution(params.policy, observation, self.network)

    def batch(self, params: PolicyOnlyParams, filters: Filters, trajectory: Trajectory, extra: Extra) -> Batch:
        """The steps of a trajectory, lanes flattened."""
        observation = self.filtered(filters, trajectory.observation)
        reward = self.filtered_reward(filters, trajectory.reward)
        whiten = whitened_returns if self.config.whitening == "episode" else standardised_returns
        gain = whiten(reward, trajectory, self.config.discount)
        samples = Steps(observation, trajectory.action, gain, self.distribution(params, observation))
        counted = counted_steps(trajectory, extra)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), Batch(samples, counted))

    def loss_samples(self, params: PolicyOnlyParams, filters: Filters, trajectory: Trajectory) -> Batch:
        """Recorded steps as one batch."""
        return self.batch(params, filters, trajectory, {})

    def gradient(self, params: Any, samples: Steps, mask: jax.Array) -> PolicyParams:
        """Gradient of -mean(log pi G)."""
        return jax.tree.map(jnp.negative, self.ascent(params.policy, samples, mask))

    def ascent(
        self, policy: PolicyParams, samples: Steps, mask: jax.Array, weight: jax.Array | float = 1.0
    ) -> PolicyParams:
        """Gradient of mean(w log pi G), with given importance weights w."""

        def gain(policy: PolicyParams) -> jax.Array:
            new = action_distribution(policy, samples.observation, self.network)
            return masked_mean(weight * new.log_prob(samples.action) * samples.gain, mask)

        return jax.grad(gain)(policy)

    def importance(self, other: PolicyParams, samples: Steps) -> jax.Array:
        """w = pi_other(a|s) / pi_old(a|s) of every step, [M]."""
        new = action_distribution(other, samples.observation, self.network)
        return jnp.exp(new.log_prob(samples.action) - samples.old.log_prob(samples.action))

    def bounded_importance(self, other: PolicyParams, samples: Steps) -> jax.Array:
        """The same within the bounds of FedSVRPG-M, without which a long local step can make weights huge."""
        return jnp.clip(self.importance(other, samples), LEAST_WEIGHT, LARGEST_WEIGHT)

    def stepped(
        self,
        now: Progress,
        trajectory: Trajectory,
        batch: Batch,
        direction: PolicyParams,
        importance: jax.Array | float = 1.0,
    ) -> IterationResult:
        """A step of the policy in this direction, then the filters are updated."""
        rate = self.config.learning_rate
        policy = jax.tree.map(lambda x, slope: x + rate * slope, now.params.policy, direction)
        after = Progress(now.params._replace(policy=policy), self.observe(now.filters, trajectory), now.memory)
        return IterationResult(after, trajectory.valid.sum(), self.report(direction, batch, importance))

    def report(self, direction: PolicyParams, batch: Batch, importance: jax.Array | float = 1.0) -> Info:
        """The numbers of a local iteration that follows this direction."""
        square = sum(jnp.sum(x**2) for x in jax.tree.leaves(direction))
        entropy = masked_mean(batch.samples.old.entropy(), batch.valid)
        return Info(jnp.sqrt(square), entropy, jnp.asarray(importance, jnp.float32))
