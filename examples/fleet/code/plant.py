"""An environment of your own for the devices of a fleet: a tank whose level is to be kept, each with its own outlet."""

from typing import Any

import gymnasium
import numpy as np


class Tank(gymnasium.Env):
    """Observation: level and wanted level, in metres. Action: how far the inlet is opened, from 0 to 1."""

    def __init__(self, outlet: float) -> None:
        self.outlet = outlet
        self.observation_space = gymnasium.spaces.Box(0.0, 10.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.level, self.wanted = self.np_random.uniform(1.0, 5.0, 2)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        flow = float(action[0]) - self.outlet * np.sqrt(self.level)
        self.level = float(np.clip(self.level + 0.5 * flow, 0.0, 10.0))
        return self._observation(), -abs(self.level - self.wanted), False, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.level, self.wanted], np.float32)


def make_client(client: int) -> gymnasium.Env:
    """The environment of a device. A real one would open its plant here and need no number."""
    return gymnasium.wrappers.TimeLimit(Tank(outlet=0.2 + 0.05 * client), 100)
