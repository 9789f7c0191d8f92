"""DQN (Mnih et al., 2015) with a soft target network; double DQN (van Hasselt et al., 2016) by default.

A local iteration collects whole episodes with an epsilon-greedy actor, appends them to the client's replay buffer and
makes some gradient steps. The target network is set to the online network when a local iteration begins, and follows it
slowly from there. What is federated is the online network; Adam's moments and the buffer stay with the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpohcs.core.lazy import LazyModule
from fedpohcs.core.learning import DQNConfig
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actors import RowByRow, Sight, sight_of
from fedpohcs.learners.base import Broadcast, IterationResult, Learner, Progress
from fedpohcs.learners.distributions import Categorical
from fedpohcs.learners.networks import Apply, PolicyParams, apply_of, make_network
from fedpohcs.worlds.base import DiscreteActions

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import optax
else:  # worker processes unpickle actors of this module and act without JAX
    jax, jnp, optax = LazyModule("jax"), LazyModule("jax.numpy"), LazyModule("optax")


class QParams(NamedTuple):
    """What is federated: the online network, whose outputs are action values; acting greedily on them is the policy."""

    policy: PolicyParams


class Transitions(NamedTuple):
    """Steps in the form that the loss reads, [M, ...]. They are unfiltered, because filters still change."""

    observation: AnyArray
    action: AnyArray
    reward: AnyArray
    next_observation: AnyArray
    terminated: AnyArray


class Memory(NamedTuple):
    """What a client keeps between rounds."""

    replay: Transitions  # [R, ...], a ring
    written: AnyArray  # transitions ever written
    adam: Any


class Schedule(NamedTuple):
    """Coefficients that depend on the round alone."""

    epsilon: AnyArray


class Info(NamedTuple):
    """Numbers that one local iteration reports."""

    loss: AnyArray  # mean over its gradient steps
    value: AnyArray  # mean action value of the transitions drawn


class EpsilonGreedyActor(NamedTuple):
    """Takes the action with the largest value; with probability epsilon a uniformly random action."""

    noise: ActionNoise
    layers: Any
    sight: Sight
    epsilon: AnyArray
    num_choices: int
    apply: Apply

    def act(self, observation: AnyArray, noise: AnyArray) -> AnyArray:
        """The first uniform number decides whether to explore, the second chooses."""
        xp = noise.__array_namespace__()
        greedy = xp.argmax(self.apply(self.layers, self.sight(observation)), axis=-1)
        anything = xp.minimum(noise[..., 1] * self.num_choices, self.num_choices - 1)
        return xp.where(noise[..., 0] < self.epsilon, anything, greedy).astype(np.int32)

    def crowd(self, actors: Sequence[Any]) -> RowByRow:
        """Row by row."""
        return RowByRow(actors)


class DQN(Learner):
    """Deep Q-learning for discrete actions."""

    config: DQNConfig

    info = Info._fields

    @property
    def records_next(self) -> bool:
        """True: the target reads the observation after each step."""
        return True

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
        """The function that computes action values from weights."""
        return apply_of(self.config, self.world.observation_size, self.num_choices)

    def init_params(self, key: jax.Array) -> QParams:
        """Initial weights, the same for every selector of a seed."""
        network = make_network(self.config, self.world.observation_size, self.num_choices)
        return QParams(PolicyParams(network.init(key), jnp.zeros(0)))

    def init_memory(self, params: QParams) -> Memory:
        """An empty buffer and the initial state of Adam."""
        size, width = self.config.replay_size, self.world.observation_size
        observation = np.zeros((size, width), np.float32)
        number, flag = np.zeros(size, np.float32), np.zeros(size, bool)
        empty = Transitions(observation, np.zeros(size, np.int32), number, observation, flag)
        return Memory(empty, np.zeros((), np.int32), self._optimiser().init(params.policy.layers))

    def schedule(self, round_number: int) -> Schedule:
        """Epsilon of a round; rounds count from 0."""
        config = self.config
        return Schedule(np.float32(max(config.epsilon * config.epsilon_decay**round_number, config.epsilon_floor)))

    def draws(self, generator: np.random.Generator) -> np.ndarray:
        """Positions in the buffer of the transitions of each minibatch, as fractions, [I, U, B]."""
        config = self.config
        return generator.random((config.local_iterations, config.updates_per_iteration, config.batch_size), np.float32)

    def actor(self, params: QParams, filters: Any, schedule: Schedule, *, training: bool) -> EpsilonGreedyActor:
        """Epsilon-greedy: with the epsilon of the round in training, with its floor in evaluations."""
        epsilon = schedule.epsilon if training else np.float32(self.config.epsilon_floor)
        sight = sight_of(filters, self.config.observation_limit)
        return EpsilonGreedyActor(self.noise, params.policy.layers, sight, epsilon, self.num_choices, self.apply)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: jax.Array) -> IterationResult:
        """Write the episodes into the buffer, then make gradient steps on minibatches drawn from it."""
        memory = self.remember(now.memory, trajectory)
        filters = self.observe(now.filters, trajectory)
        held = jnp.minimum(memory.written, self.config.replay_size)

        def step(carry: Any, fractions: jax.Array) -> Any:
            online, target, adam = carry
            drawn = jnp.minimum((fractions * held).astype(jnp.int32), held - 1)
            batch = self.filtered_transitions(filters, jax.tree.map(lambda x: x[drawn], memory.replay))
            (loss, value), gradient = jax.value_and_grad(self.loss, has_aux=True)(online, target, batch)
            change, adam = self._optimiser().update(gradient, adam, online)
            online = optax.apply_updates(online, change)
            target = optax.incremental_update(online, target, self.config.target_rate)
            return (online, target, adam), Info(loss, value)

        del sent
        layers = now.params.policy.layers
        (online, _, adam), infos = jax.lax.scan(step, (layers, layers, memory.adam), draws)
        params = QParams(now.params.policy._replace(layers=online))
        now = Progress(params, filters, memory._replace(adam=adam))
        return IterationResult(now, trajectory.valid.sum(), jax.tree.map(jnp.mean, infos))

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

    def loss(self, online: Any, target: Any, batch: Transitions) -> tuple[jax.Array, jax.Array]:
        """Mean Huber loss of the temporal difference, and the mean action value."""
        values = self.apply(online, batch.observation)
        value = jnp.take_along_axis(values, batch.action[:, None], axis=-1)[:, 0]
        wanted = jax.lax.stop_gradient(self.target_value(online, target, batch))
        return optax.huber_loss(value, wanted).mean(), value.mean()

    def target_value(self, online: Any, target: Any, batch: Transitions) -> jax.Array:
        """r + gamma Q'(s', a'), where a' is the target network's own choice or, if double, the online network's.

        Nothing follows a terminated step; a step that the time limit cut is followed by its next observation.
        """
        following = self.apply(target, batch.next_observation)
        chooser = self.apply(online, batch.next_observation) if self.config.double else following
        best = jnp.take_along_axis(following, jnp.argmax(chooser, axis=-1)[:, None], axis=-1)[:, 0]
        return batch.reward + self.config.discount * jnp.where(batch.terminated, 0.0, best)

    def filtered_transitions(self, filters: Any, raw: Transitions) -> Transitions:
        """Stored steps, filtered by the present filters of the client."""
        return raw._replace(
            observation=self.filtered(filters, raw.observation),
            next_observation=self.filtered(filters, raw.next_observation),
            reward=self.filtered_reward(filters, raw.reward),
        )

    def distribution(self, params: QParams, observation: AnyArray) -> Categorical:
        """Epsilon-greedy with the floor of epsilon, for filtered observations."""
        values = self.apply(params.policy.layers, observation)
        share = self.config.epsilon_floor / self.num_choices
        greedy = jax.nn.one_hot(jnp.argmax(values, axis=-1), self.num_choices)
        return Categorical(jnp.log(share + (1 - self.config.epsilon_floor) * greedy))

    def values(self, params: QParams, observation: AnyArray) -> AnyArray:
        """V(s) as the largest action value."""
        return self.apply(params.policy.layers, observation).max(axis=-1)

    def step_advantages(self, params: QParams, filters: Any, trajectory: Trajectory) -> jax.Array:
        """Q(s, a) - max Q(s, .) of recorded steps, [T, E]."""
        values = self.apply(params.policy.layers, self.filtered(filters, trajectory.observation))
        taken = jnp.take_along_axis(values, trajectory.action[..., None].astype(jnp.int32), axis=-1)[..., 0]
        return jnp.where(trajectory.valid, taken - values.max(axis=-1), 0.0)

    def loss_samples(self, params: QParams, filters: Any, trajectory: Trajectory) -> tuple[Transitions, jax.Array]:
        """Recorded steps as one batch."""
        filtered = self.filtered_transitions(filters, self._transitions(trajectory))
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), filtered)
        return flat, trajectory.valid.reshape(-1)

    def gradient(self, params: QParams, samples: Transitions, mask: jax.Array) -> Any:
        """Gradient of the temporal-difference loss, with the online network as the target network."""
        layers = params.policy.layers

        def masked(online: Any) -> jax.Array:
            values = self.apply(online, samples.observation)
            value = jnp.take_along_axis(values, samples.action[:, None], axis=-1)[:, 0]
            wanted = jax.lax.stop_gradient(self.target_value(layers, layers, samples))
            return (optax.huber_loss(value, wanted) * mask).sum() / jnp.maximum(mask.sum(), 1)

        return jax.grad(masked)(layers)

    def _transitions(self, trajectory: Trajectory) -> Transitions:
        """Transitions of a trajectory. Within an episode, the next observation is the observation of the next row."""
        running = (trajectory.status == Status.RUNNING)[..., None]
        assert trajectory.next_observation is not None  # `records_next`
        following = jnp.where(running, jnp.roll(trajectory.observation, -1, axis=0), trajectory.next_observation)
        ended = trajectory.status == Status.TERMINATED
        action = trajectory.action.astype(jnp.int32)
        return Transitions(trajectory.observation, action, trajectory.reward, following, ended)

    def _optimiser(self) -> optax.GradientTransformation:
        config = self.config
        return optax.chain(optax.clip_by_global_norm(config.max_gradient_norm), optax.adam(config.learning_rate))
