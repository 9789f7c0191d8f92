"""Advantages and action values of a decision process with two states, worked out by hand."""

import numpy as np
import pytest

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.types import Steps
from fedpohcs.learners.distributions import categorical
from fedpohcs.metrics import weighted_advantage_table

DISCOUNT = 0.5


def two_states() -> Steps:
    """Waiting in state 0 pays 0, moving on to state 1 pays 1, and leaving state 1 pays 2 and ends the episode.

    An even policy values state 1 as V(1) = 2 and state 0 as V(0) = (0 + V(0) / 2) / 2 + (1 + V(1) / 2) / 2 = 4/3. It is
    twice as often in state 0 as in state 1: D = (2/3, 1/3).
    """
    state, action = np.array([0, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 0])
    reward, last = np.array([1.0, 2, 0, 1, 2]), np.array([False, True, False, False, True])
    return Steps(state[:, None].astype(np.float32), action, reward.astype(np.float32), last)


def even_policy(states: np.ndarray) -> object:
    return categorical(np.zeros((len(states), 2), np.float32))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("advantage", {"wait": 2 / 3 * (2 / 3 - 4 / 3), "move": 2 / 3 * (2 - 4 / 3), "leave": 1 / 3 * (2 - 2)}),
        ("action-value", {"wait": 2 / 3 * 2 / 3, "move": 2 / 3 * 2, "leave": 1 / 3 * 2}),
    ],
)
def test_a_table_holds_visitation_times_advantage_or_action_value(values: str, expected: dict[str, float]) -> None:
    config = ModellingConfig(observation_cell=1.0, values=values)
    table = weighted_advantage_table(two_states(), even_policy, config, DISCOUNT)
    np.testing.assert_allclose(np.sort(table.value), np.sort(list(expected.values())), atol=1e-6)
