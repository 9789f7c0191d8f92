"""One drive through a network, recorded for drawing. The driver is a learned policy or IDM."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpohcs.worlds.hongkong.networks import Network
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.hongkong.simulation import Traffic

STEPS_PER_FRAME = 4
Driver = Callable[[np.ndarray], np.ndarray]


class Frame(NamedTuple):
    """The state of a drive at one step; the ego vehicle comes first."""

    vehicles: np.ndarray  # [11, 3]: east, north, heading in degrees
    speeds: np.ndarray  # [11], m/s
    total: float  # of rewards so far


def record_drive(network: Network, config: TrafficConfig, seed: int, driver: Driver | None) -> list[Frame]:
    """Every fourth step of an episode, and the last one. Without a driver, IDM drives."""
    traffic = Traffic(network, config)
    try:
        observation = traffic.reset(seed, idm_ego=driver is None)
        frames, total, steps = [_frame(traffic, 0.0)], 0.0, 0
        while True:
            action = np.zeros(2) if driver is None else driver(observation)
            observation, reward, terminated, truncated, _ = traffic.step(action)
            total, steps = total + reward, steps + 1
            ends = terminated or truncated
            if ends or steps % STEPS_PER_FRAME == 0:
                frames.append(_frame(traffic, total))
            if ends:
                return frames
    finally:
        traffic.close()


def _frame(traffic: Traffic, total: float) -> Frame:
    return Frame(traffic.positions(), np.array(traffic.speeds), total)
