"""Recorded trajectories as rows of steps, worked out by hand."""

import numpy as np

from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.metrics.episodes import in_order

# Two lanes: the first holds episodes of 2 and 1 steps, the second one of 2 steps; then comes padding.
R, T, P = Status.RUNNING, Status.TERMINATED, Status.PADDING
STATUS = np.array([[R, R], [T, T], [Status.TRUNCATED, P], [P, P]], np.int8)
NUMBER = np.array([[1, 10], [2, 20], [3, 99], [99, 99]], np.float32)


def test_steps_follow_each_other_lane_by_lane_without_padding() -> None:
    pairs = np.stack((NUMBER, -NUMBER), axis=-1)
    steps = in_order(Trajectory(pairs, NUMBER.astype(np.int64), NUMBER, STATUS, None), 2 * NUMBER)
    assert steps.observation.tolist() == [[1, -1], [2, -2], [3, -3], [10, -10], [20, -20]]
    assert steps.action.tolist() == steps.reward.tolist() == [1, 2, 3, 10, 20]
    assert steps.last.tolist() == [False, True, True, False, True]
    assert steps.advantage is not None
    assert steps.advantage.tolist() == [2, 4, 6, 20, 40]
    assert (steps.observation.dtype, steps.action.dtype, steps.last.dtype) == (np.float32, np.int64, bool)
