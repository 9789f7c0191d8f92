"""The tasks of clients: play, train, measure. They are pure functions, which an executor compiles.

Each public method takes the values that all clients share, and their own values with a leading client axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpohcs.core.steering import BYZANTINE, is_steered, steered
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import by_place
from fedpohcs.core.types import AnyArray, Params
from fedpohcs.learners.base import Broadcast, IterationResult, Learner, Progress
from fedpohcs.learners.rollout import CLIENT_AXIS, Noise, collect_episodes, draw_noise, valid_first
from fedpohcs.worlds.base import EnvParams

GRADIENT_BATCHES, GRADIENT_BATCH_SIZE = 4, 512


class ClientInputs(NamedTuple):
    """Values of single clients: id, world parameters, filters."""

    client: AnyArray
    env: EnvParams
    filters: Any


class Poison(NamedTuple):
    """How Byzantine clients spoil the episodes that they learn from. NumPy and JAX arrays."""

    blind: bool = False  # they act with weights of 0: at random
    reward: Callable[[AnyArray, AnyArray, AnyArray], AnyArray] | None = None
    """(rewards, which of them are of steps, uniform numbers), all [T, E], to the rewards that they learn from."""


class TrainingResult(NamedTuple):
    """The outcome of local training."""

    params: Params
    filters: Any
    memory: Any
    steps: AnyArray
    info: Any  # of the last local iteration
    num_lost: AnyArray | None = None  # lost episodes; None if none can be lost


class PlayResult(NamedTuple):
    """The outcome of episodes played outside training."""

    mean_return: AnyArray
    steps: AnyArray
    filters: Any
    trajectory: Trajectory | None  # [T, C, E]; None after it was stored elsewhere
    num_lost: AnyArray | None = None  # lost episodes; None if none can be lost


class ControlledMemory(NamedTuple):
    """The memory of a learner, and the control variate by which a server optimiser corrects its steps."""

    within: Any
    control: dict[str, AnyArray]  # by place, in units of the change of a round


@dataclass(frozen=True)
class ClientProgram:
    """A learner in a world. Equal programs share their compiled functions.

    `evaluate` and `train` need a traced world; `learn` is the part of training that every world shares.
    """

    learner: Learner
    evaluation_episodes: int
    filter_weight: float = 1.0  # of a step outside training
    controlled: bool = False  # clients keep a control variate in their memory
    poison: Poison | None = None  # of the clients that `BYZANTINE` marks
    collected_steps: int = 0  # least number of steps that `collect` plays

    @property
    def world(self) -> Any:
        """The world; it is traced, except for tasks that play no episodes."""
        return self.learner.world

    def init_memory(self, params: Params) -> Any:
        """The initial memory of a client."""
        memory = self.learner.init_memory(params)
        if not self.controlled:
            return memory
        return ControlledMemory(memory, {place: jnp.zeros_like(x) for place, x in by_place(params).items()})

    def evaluate(self, sent: Broadcast, own: ClientInputs) -> PlayResult:
        """Play whole episodes without learning; returns are raw and undiscounted."""
        trajectory = self._play(sent, own, self.evaluation_episodes)
        total = jnp.where(trajectory.valid, trajectory.reward, 0.0).sum(axis=(0, 2))
        steps = trajectory.valid.sum(axis=(0, 2))
        observe = partial(self.learner.observe, weight=self.filter_weight)
        filters = jax.vmap(observe, in_axes=(0, 1))(own.filters, trajectory)
        return PlayResult(total / self.evaluation_episodes, steps, filters, trajectory)

    def train(self, sent: Broadcast, own: ClientInputs, memory: Any, draws: Any) -> TrainingResult:
        """I local iterations of collecting and updating, one compiled program. Paper: Alg. 3, l. 11."""
        one = jax.vmap(self._train_one, in_axes=(None, 0, 0, 0), axis_name=CLIENT_AXIS)
        return one(sent, own, memory, draws)

    def collect(self, sent: Broadcast, own: ClientInputs) -> tuple[Trajectory, Any]:
        """Whole episodes for a learner elsewhere, [C, T, 1], at least one per client, and the filters after them."""

        def one(own: ClientInputs) -> tuple[Trajectory, Any]:
            key = jax.random.fold_in(sent.key, own.client)
            trajectory = self._collect_one(key, sent.params, sent.schedule, own, self.collected_steps)
            return trajectory, self.learner.observe(own.filters, trajectory)

        return jax.vmap(one, axis_name=CLIENT_AXIS)(own)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """One local iteration on episodes that were collected elsewhere, [C, T, E]."""
        one = jax.vmap(self._learn_one, in_axes=(None, 0, 0, 0), axis_name=CLIENT_AXIS)
        return one(sent, now, trajectory, draws)

    def minibatch_gradients(
        self,
        sent: Broadcast,
        own: ClientInputs,
        trajectory: Trajectory,
        shuffle: jax.Array,
        read: Callable[[Any], jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        """`read` of the gradient of the policy's loss on a few minibatches of one client's recorded steps, [B, ...].

        The second array, [B, M], tells which entries of a minibatch are steps; the others are padding. The steps are
        the first valid ones of `shuffle`, a permutation of all recorded ones.
        """
        samples, valid = self.learner.loss_samples(sent.params, own.filters, trajectory)
        chosen = valid_first(shuffle, valid)[: GRADIENT_BATCHES * GRADIENT_BATCH_SIZE]
        chosen = jnp.pad(chosen, (0, -chosen.size % GRADIENT_BATCHES)).reshape(GRADIENT_BATCHES, -1)
        position = jnp.arange(chosen.size).reshape(chosen.shape)  # padding comes last and is not valid
        is_step = position < valid.sum()

        def read_gradient(inputs: Any) -> jax.Array:
            indices, mask = inputs
            some = jax.tree.map(lambda x: x[indices], samples)
            return read(self.learner.gradient(sent.params, some, mask))

        return jax.lax.map(read_gradient, (chosen, is_step)), is_step

    def step_advantages(self, sent: Broadcast, own: ClientInputs, trajectory: Trajectory) -> jax.Array:
        """Advantage samples of recorded trajectories, [C, T, E]."""
        return jax.vmap(partial(self.learner.step_advantages, sent.params))(own.filters, trajectory)

    def distribution(self, sent: Broadcast, observation: jax.Array) -> Any:
        """pi(. | s) of filtered observations."""
        return self.learner.distribution(sent.params, observation)

    def _play(self, sent: Broadcast, own: ClientInputs, episodes: int) -> Trajectory:
        """Play `episodes` per client, [T, C, E]. All are lanes of one rollout, because they share the policy."""
        num_lanes = own.client.size * episodes

        def draw(client: jax.Array) -> Noise:
            key = jax.random.fold_in(sent.key, client)
            return draw_noise(key, self.world, self.learner.noise, episodes, min_steps=0)

        def by_lane(x: jax.Array) -> jax.Array:
            return jnp.repeat(x, episodes, axis=0)

        noise = jax.vmap(draw, out_axes=Noise(0, 1, 1, 1))(own.client)
        lanes = Noise(
            noise.start.reshape(num_lanes, -1), *(x.reshape(x.shape[0], num_lanes, *x.shape[3:]) for x in noise[1:])
        )
        filters, env = jax.tree.map(by_lane, (own.filters, own.env))
        actor = self.learner.actor(sent.params, filters, sent.schedule, training=False)
        trajectory = collect_episodes(
            lanes, self.world, env, actor.act, 0, record_next=self.learner.records_next, largest=lambda x: x
        )
        return jax.tree.map(lambda x: x.reshape(x.shape[0], -1, episodes, *x.shape[2:]), trajectory)

    def _learn_one(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """A local iteration of the learner, steered as the server optimiser says; see `core.steering`."""
        if not self.controlled and not is_steered(sent.extra):
            return self.learner.learn(sent, now, trajectory, draws)
        within, control = now.memory if self.controlled else (now.memory, None)
        learned = self.learner.learn(sent, now._replace(memory=within), trajectory, draws)
        reached, memory = learned.now.params, learned.now.memory
        params = steered(sent.extra, now.params, reached, control, self.learner.config.local_iterations)
        after = learned.now._replace(params=params, memory=ControlledMemory(memory, control) if control else memory)
        return learned._replace(now=after)

    def _acting(self, sent: Broadcast, own: ClientInputs, params: Params) -> Params:
        """The weights with which a client plays to learn."""
        if self.poison is None or not self.poison.blind or BYZANTINE not in sent.extra:
            return params
        lies = sent.extra[BYZANTINE][own.client]
        return jax.tree.map(lambda x: jnp.where(lies, jnp.zeros_like(x), x), params)

    def _poisoned(self, sent: Broadcast, own: ClientInputs, trajectory: Trajectory, key: jax.Array) -> Trajectory:
        """The episodes that a client learns from."""
        if self.poison is None or self.poison.reward is None or BYZANTINE not in sent.extra:
            return trajectory
        noise = jax.random.uniform(jax.random.fold_in(key, 1), trajectory.reward.shape)
        spoiled = self.poison.reward(trajectory.reward, trajectory.valid, noise)
        return trajectory._replace(reward=jnp.where(sent.extra[BYZANTINE][own.client], spoiled, trajectory.reward))

    def _collect_one(
        self, key: jax.Array, params: Params, schedule: Any, own: ClientInputs, min_steps: int, lanes: int = 1
    ) -> Trajectory:
        """Episodes of one client with the actor of training, [T, lanes]."""
        learner = self.learner
        noise = draw_noise(key, self.world, learner.noise, lanes, min_steps)
        env = jax.tree.map(lambda x: jnp.broadcast_to(x, (lanes, *x.shape)), own.env)
        actor = learner.actor(params, own.filters, schedule, training=True)
        return collect_episodes(noise, self.world, env, actor.act, min_steps, record_next=learner.records_next)

    def _train_one(self, sent: Broadcast, own: ClientInputs, memory: Any, draws: Any) -> TrainingResult:
        config = self.learner.config
        # A number of episodes is one lane for each; a number of steps is one lane of episodes one after the other.
        episodes = config.whole_episodes
        lanes, min_steps = (1, config.steps_per_iteration) if episodes is None else (episodes, 0)

        def iterate(now: Progress, inputs: Any) -> Any:
            key, drawn = inputs
            mine, params = own._replace(filters=now.filters), self._acting(sent, own, now.params)
            trajectory = self._collect_one(key, params, sent.schedule, mine, min_steps, lanes)
            learned = self._learn_one(sent, now, self._poisoned(sent, own, trajectory, key), drawn)
            return learned.now, (learned.steps, learned.info)

        keys = jax.random.split(jax.random.fold_in(sent.key, own.client), config.local_iterations)
        start = Progress(sent.params, own.filters, memory)
        end, (steps, info) = jax.lax.scan(iterate, start, (keys, draws))
        return TrainingResult(*end, steps.sum(), jax.tree.map(lambda x: x[-1], info))
