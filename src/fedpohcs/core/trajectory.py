"""Recorded environment steps of all kinds of worlds. Imports no JAX, so that worker processes need not load it."""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.types import AnyArray


class Status(IntEnum):
    """Kind of a recorded step."""

    PADDING = 0  # after the last episode of its lane
    RUNNING = 1
    TERMINATED = 2  # the last of its episode
    TRUNCATED = 3  # the last before the time limit cut its episode


class Trajectory(NamedTuple):
    """Recorded steps: time comes first, then the lanes, which run side by side.

    Every lane holds whole episodes from the front, then padding. Few fields, because each one costs a write per step.
    """

    observation: AnyArray
    action: AnyArray
    reward: AnyArray
    status: AnyArray  # of type Status
    next_observation: AnyArray | None  # before any reset; recorded only if the learner reads it

    @property
    def valid(self) -> AnyArray:
        """Whether an entry is a step and not padding."""
        return self.status != Status.PADDING

    @property
    def last(self) -> AnyArray:
        """Whether the step is the last of its episode."""
        return self.status >= Status.TERMINATED


CHUNK = 50
"""Steps after which a rollout in a traced world checks whether any lane still plays."""


def rollout_length(horizon: int, min_steps: int) -> int:
    """Steps for which a rollout has room: a last episode may start just before `min_steps` are exceeded."""
    return -(-(min_steps + horizon) // CHUNK) * CHUNK


class Episode(NamedTuple):
    """One episode of one client, for printing and drawing."""

    observations: NDArray[np.floating]  # [T + 1, obs], the last one after the last step
    actions: NDArray[np.generic]  # [T, ...]
    rewards: NDArray[np.floating]  # [T]
    terminated: bool  # False: the time limit cut it
    scenes: list[Any]  # [T + 1], what the painter of the world needs besides the observations

    @property
    def total(self) -> float:
        """The return: the undiscounted sum of the environment's rewards."""
        return float(self.rewards.sum())


def position_in_episode(last: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number of earlier steps in the episode of each step, given which steps are the last of an episode.

    Example:
        >>> position_in_episode(np.array([False, False, True, False, True])).tolist()
        [0, 1, 2, 0, 1]
    """
    index = np.arange(len(last))
    opening = np.concatenate(([True], last[:-1]))[: len(last)]
    return index - np.maximum.accumulate(np.where(opening, index, 0))
