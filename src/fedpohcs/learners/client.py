"""What one client does when the server asks: start, train, evaluate, measure. Pure functions of one client.

Each takes what all clients share and what is the client's own, and is mapped over clients by an executor.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpohcs.config import LearnerConfig
from fedpohcs.envs.base import EnvParams, TracedWorld
from fedpohcs.learners.distributions import Categorical, Gaussian
from fedpohcs.learners.filters import Filters, filter_observation, init_filters, update_moments
from fedpohcs.learners.networks import AgentParams, action_distribution, init_agent
from fedpohcs.learners.ppo import (
    OptimiserState,
    Schedule,
    UpdateInfo,
    advantages,
    init_optimisers,
    make_batch,
    policy_loss,
    update,
    valid_first,
)
from fedpohcs.learners.rollout import Trajectory, collect_episodes

GRADIENT_BATCHES, GRADIENT_BATCH_SIZE = 4, 512


class Shared(NamedTuple):
    """What the server sends to everyone."""

    params: AgentParams
    key: jax.Array  # of the round and purpose
    schedule: Schedule


class Own(NamedTuple):
    """What a client has: its id, its world, its filters."""

    client: jax.Array
    env: EnvParams
    filters: Filters


class Trained(NamedTuple):
    """The outcome of local training."""

    params: AgentParams
    filters: Filters
    optimisers: OptimiserState
    steps: jax.Array
    info: UpdateInfo  # of the last local iteration


class Evaluated(NamedTuple):
    """The outcome of an evaluation."""

    mean_return: jax.Array
    steps: jax.Array
    filters: Filters
    trajectory: Trajectory


@dataclass(frozen=True)
class Learner:
    """PPO in a traced world. Learners that compare equal share their compiled programs."""

    world: TracedWorld
    config: LearnerConfig
    evaluation_episodes: int

    @property
    def lane_steps(self) -> int:
        """Steps each of the parallel episodes must exceed in one local iteration."""
        return -(-self.config.steps_per_iteration // self.config.parallel_episodes)

    @property
    def batch_length(self) -> int:
        """Most steps one local iteration can collect."""
        return (self.lane_steps + self.world.horizon) * self.config.parallel_episodes

    def init_params(self, key: jax.Array) -> AgentParams:
        """The initial weights, the same for every selector of a seed."""
        config, world = self.config, self.world
        return init_agent(key, world.observation_size, world.actions, config.hidden_sizes, config.kl_coefficient)

    def init_filters(self) -> Filters:
        return init_filters(self.world.observation_size)

    def init_optimisers(self, params: AgentParams) -> OptimiserState:
        return init_optimisers(self.config, params)

    def schedule(self, round_number: int) -> Schedule:
        """Learning rate and entropy bonus of a round; rounds count from 0."""
        config = self.config
        rate = max(config.learning_rate * config.learning_rate_decay**round_number, config.learning_rate_floor)
        entropy = config.entropy_coefficient * 0.1 ** (round_number // config.entropy_decay_rounds)
        return Schedule(jnp.float32(rate), jnp.float32(max(entropy, min(1e-8, config.entropy_coefficient))))

    def shuffles(self, generator: np.random.Generator) -> np.ndarray:
        """Permutations for the minibatches of one local training, [I, epochs + critic_epochs, M]."""
        config = self.config
        shape = (config.local_iterations, config.epochs + config.critic_epochs, self.batch_length)
        ordered = np.broadcast_to(np.arange(self.batch_length, dtype=np.int32), shape)
        return generator.permuted(ordered, axis=-1)

    def warm_up(self, shared: Shared, own: Own) -> Filters:
        """Start the filters with episodes of the initial policy; about `filter_warmup_steps` steps."""
        lanes = -(-self.config.filter_warmup_steps // self.world.horizon)
        return self._updated(own.filters, self._collect(shared, own, lanes=lanes, min_steps=0))

    def evaluate(self, shared: Shared, own: Own) -> Evaluated:
        """Play whole episodes with the stochastic policy; returns are raw and undiscounted."""
        trajectory = self._collect(shared, own, lanes=self.evaluation_episodes, min_steps=0)
        mean_return = jnp.where(trajectory.valid, trajectory.reward, 0.0).sum() / self.evaluation_episodes
        filters = self._updated(own.filters, trajectory)
        return Evaluated(mean_return, trajectory.valid.sum(), filters, trajectory)

    def train(self, shared: Shared, own: Own, optimisers: OptimiserState, shuffles: jax.Array) -> Trained:
        """I local iterations of collecting and updating, one compiled program. Paper: Alg. 3, l. 11."""
        config = self.config

        def iterate(carry: Any, inputs: Any) -> Any:
            params, filters, optimisers = carry
            key, shuffle = inputs
            trajectory = self._collect(
                shared._replace(params=params, key=key),
                own._replace(filters=filters),
                lanes=config.parallel_episodes,
                min_steps=self.lane_steps,
            )
            batch = make_batch(config, params, filters, trajectory)
            params, optimisers, info = update(config, shared.schedule, params, optimisers, batch, shuffle)
            return (params, self._updated(filters, trajectory), optimisers), (batch.valid.sum(), info)

        keys = jax.random.split(shared.key, config.local_iterations)
        carry = (shared.params, own.filters, optimisers)
        (params, filters, optimisers), (steps, info) = jax.lax.scan(iterate, carry, (keys, shuffles))
        return Trained(params, filters, optimisers, steps.sum(), jax.tree.map(lambda x: x[-1], info))

    def gradient_norm(self, shared: Shared, own: Own, trajectory: Trajectory) -> jax.Array:
        """Mean norm of the surrogate's gradient over a few minibatches of a recorded trajectory."""
        batch = make_batch(self.config, shared.params, own.filters, trajectory)
        key = jax.random.fold_in(shared.key, own.client)
        order = valid_first(jax.random.permutation(key, batch.valid.size), batch.valid)
        chosen = order[: GRADIENT_BATCHES * GRADIENT_BATCH_SIZE].reshape(GRADIENT_BATCHES, -1)
        position = jnp.arange(chosen.size).reshape(chosen.shape)
        mask = position < batch.valid.sum()

        def norm(inputs: Any) -> jax.Array:
            indices, mask = inputs
            samples = jax.tree.map(lambda x: x[indices], batch.samples)
            beta, no_bonus = shared.params.kl_coefficient, jnp.float32(0)
            gradient = jax.grad(policy_loss)(shared.params.policy, self.config, samples, mask, beta, no_bonus)
            return optax.tree.norm(gradient)

        norms = jax.lax.map(norm, (chosen, mask))
        weight = mask.any(axis=1)
        return (norms * weight).sum() / jnp.maximum(weight.sum(), 1)

    def step_advantages(self, shared: Shared, own: Own, trajectory: Trajectory) -> jax.Array:
        """GAE samples of a recorded trajectory, [T, E]."""
        return advantages(self.config, shared.params, own.filters, trajectory)[0]

    def distribution(self, shared: Shared, observation: jax.Array) -> Gaussian | Categorical:
        """pi(. | s) of filtered observations."""
        return action_distribution(shared.params.policy, observation)

    def _collect(self, shared: Shared, own: Own, *, lanes: int, min_steps: int) -> Trajectory:
        def act(observation: jax.Array, noise: jax.Array) -> jax.Array:
            filtered = filter_observation(own.filters, observation, self.config.observation_clip)
            return action_distribution(shared.params.policy, filtered).sample(noise)

        key = jax.random.fold_in(shared.key, own.client)
        return collect_episodes(key, self.world, own.env, act, lanes=lanes, min_steps=min_steps)

    @staticmethod
    def _updated(filters: Filters, trajectory: Trajectory) -> Filters:
        return Filters(
            update_moments(filters.observation, trajectory.observation, trajectory.valid),
            update_moments(filters.reward, trajectory.reward, trajectory.valid),
        )
