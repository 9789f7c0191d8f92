"""Reachers as Xie and Song (2023) make them differ: by an offset of every action, by where the goal lies, or by both.

Run it in its folder: fedpohcs train gym --env reachers:with_offset --clients 64 --learner.kind fedkl

`with_goal` and `with_both` are the other two. Needs MuJoCo: pip install 'fedpohcs[gym,mujoco]'
"""

import gymnasium
import numpy as np

OFFSET_DEVIATION, LARGEST_OFFSET = 0.4, 1.0
CELLS, CELL = 8, 0.05  # the goals of Reacher-v5 lie within 0.2 of the middle, in a square of 8 x 8 cells


class ShiftedActions(gymnasium.ActionWrapper):
    """A constant is added to each joint's torque."""

    def __init__(self, env: gymnasium.Env, offset: np.ndarray) -> None:
        super().__init__(env)
        self.offset = offset

    def action(self, action: np.ndarray) -> np.ndarray:
        return action + self.offset


class GoalsInACell(gymnasium.Wrapper):
    """Goals are drawn uniformly from a square with this lower left corner, and not from the whole disc."""

    def __init__(self, env: gymnasium.Env, corner: np.ndarray) -> None:
        super().__init__(env)
        self.corner = corner

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        _, info = self.env.reset(seed=seed, options=options)
        inner = self.env.unwrapped
        places, speeds = inner.data.qpos.copy(), inner.data.qvel.copy()
        places[-2:] = self.corner + CELL * inner.np_random.random(2)
        inner.set_state(places, speeds)
        return inner._get_obs(), info


def offset_of(client: int) -> np.ndarray:
    """One number per joint, normal and clipped; the same whenever this client is made."""
    drawn = OFFSET_DEVIATION * np.random.default_rng(client).standard_normal(2)
    return np.clip(drawn, -LARGEST_OFFSET, LARGEST_OFFSET).astype(np.float32)


def corner_of(client: int) -> np.ndarray:
    """The lower left corner of a cell; clients go through all cells row by row, and then from the first one again."""
    row, column = divmod(client % CELLS**2, CELLS)
    return CELL * (np.array([column, row]) - CELLS / 2)


def with_offset(client: int) -> gymnasium.Env:
    return ShiftedActions(gymnasium.make("Reacher-v5"), offset_of(client))


def with_goal(client: int) -> gymnasium.Env:
    return GoalsInACell(gymnasium.make("Reacher-v5"), corner_of(client))


def with_both(client: int) -> gymnasium.Env:
    return ShiftedActions(with_goal(client), offset_of(client))
