"""Metrics of returns and lengths, from episodes worked out by hand."""

import numpy as np

from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.metrics.returns import episode_totals

# Two lanes: the first holds episodes of 2 and 1 steps, the second one of 3 steps and padding.
R, T, P = Status.RUNNING, Status.TERMINATED, Status.PADDING
STATUS = np.array([[R, R], [T, R], [Status.TRUNCATED, T], [P, P]], np.int8)
REWARD = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0], [99.0, 99.0]], np.float32)
NOTHING = np.zeros((4, 2, 1), np.float32)
PLAYED = Trajectory(NOTHING, NOTHING, REWARD, STATUS, None)


def test_each_episode_counts_by_itself_and_padding_does_not() -> None:
    assert [totals.tolist() for totals in episode_totals(PLAYED)] == [[3, 4, 70], [2, 1, 3]]


def test_a_client_that_played_nothing_has_no_episodes() -> None:
    nothing = PLAYED._replace(status=np.full_like(STATUS, P))
    assert [len(totals) for totals in episode_totals(nothing)] == [0, 0]
