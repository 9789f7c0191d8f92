"""Recorded episodes as rows of steps, one episode after the other. NumPy alone."""

from typing import Any

import numpy as np

from fedpohcs.core.trajectory import Trajectory, position_in_episode
from fedpohcs.core.types import Steps


def in_order(trajectory: Trajectory, advantage: np.ndarray | None = None) -> Steps:
    """A recorded trajectory [T, E] episode by episode, without padding."""
    status = trajectory.status
    # Choosing by their positions is faster than by a mask, which every field would have to be laid beside.
    position = np.arange(status.size).reshape(status.shape).T[trajectory.valid.T]

    def flatten(x: np.ndarray) -> np.ndarray:
        return x.reshape(status.size, *x.shape[2:]).take(position, axis=0)

    return Steps(
        flatten(trajectory.observation),
        flatten(trajectory.action),
        flatten(trajectory.reward),
        flatten(trajectory.last),
        None if advantage is None else flatten(advantage),
    )


def first_steps(steps: Steps, steps_per_episode: int | None) -> Steps:
    """The first `steps_per_episode` steps of each episode (None: all); the last of them is marked as the last."""
    last = np.array(steps.last, bool)
    last[-1:] = True
    if steps_per_episode is not None:
        position = position_in_episode(last)
        keep = position < steps_per_episode
        last = (last | (position == steps_per_episode - 1))[keep]
        kept: Any = [None if values is None else values[keep] for values in steps]
        steps = Steps(*kept)
    return steps._replace(last=last)
