"""The interface of local learning algorithms, the only part that executors, metrics, export and server use."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedpohcs.core.errors import UserError, require
from fedpohcs.core.imports import import_function
from fedpohcs.core.learning import LearningConfig
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.trajectory import Trajectory, rollout_length
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import AnyArray, Extra, Params
from fedpohcs.learners.filters import (
    Filters,
    discounted_returns,
    filter_observation,
    filter_reward,
    init_filters,
    standard_deviation,
    stored_filters,
    update_moments,
)
from fedpohcs.worlds.base import ContinuousActions, World
from fedpohcs.worlds.host import Actor


class Broadcast(NamedTuple):
    """What the server sends to every client that trains."""

    params: Params  # global parameters of this round: where training starts, and the anchor of proximal terms
    key: AnyArray  # of the round and purpose
    schedule: Any  # coefficients that depend on the round alone; see `Learner.schedule`
    extra: Extra = {}  # noqa: RUF012 - a tree of JAX; arrays by name that a server optimiser adds, see `tree_like`


class Progress(NamedTuple):
    """State of a client between two local iterations."""

    params: Params
    filters: Any  # read by actors; constant while the client plays
    memory: Any  # read by learning alone: momentum, a replay buffer; the client keeps it between rounds


class IterationResult(NamedTuple):
    """The outcome of one local iteration."""

    now: Progress
    steps: AnyArray  # environment steps learned from
    info: Any  # a named tuple of numbers, whose names are `Learner.info`


@dataclass(frozen=True)
class Learner(ABC):
    """A local learning algorithm in a world. Equal learners share their compiled programs.

    Array methods are pure, written for one client, and run under `jax.vmap(..., axis_name=CLIENT_AXIS)`.
    """

    config: Any  # of the kind's own class
    world: World

    info: ClassVar[tuple[str, ...]] = ()
    """Names of the numbers that each local iteration reports."""

    @property
    @abstractmethod
    def records_next(self) -> bool:
        """Whether `learn` reads the observation after each step."""

    @abstractmethod
    def init_params(self, key: AnyArray) -> Params:
        """Initial weights: a named tuple or dict whose entries are merged apart by robust aggregators."""

    @abstractmethod
    def init_memory(self, params: Params) -> Any:
        """The initial memory of a client."""

    @abstractmethod
    def actor(self, params: Params, filters: Any, schedule: Any, *, training: bool) -> Actor:
        """The actor of training, which may explore more, or of evaluations, on NumPy or JAX arrays."""

    @abstractmethod
    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """One local iteration on episodes that were collected, [T, E]."""

    @abstractmethod
    def distribution(self, params: Params, observation: AnyArray) -> Any:
        """pi(. | s) for a batch of filtered observations."""

    @property
    def noise(self) -> ActionNoise:
        """Noise that actors need per step: normal numbers, or Gumbel numbers for discrete actions."""
        actions = self.world.actions
        if isinstance(actions, ContinuousActions):
            return ActionNoise("normal", actions.size)
        return ActionNoise("gumbel", actions.num_choices)

    @property
    def batch_length(self) -> int:
        """Number of steps, padding included, of one local iteration."""
        episodes = self.config.whole_episodes
        if episodes is not None:
            return episodes * rollout_length(self.world.horizon, 0)
        return rollout_length(self.world.horizon, self.config.steps_per_iteration)

    def schedule(self, round_number: int) -> Any:
        """Coefficients that depend on the round alone, as a tree of numbers; rounds count from 0."""
        del round_number
        return ()

    def draws(self, generator: np.random.Generator) -> Any:
        """Random numbers of one local training that are drawn on the host, with a leading axis of local iterations."""
        del generator
        return np.zeros((self.config.local_iterations, 0), np.float32)

    def init_filters(self) -> Filters:
        """Filters that have seen nothing."""
        return init_filters(self.world.observation_size)

    def observe(self, filters: Filters, trajectory: Trajectory, weight: float = 1.0) -> Filters:
        """The filters, updated with the steps of a trajectory, each counted `weight` times. NumPy or JAX.

        A filter that is switched off is not updated.
        """
        observation, reward = filters
        if self.config.filter_observations:
            observation = update_moments(observation, trajectory.observation, trajectory.valid, weight)
        if self.config.filter_rewards:
            seen = trajectory.reward
            if self.config.reward_statistic == "return":
                seen = discounted_returns(trajectory, self.config.discount)
            reward = update_moments(reward, seen, trajectory.valid, weight)
        return Filters(observation, reward)

    def filtered(self, filters: Filters, observation: AnyArray) -> AnyArray:
        """Filtered observations, which the policy reads."""
        return filter_observation(filters, observation, self.config.observation_limit)

    def filtered_reward(self, filters: Filters, reward: AnyArray) -> AnyArray:
        """Filtered rewards, which the learner reads."""
        return filter_reward(filters, reward, self.config.reward_limit)

    def reward_scale(self, filters: Filters) -> AnyArray:
        """What filtered rewards must be multiplied by to be raw ones again, if none was clipped."""
        return standard_deviation(filters.reward, filters.reward.mean.__array_namespace__())

    def stored_filters(self, filters: Filters) -> dict[str, np.ndarray]:
        """The filters of all clients as arrays of `policy.npz`."""
        return stored_filters(filters)

    def values(self, params: Params, observation: AnyArray) -> AnyArray | None:
        """The learner's estimate of V(s) for a batch of filtered observations. None: it estimates no values."""
        del params, observation

    def step_advantages(self, params: Params, filters: Any, trajectory: Trajectory) -> AnyArray:
        """Advantage samples of recorded steps, [T, E]."""
        raise UserError(
            f"learner.kind (={self.config.kind!r}) gives no advantage samples. Use modelling.advantages model."
        )

    def loss_samples(self, params: Params, filters: Any, trajectory: Trajectory) -> tuple[Any, AnyArray]:
        """Flattened samples of recorded steps for `gradient`, and which of them are valid."""
        raise UserError(f"learner.kind (={self.config.kind!r}) has no gradient that a selector could read.")

    def gradient(self, params: Params, samples: Any, mask: AnyArray) -> Any:
        """Gradient of the loss by the policy's weights on samples where `mask` holds."""
        raise UserError(f"learner.kind (={self.config.kind!r}) has no gradient that a selector could read.")

    def arrays(self, params: Params) -> Mapping[str, np.ndarray]:
        """Every array of the parameters by name, and constants that an exported policy needs, as they are stored."""
        return named_arrays(params)


def make_learner(config: LearningConfig, world: World) -> Learner:
    """The learner that a config names, in a world."""
    kind = import_function("learner.kind", config.algorithm)
    rule = f"names {config.algorithm!r}, which is no class derived from fedpohcs.learners.base.Learner"
    require(isinstance(kind, type) and issubclass(kind, Learner), "learner.kind", config.kind, rule)
    config.check_actions(world.actions)
    return kind(config, world)
