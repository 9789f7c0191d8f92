"""The traffic of one area as a Gymnasium environment, for use outside a federation."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from fedpohcs.worlds.hongkong.networks import load_network
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.hongkong.sight import OBSERVATION_SIZE
from fedpohcs.worlds.hongkong.simulation import ACTION_SIZE, Traffic


class TrafficEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Drive one vehicle among ten.

    A collision of the driven vehicle terminates an episode, the horizon truncates it. One instance can be open per
    process; `close` allows another.
    """

    def __init__(self, area: str = "central", config: TrafficConfig | None = None) -> None:
        """Open the network.

        Args:
            area: one of the ten areas, or a network in `config.networks`.
            config: the settings of the world.
        """
        config = config or TrafficConfig()
        self.observation_space = Box(-1.0, 1.0, (OBSERVATION_SIZE,), np.float32)
        self.action_space = Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        self.traffic = Traffic(load_network(area, config.networks), config)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode. With the option `idm_ego` IDM drives, and actions are ignored."""
        super().reset(seed=seed)
        idm_ego = bool((options or {}).get("idm_ego", False))
        return self.traffic.reset(int(self.np_random.integers(2**63)), idm_ego=idm_ego), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Simulate a tenth of a second."""
        return self.traffic.step(action)

    def close(self) -> None:
        """End SUMO."""
        self.traffic.close()
