"""What clients do when the server asks: start, train, evaluate, measure. Pure functions, compiled by an executor.

Each public method takes what all clients share and, with a leading client axis, what is their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.config import LearnerConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import AnyArray
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
from fedpohcs.learners.rollout import CLIENT_AXIS, Noise, collect_episodes, draw_noise, rollout_length
from fedpohcs.worlds.base import EnvParams

GRADIENT_BATCHES, GRADIENT_BATCH_SIZE = 4, 512


class Shared(NamedTuple):
    """What the server sends to everyone."""

    params: AgentParams
    key: jax.Array  # of the round and purpose
    schedule: Schedule


class Own(NamedTuple):
    """What clients have: id, world, filters."""

    client: AnyArray
    env: EnvParams
    filters: Filters


class Learning(NamedTuple):
    """Where clients stand between two local iterations."""

    params: AgentParams
    filters: Filters
    optimisers: OptimiserState


class Learned(NamedTuple):
    """The outcome of one local iteration."""

    now: Learning
    steps: AnyArray
    info: UpdateInfo


class Trained(NamedTuple):
    """The outcome of local training."""

    params: AgentParams
    filters: Filters
    optimisers: OptimiserState
    steps: AnyArray
    info: UpdateInfo  # of the last local iteration
    num_lost: AnyArray | None = None  # episodes given up; None where that cannot happen


class Evaluated(NamedTuple):
    """The outcome of an evaluation."""

    mean_return: AnyArray
    steps: AnyArray
    filters: Filters
    trajectory: Trajectory | None  # [T, C, E]; None once it is put away
    num_lost: AnyArray | None = None  # episodes given up; None where that cannot happen


@dataclass(frozen=True)
class Learner:
    """PPO in a world. Learners that compare equal share their compiled programs.

    `evaluate` and `train` need a traced world; `learn` is the part of training that every world shares.
    """

    world: Any  # TracedWorld, or any World for what plays no episodes
    config: LearnerConfig
    evaluation_episodes: int
    filter_weight: float = 1.0  # of a step outside training

    @property
    def batch_length(self) -> int:
        """Room for the steps of one local iteration."""
        return rollout_length(self.world, self.config.steps_per_iteration)

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

    def evaluate(self, shared: Shared, own: Own) -> Evaluated:
        """Play whole episodes with the stochastic policy; returns are raw and undiscounted."""
        trajectory = self._play(shared, own, self.evaluation_episodes)
        total = jnp.where(trajectory.valid, trajectory.reward, 0.0).sum(axis=(0, 2))
        steps = trajectory.valid.sum(axis=(0, 2))
        updated_filters = partial(self.updated_filters, weight=self.filter_weight)
        filters = jax.vmap(updated_filters, in_axes=(0, 1))(own.filters, trajectory)
        return Evaluated(total / self.evaluation_episodes, steps, filters, trajectory)

    def train(self, shared: Shared, own: Own, optimisers: OptimiserState, shuffles: jax.Array) -> Trained:
        """I local iterations of collecting and updating, one compiled program. Paper: Alg. 3, l. 11."""
        one = jax.vmap(self._train_one, in_axes=(None, 0, 0, 0), axis_name=CLIENT_AXIS)
        return one(shared, own, optimisers, shuffles)

    def learn(self, schedule: Schedule, now: Learning, trajectory: Trajectory, shuffle: jax.Array) -> Learned:
        """One local iteration on episodes that somebody else collected, [C, T, E]."""
        one = jax.vmap(self._learn_one, in_axes=(None, 0, 0, 0), axis_name=CLIENT_AXIS)
        return one(schedule, now, trajectory, shuffle)

    def minibatch_gradients(
        self, shared: Shared, own: Own, trajectory: Trajectory, read: Callable[[Any], jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """`read` of the gradient of the policy's loss on a few minibatches of one client's recorded steps, [B, ...].

        The second array, [B, M], tells which entries of a minibatch are steps; the others are padding.
        """
        batch = make_batch(self.config, shared.params, own.filters, trajectory)
        key = jax.random.fold_in(shared.key, own.client)
        order = valid_first(jax.random.permutation(key, batch.valid.size), batch.valid)
        chosen = order[: GRADIENT_BATCHES * GRADIENT_BATCH_SIZE]
        chosen = jnp.pad(chosen, (0, -chosen.size % GRADIENT_BATCHES)).reshape(GRADIENT_BATCHES, -1)
        position = jnp.arange(chosen.size).reshape(chosen.shape)  # padding comes last, where no step is valid
        is_step = position < batch.valid.sum()

        def read_gradient(inputs: Any) -> jax.Array:
            indices, mask = inputs
            samples = jax.tree.map(lambda x: x[indices], batch.samples)
            beta, no_bonus = shared.params.kl_coefficient, jnp.float32(0)
            return read(jax.grad(policy_loss)(shared.params.policy, self.config, samples, mask, beta, no_bonus))

        return jax.lax.map(read_gradient, (chosen, is_step)), is_step

    def step_advantages(self, shared: Shared, own: Own, trajectory: Trajectory) -> jax.Array:
        """GAE samples of recorded trajectories, [C, T, E]."""
        gae = partial(advantages, self.config, shared.params)
        return jax.vmap(lambda filters, trajectory: gae(filters, trajectory)[0])(own.filters, trajectory)

    def distribution(self, shared: Shared, observation: jax.Array) -> Gaussian | Categorical:
        """pi(. | s) of filtered observations."""
        return action_distribution(shared.params.policy, observation)

    def _play(self, shared: Shared, own: Own, episodes: int) -> Trajectory:
        """So many episodes of every client, [T, C, E]. All are lanes of one rollout, as they share the policy."""
        num_lanes = own.client.size * episodes

        def draw(client: jax.Array) -> Noise:
            return draw_noise(jax.random.fold_in(shared.key, client), self.world, episodes, min_steps=0)

        def by_lane(x: jax.Array) -> jax.Array:
            return jnp.repeat(x, episodes, axis=0)

        def act(observation: jax.Array, noise: jax.Array) -> jax.Array:
            filtered = jax.vmap(self._filtered)(filters, observation)
            return action_distribution(shared.params.policy, filtered).sample(noise)

        noise = jax.vmap(draw, out_axes=Noise(0, 1, 1, 1))(own.client)
        lanes = Noise(
            noise.start.reshape(num_lanes, -1), *(x.reshape(x.shape[0], num_lanes, *x.shape[3:]) for x in noise[1:])
        )
        filters = jax.tree.map(by_lane, own.filters)
        env = jax.tree.map(by_lane, own.env)
        trajectory = collect_episodes(
            lanes, self.world, env, act, 0, record_next=self.config.bootstrap_at_time_limit, largest=lambda x: x
        )
        return jax.tree.map(lambda x: x.reshape(x.shape[0], -1, episodes, *x.shape[2:]), trajectory)

    def _filtered(self, filters: Filters, observation: jax.Array) -> jax.Array:
        return filter_observation(filters, observation, self.config.observation_limit)

    def updated_filters(self, filters: Filters, trajectory: Trajectory, weight: float = 1.0) -> Filters:
        """The filters of one client after what it has seen, each step counted `weight` times. NumPy or JAX.

        One that is switched off never learns anything.
        """
        observation, reward = filters
        if self.config.filter_observations:
            observation = update_moments(observation, trajectory.observation, trajectory.valid, weight)
        if self.config.filter_rewards:
            reward = update_moments(reward, trajectory.reward, trajectory.valid, weight)
        return Filters(observation, reward)

    def _train_one(self, shared: Shared, own: Own, optimisers: OptimiserState, shuffles: jax.Array) -> Trained:
        config = self.config

        def iterate(carry: Any, inputs: Any) -> Any:
            params, filters, _ = carry
            key, shuffle = inputs
            noise = draw_noise(key, self.world, 1, config.steps_per_iteration)
            env = jax.tree.map(lambda x: x[None], own.env)

            def act(observation: jax.Array, noise: jax.Array) -> jax.Array:
                return action_distribution(params.policy, self._filtered(filters, observation)).sample(noise)

            trajectory = collect_episodes(
                noise,
                self.world,
                env,
                act,
                config.steps_per_iteration,
                record_next=config.bootstrap_at_time_limit,
            )
            learned = self._learn_one(shared.schedule, carry, trajectory, shuffle)
            return learned.now, (learned.steps, learned.info)

        keys = jax.random.split(jax.random.fold_in(shared.key, own.client), config.local_iterations)
        start = Learning(shared.params, own.filters, optimisers)
        end, (steps, info) = jax.lax.scan(iterate, start, (keys, shuffles))
        return Trained(*end, steps.sum(), jax.tree.map(lambda x: x[-1], info))

    def _learn_one(self, schedule: Schedule, now: Learning, trajectory: Trajectory, shuffle: jax.Array) -> Learned:
        batch = make_batch(self.config, now.params, now.filters, trajectory)
        params, optimisers, info = update(self.config, schedule, now.params, now.optimisers, batch, shuffle)
        filters = self.updated_filters(now.filters, trajectory)
        return Learned(Learning(params, filters, optimisers), batch.valid.sum(), info)
