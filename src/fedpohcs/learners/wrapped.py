"""A learner around another one: what a client keeps besides the filters is part of its own filters.

Actors read filters and executors do not look into them. So a wrapper works with every learner and every executor.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import AnyArray, Params
from fedpohcs.learners.base import Learner


@dataclass(frozen=True)
class WrappedLearner(Learner):
    """Forwards everything to the learner within. Derived classes say what surrounds its filters."""

    @property
    @abstractmethod
    def inner(self) -> Learner:
        """The learner that learns."""

    @abstractmethod
    def within(self, filters: Any) -> Any:
        """The filters that the learner within reads."""

    @property
    def info(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the learner's."""
        return self.inner.info

    @property
    def records_next(self) -> bool:
        """As the learner's."""
        return self.inner.records_next

    @property
    def noise(self) -> Any:
        """As the learner's."""
        return self.inner.noise

    def init_params(self, key: AnyArray) -> Params:
        """Initial weights, the same for all clients."""
        return self.inner.init_params(key)

    def init_memory(self, params: Params) -> Any:
        """As the learner's."""
        return self.inner.init_memory(params)

    def schedule(self, round_number: int) -> Any:
        """As the learner's."""
        return self.inner.schedule(round_number)

    def draws(self, generator: np.random.Generator) -> Any:
        """As the learner's."""
        return self.inner.draws(generator)

    def filtered(self, filters: Any, observation: AnyArray) -> AnyArray:
        """Filtered observations."""
        return self.inner.filtered(self.within(filters), observation)

    def filtered_reward(self, filters: Any, reward: AnyArray) -> AnyArray:
        """Filtered rewards."""
        return self.inner.filtered_reward(self.within(filters), reward)

    def reward_scale(self, filters: Any) -> AnyArray:
        """As the learner's."""
        return self.inner.reward_scale(self.within(filters))

    def stored_filters(self, filters: Any) -> dict[str, np.ndarray]:
        """The filters of all clients as arrays of `policy.npz`."""
        return self.inner.stored_filters(self.within(filters))

    def distribution(self, params: Params, observation: AnyArray) -> Any:
        """pi(. | s) of the policy that the server has."""
        return self.inner.distribution(params, observation)

    def values(self, params: Params, observation: AnyArray) -> AnyArray | None:
        """As the learner's."""
        return self.inner.values(params, observation)

    def step_advantages(self, params: Params, filters: Any, trajectory: Trajectory) -> AnyArray:
        """As the learner's."""
        return self.inner.step_advantages(params, self.within(filters), trajectory)

    def loss_samples(self, params: Params, filters: Any, trajectory: Trajectory) -> tuple[Any, AnyArray]:
        """As the learner's."""
        return self.inner.loss_samples(params, self.within(filters), trajectory)

    def gradient(self, params: Params, samples: Any, mask: AnyArray) -> Any:
        """As the learner's."""
        return self.inner.gradient(params, samples, mask)

    def arrays(self, params: Params) -> Any:
        """As the learner's."""
        return self.inner.arrays(params)
