"""Temporal-difference learners without a replay buffer: QAvg (Jin et al., 2022) and FedSARSA (Zhang et al., 2024).

A local iteration collects whole episodes and then takes one step of semi-gradient descent per time step, in the order
of time. On one-hot observations without hidden layers the network is a table, and a step is that of the textbook:
Q(s,a) <- Q(s,a) + rate (target - Q(s,a)). The policy is that of the beginning of the iteration: actors do not change
while they play.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpohcs.core.lazy import LazyModule
from fedpohcs.core.learning import QAvgConfig, SarsaConfig, TDConfig
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.actors import PolicyActor, policy_actor, sight_of
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.distributions import Categorical, categorical
from fedpohcs.learners.dqn import DQN, Info, QParams, Transitions
from fedpohcs.learners.networks import Apply, PolicyParams, apply_of, make_network

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:  # worker processes unpickle actors of this module and act without JAX
    jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")


class Schedule(NamedTuple):
    """Coefficients that depend on the round alone."""

    epsilon: AnyArray
    rate: AnyArray


class _Rows(NamedTuple):
    """What one step of learning reads, [E, ...], or [T, E, ...] for all of an iteration."""

    step: Transitions
    next_action: AnyArray  # where `running`
    running: AnyArray  # the episode goes on within the trajectory
    valid: AnyArray


class TemporalDifference(DQN):
    """Steps in the order of time, on the network that is federated. Reading values and policies is as in DQN."""

    config: TDConfig  # type: ignore[assignment]

    def init_params(self, key: jax.Array) -> QParams:
        """Zeros without hidden layers, where the network is a table; else random weights."""
        network = make_network(self.config, self.world.observation_size, self.num_outputs)
        layers = network.init(key)
        if self.is_linear:
            layers = jax.tree.map(jnp.zeros_like, layers)
        return QParams(PolicyParams(layers, jnp.zeros(0)))

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the network."""
        return self.num_choices

    @property
    def is_linear(self) -> bool:
        """Whether action values are linear in the observation. The bias then stays 0."""
        return self.config.network is None and not self.config.hidden_sizes

    def init_memory(self, params: QParams) -> Any:
        """Nothing is kept between rounds."""
        del params
        return np.zeros(0, np.float32)

    def schedule(self, round_number: int) -> Any:
        """The learning rate of a round; rounds count from 0."""
        config = self.config
        return Schedule(np.float32(0), np.float32(config.learning_rate * config.learning_rate_decay**round_number))

    def draws(self, generator: np.random.Generator) -> Any:
        """Nothing is drawn."""
        del generator
        return np.zeros((self.config.local_iterations, 0), np.float32)

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """One step of semi-gradient descent per time step; several lanes share it."""
        del draws
        filters = self.observe(now.filters, trajectory)
        steps = self.filtered_transitions(filters, self._transitions(trajectory))
        running = trajectory.status == Status.RUNNING
        rows = _Rows(steps, jnp.roll(steps.action, -1, axis=0), running, trajectory.valid)

        def step(layers: Any, row: _Rows) -> Any:
            (loss, value), gradient = jax.value_and_grad(self._row_loss, has_aux=True)(layers, row)
            gradient = self._without_bias(gradient) if self.is_linear else gradient
            layers = jax.tree.map(lambda x, slope: x - sent.schedule.rate * slope, layers, gradient)
            return layers, (Info(loss, value), row.valid.any())

        layers, (infos, taken) = jax.lax.scan(step, now.params.policy.layers, rows)
        info = jax.tree.map(lambda x: (x * taken).sum() / jnp.maximum(taken.sum(), 1), infos)
        params = QParams(now.params.policy._replace(layers=layers))
        return IterationResult(Progress(params, filters, now.memory), trajectory.valid.sum(), info)

    def _row_loss(self, layers: Any, row: _Rows) -> tuple[jax.Array, jax.Array]:
        """Half of the squared temporal difference, and the value, both as means over valid lanes."""
        value = _taken(self.apply(layers, row.step.observation), row.step.action)
        wanted = jax.lax.stop_gradient(self.row_target(layers, row))
        share = row.valid / jnp.maximum(row.valid.sum(), 1)
        return (share * (wanted - value) ** 2).sum() / 2, (share * value).sum()

    def row_target(self, layers: Any, row: Any) -> jax.Array:
        """The value that a step moves towards."""
        return self.target_value(layers, layers, row.step)

    @staticmethod
    def _without_bias(gradient: Any) -> Any:
        (layer,) = gradient
        return (layer._replace(bias=jnp.zeros_like(layer.bias)),)


