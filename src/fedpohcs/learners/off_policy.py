"""What learners with a replay buffer share: the buffer, target networks, and the loop of gradient steps.

A local iteration collects whole episodes, appends them to the client's replay buffer and makes some gradient steps. The
target networks are set to the merged networks when a round begins, and follow the online networks from there. What is
federated are the online networks; the buffer and Adam's moments stay with the client.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedpohcs.core.learning import EpsilonGreedyConfig, OffPolicyConfig, SquashedConfig
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.types import AnyArray, Params
from fedpohcs.learners.actors import Bounds, EpsilonGreedyActor, bounds_of, sight_of
from fedpohcs.learners.base import Broadcast, IterationResult, Learner, Progress
from fedpohcs.learners.distributions import Categorical
from fedpohcs.learners.networks import ActorCriticParams, Apply, PolicyParams, apply_of, make_network
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions


class Transitions(NamedTuple):
    """Steps in the form that losses read, [M, ...]. In a buffer they are unfiltered, because filters still change."""

    observation: AnyArray
    action: AnyArray
    reward: AnyArray
    next_observation: AnyArray
    terminated: AnyArray


class Memory(NamedTuple):
    """What a client keeps between local iterations and rounds."""

    replay: Transitions  # [R, ...], a ring
    written: AnyArray  # transitions ever written
    target: Any  # weights of the target networks
    moments: Any  # of Adam


class PolicyAndCritic(NamedTuple):
    """Something for each of two networks: target weights, or the states of their optimisers."""

    policy: Any
    critic: Any


class Draws(NamedTuple):
    """Random numbers of local training, with a leading axis of local iterations."""

    number: AnyArray  # [I] of the local iteration
    place: AnyArray  # [I, U, B] of the transitions of each minibatch in the buffer, as fractions
    noise: AnyArray  # [I, U, B, ...] normal numbers for the actions that a loss draws


class Weights(NamedTuple):
    """What gradient steps change."""

    params: Params
    target: Any
    moments: Any


@dataclass(frozen=True)
class OffPolicy(Learner):
    """A learner with a replay buffer. Algorithms add networks, targets and losses."""

    config: OffPolicyConfig

    loss_noise: ClassVar[int] = 0
    """Normal numbers that a gradient step needs per transition and action."""

    @property
    def records_next(self) -> bool:
        """True: targets read the observation after each step."""
        return True

    @abstractmethod
    def targets(self, params: Params) -> Any:
        """The part of the parameters that has target networks."""

    @abstractmethod
    def init_moments(self, params: Params) -> Any:
        """The initial states of the optimisers."""

    @abstractmethod
    def update(self, now: Weights, batch: Transitions, noise: jax.Array, number: jax.Array) -> tuple[Weights, Any]:
        """One gradient step on a minibatch, and what to report; `number` counts from 1 in a local iteration."""

    def init_memory(self, params: Params) -> Memory:
        """An empty buffer, target networks equal to the networks, and the initial state of the optimisers."""
        size, actions = self.config.replay_size, self.world.actions
        observation = np.zeros((size, self.world.observation_size), np.float32)
        continuous = isinstance(actions, ContinuousActions)
        action = np.zeros((size, actions.size), np.float32) if continuous else np.zeros(size, np.int32)
        empty = Transitions(observation, action, np.zeros(size, np.float32), observation, np.zeros(size, bool))
        return Memory(empty, np.zeros((), np.int32), self.targets(params), self.init_moments(params))

    def draws(self, generator: np.random.Generator) -> Draws:
        """Minibatches and noise of all gradient steps."""
        config, actions = self.config, self.world.actions
        shape = (config.local_iterations, config.updates_per_iteration, config.batch_size)
        numbers = self.loss_noise * actions.size if isinstance(actions, ContinuousActions) else 0
        place = generator.random(shape, np.float32)
        noise = generator.standard_normal((*shape, numbers), np.float32)
        return Draws(np.arange(config.local_iterations), place, noise)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Draws) -> IterationResult:
        """Write the episodes into the buffer, then make gradient steps on minibatches drawn from it."""
        del sent
        memory = self.remember(self.begun(now, draws.number == 0), trajectory)
        filters = self.observe(now.filters, trajectory)
        held = jnp.minimum(memory.written, self.config.replay_size)

        def step(weights: Weights, drawn: Any) -> tuple[Weights, Any]:
            fractions, noise, number = drawn
            chosen = jnp.minimum((fractions * held).astype(jnp.int32), held - 1)
            batch = self.filtered_transitions(filters, jax.tree.map(lambda x: x[chosen], memory.replay))
            return self.update(weights, batch, noise, number)

        start = Weights(now.params, memory.target, memory.moments)
        numbers = 1 + jnp.arange(len(draws.place))
        end, infos = jax.lax.scan(step, start, (draws.place, draws.noise, numbers))
        end = where(held >= self.config.replay_start, end, start)
        after = Progress(end.params, filters, memory._replace(target=end.target, moments=end.moments))
        return IterationResult(after, trajectory.valid.sum(), jax.tree.map(jnp.mean, infos))

    def begun(self, now: Progress, first: jax.Array) -> Memory:
        """The memory at the start of a local iteration. The first one of a round starts from merged weights."""
        memory: Memory = now.memory
        memory = memory._replace(target=where(first, self.targets(now.params), memory.target))
        if self.config.memory_at_merge == "keep":
            return memory
        moments = where(first, self.init_moments(now.params), memory.moments)
        return memory._replace(written=jnp.where(first, 0, memory.written), moments=moments)

    def remember(self, memory: Memory, trajectory: Trajectory) -> Memory:
        """Append the valid steps of a trajectory, [T, E], to the ring buffer, which keeps the newest transitions."""
        size = self.config.replay_size
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), self._transitions(trajectory))
        valid = trajectory.valid.reshape(-1)
        count = valid.sum()
        rank = jnp.cumsum(valid) - 1
        newest = valid & (rank >= count - size)
        place = jnp.where(newest, (memory.written + rank) % size, size)
        replay = jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), memory.replay, flat)
        return memory._replace(replay=replay, written=memory.written + count.astype(jnp.int32))

    def followed(self, target: Any, params: Params, number: jax.Array) -> Any:
        """The target networks after this gradient step."""
        moved = optax.incremental_update(self.targets(params), target, self.config.target_rate)
        period = self.config.target_period
        return moved if period == 1 else where(number % period == 0, moved, target)

    def descended(self, rate: float, gradient: Any, moments: Any, weights: Any) -> tuple[Any, Any]:
        """Weights and moments after a step of Adam."""
        change, moments = self.adam(rate).update(gradient, moments, weights)
        return optax.apply_updates(weights, change), moments

    def adam(self, rate: float) -> optax.GradientTransformation:
        """The optimiser of a network."""
        return optax.chain(optax.clip_by_global_norm(self.config.max_gradient_norm), optax.adam(rate))

    def filtered_transitions(self, filters: Any, raw: Transitions) -> Transitions:
        """Stored steps, filtered by the present filters of the client."""
        return raw._replace(
            observation=self.filtered(filters, raw.observation),
            next_observation=self.filtered(filters, raw.next_observation),
            reward=self.filtered_reward(filters, raw.reward),
        )

    def discounted(self, batch: Transitions, following: jax.Array) -> jax.Array:
        """r + gamma V(s').

        Nothing follows a terminated step; a step that the time limit cut is followed by its next observation.
        """
        return batch.reward + self.config.discount * jnp.where(batch.terminated, 0.0, following)

    def loss_samples(self, params: Params, filters: Any, trajectory: Trajectory) -> tuple[Transitions, jax.Array]:
        """Recorded steps as one batch."""
        filtered = self.filtered_transitions(filters, self._transitions(trajectory))
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), filtered)
        return flat, trajectory.valid.reshape(-1)

    def _transitions(self, trajectory: Trajectory) -> Transitions:
        """Transitions of a trajectory. Within an episode, the next observation is the observation of the next row."""
        running = (trajectory.status == Status.RUNNING)[..., None]
        assert trajectory.next_observation is not None  # `records_next`
        following = jnp.where(running, jnp.roll(trajectory.observation, -1, axis=0), trajectory.next_observation)
        ended = trajectory.status == Status.TERMINATED
        kind = jnp.float32 if isinstance(self.world.actions, ContinuousActions) else jnp.int32
        return Transitions(trajectory.observation, trajectory.action.astype(kind), trajectory.reward, following, ended)


class GreedySchedule(NamedTuple):
    """Exploration in a round."""

    epsilon: AnyArray


@dataclass(frozen=True)
class EpsilonGreedy(OffPolicy):
    """A learner for discrete actions that takes the best one, or with probability epsilon any."""

    config: EpsilonGreedyConfig

    @property
    def num_choices(self) -> int:
        """Number of actions."""
        assert isinstance(self.world.actions, DiscreteActions)  # checked when the learner is made
        return self.world.actions.num_choices

    @property
    def noise(self) -> ActionNoise:
        """Two uniform numbers: whether to explore, and the action in that case."""
        return ActionNoise("uniform", 2)

    @property
    def apply(self) -> Apply:
        """The function that computes one number per action from weights."""
        return apply_of(self.config, self.world.observation_size, self.num_choices)

    def init_network(self, key: jax.Array) -> Any:
        """Initial weights of a network with one output per action."""
        return make_network(self.config, self.world.observation_size, self.num_choices).init(key)

    def schedule(self, round_number: int) -> GreedySchedule:
        """Epsilon of a round; rounds count from 0."""
        config = self.config
        return GreedySchedule(
            np.float32(max(config.epsilon * config.epsilon_decay**round_number, config.epsilon_floor))
        )

    def actor(self, params: Any, filters: Any, schedule: GreedySchedule, *, training: bool) -> EpsilonGreedyActor:
        """Epsilon-greedy: with the epsilon of the round in training, with its floor in evaluations."""
        epsilon = schedule.epsilon if training else np.float32(self.config.epsilon_floor)
        sight = sight_of(filters, self.config.observation_limit)
        return EpsilonGreedyActor(self.noise, params.policy.layers, sight, epsilon, self.num_choices, self.apply)

    def distribution(self, params: Any, observation: AnyArray) -> Categorical:
        """Epsilon-greedy with the floor of epsilon, for filtered observations."""
        output = self.apply(params.policy.layers, observation)
        share = self.config.epsilon_floor / self.num_choices
        greedy = jax.nn.one_hot(jnp.argmax(output, axis=-1), self.num_choices)
        return Categorical(jnp.log(share + (1 - self.config.epsilon_floor) * greedy))


@dataclass(frozen=True)
class Squashed(OffPolicy):
    """A learner for continuous actions within bounds: a policy that ends in a tanh, and critics of its actions.

    Networks give and read actions scaled to -1 and 1. Actions in trajectories and buffers are those of the world.
    """

    config: SquashedConfig

    num_critics: ClassVar[int] = 2
    outputs_per_action: ClassVar[int] = 1

    @abstractmethod
    def best_action(self, policy: Any, observation: AnyArray) -> AnyArray:
        """The most likely action of a policy, between -1 and 1."""

    @abstractmethod
    def policy_losses(self, params: Any, policy: Any, batch: Transitions, noise: jax.Array) -> jax.Array:
        """What the policy's layers minimise, per transition."""

    @property
    def size(self) -> int:
        """Numbers of an action."""
        assert isinstance(self.world.actions, ContinuousActions)  # checked when the learner is made
        return self.world.actions.size

    @property
    def bounds(self) -> Bounds:
        """The bounds of actions."""
        assert isinstance(self.world.actions, ContinuousActions)
        return bounds_of(self.world.actions)

    @property
    def policy_apply(self) -> Apply:
        """The function that computes the policy's outputs from weights."""
        return apply_of(self.config, self.world.observation_size, self.outputs_per_action * self.size)

    def init_actor_critic(self, key: jax.Array) -> ActorCriticParams:
        """Initial weights of the policy and of all critics, whose arrays have a leading axis of critics."""
        observed = self.world.observation_size
        policy = make_network(self.config, observed, self.outputs_per_action * self.size)
        critic = make_network(self.config, observed + self.size, 1)
        key_policy, key_critic = jax.random.split(key)
        critics = [critic.init(one) for one in jax.random.split(key_critic, self.num_critics)]
        layers = PolicyParams(policy.init(key_policy), jnp.zeros(0))
        return ActorCriticParams(layers, jax.tree.map(lambda *same: jnp.stack(same), *critics))

    def action_values(self, critic: Any, observation: AnyArray, share: AnyArray) -> jax.Array:
        """Q(s, a) by each critic, [critics, ...], of actions between -1 and 1."""
        apply = apply_of(self.config, self.world.observation_size + self.size, 1)
        seen = jnp.concatenate([observation, share], axis=-1)
        return jax.vmap(lambda one: apply(one, seen)[..., 0])(critic)

    def least_value(self, critic: Any, observation: AnyArray, share: AnyArray) -> jax.Array:
        """The smallest Q(s, a) of the critics."""
        return self.action_values(critic, observation, share).min(axis=0)

    def critic_loss(self, critic: Any, batch: Transitions, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Half the squared error of each critic, added up, and the mean action value."""
        values = self.action_values(critic, batch.observation, self.bounds.shares(batch.action))
        return 0.5 * jnp.square(values - wanted).mean(axis=-1).sum(), values.mean()

    def values(self, params: Any, observation: AnyArray) -> AnyArray:
        """V(s) as the value of the most likely action."""
        return self.least_value(params.critic, observation, self.best_action(params.policy.layers, observation))

    def step_advantages(self, params: Any, filters: Any, trajectory: Trajectory) -> jax.Array:
        """Q(s, a) - V(s) of recorded steps, [T, E]."""
        observation = self.filtered(filters, trajectory.observation)
        taken = self.least_value(params.critic, observation, self.bounds.shares(trajectory.action))
        return jnp.where(trajectory.valid, taken - self.values(params, observation), 0.0)

    def gradient(self, params: Any, samples: Transitions, mask: jax.Array) -> Any:
        """Gradient of the policy's loss, with noise that is always the same."""
        noise = jax.random.normal(jax.random.key(0), (len(mask), self.loss_noise * self.size))

        def masked(policy: Any) -> jax.Array:
            losses = self.policy_losses(params, policy, samples, noise)
            return (losses * mask).sum() / jnp.maximum(mask.sum(), 1)

        return jax.grad(masked)(params.policy.layers)

    def arrays(self, params: Any) -> dict[str, np.ndarray]:
        """The arrays of the parameters, and the bounds of actions."""
        return {**super().arrays(params), "policy/bounds": np.array(self.bounds, np.float32)}


def where(condition: jax.Array, chosen: Any, other: Any) -> Any:
    """One of two trees."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), chosen, other)