def _taken(values: AnyArray, action: AnyArray) -> AnyArray:
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


class QAvg(TemporalDifference):
    """Q-learning on episodes: the sampled form of QAvg, whose exact form is `theory.averaging.QAvg`."""

    config: QAvgConfig  # type: ignore[assignment]

    def schedule(self, round_number: int) -> Any:
        """Epsilon and learning rate of a round; rounds count from 0."""
        return super().schedule(round_number)._replace(epsilon=DQN.schedule(self, round_number).epsilon)


class Shared(NamedTuple):
    """Action values of a network with fewer outputs than actions: action a has output a modulo their number."""

    apply: Apply
    num_choices: int

    def __call__(self, weights: Any, observation: AnyArray) -> AnyArray:
        """Values of all actions."""
        outputs = self.apply(weights, observation)
        return outputs[..., np.arange(self.num_choices) % outputs.shape[-1]]


class Preferences(NamedTuple):
    """Logits of the policy: action values times the inverse temperature."""

    values: Apply
    inverse_temperature: float

    def __call__(self, weights: Any, observation: AnyArray) -> AnyArray:
        """Logits of all actions."""
        return self.values(weights, observation) * np.float32(self.inverse_temperature)


class Sarsa(TemporalDifference):
    """SARSA with the policy softmax(L Q). With L = 0 the policy is uniform for ever, and this is FedTD."""

    config: SarsaConfig  # type: ignore[assignment]

    @property
    def noise(self) -> ActionNoise:
        """Gumbel numbers, which draw from logits."""
        return ActionNoise("gumbel", self.num_choices)

    @property
    def num_outputs(self) -> int:
        """Number of classes of actions."""
        return self.config.action_classes or self.num_choices

    @property
    def apply(self) -> Apply:
        """The function that computes action values from weights."""
        return Shared(apply_of(self.config, self.world.observation_size, self.num_outputs), self.num_choices)

    @property
    def logits(self) -> Preferences:
        """The function that computes logits from weights."""
        return Preferences(self.apply, self.config.inverse_temperature)

    def actor(self, params: QParams, filters: Any, schedule: Schedule, *, training: bool) -> PolicyActor:  # type: ignore[override]
        """Draws from the policy, in training and in evaluations."""
        del schedule, training
        return policy_actor(self.noise, params.policy, sight_of(filters, self.config.observation_limit), self.logits)

    def distribution(self, params: QParams, observation: AnyArray) -> Categorical:
        """softmax(L Q), for filtered observations."""
        return categorical(self.logits(params.policy.layers, observation))

    def row_target(self, layers: Any, row: _Rows) -> jax.Array:
        """r + gamma Q(s', a') with the action that was taken; at a cut, its mean under the policy."""
        played = _taken(self.apply(layers, row.step.next_observation), row.next_action)
        sampled = row.step.reward + self.config.discount * played
        return jnp.where(row.running, sampled, self.target_value(layers, layers, row.step))

    def target_value(self, online: Any, target: Any, batch: Transitions) -> jax.Array:
        """r + gamma sum_a' pi(a'|s') Q(s', a'). Nothing follows a terminated step."""
        del online
        following = self._mean_value(target, batch.next_observation)
        return self.discounted(batch, following)

    def values(self, params: QParams, observation: AnyArray) -> AnyArray:
        """V(s) as the mean action value under the policy."""
        return self._mean_value(params.policy.layers, observation)

    def step_advantages(self, params: QParams, filters: Any, trajectory: Trajectory) -> jax.Array:
        """Q(s, a) - V(s) of recorded steps, [T, E]."""
        seen, layers = self.filtered(filters, trajectory.observation), params.policy.layers
        advantage = _taken(self.apply(layers, seen), trajectory.action.astype(jnp.int32)) - self._mean_value(
            layers, seen
        )
        return jnp.where(trajectory.valid, advantage, 0.0)

    def _mean_value(self, layers: Any, observation: AnyArray) -> jax.Array:
        policy = jax.nn.softmax(self.logits(layers, observation), axis=-1)
        return (policy * self.apply(layers, observation)).sum(axis=-1)
