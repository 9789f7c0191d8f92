"""Returns of an ego vehicle driven by IDM, as all other vehicles are, to compare learned policies with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.worlds.hongkong.areas import AREAS
from fedpohcs.worlds.hongkong.networks import DATA, Network, load_network
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.hongkong.simulation import Traffic

FILE = DATA / "idm-reference.json"
IDLE = (0.0, 0.0)


def idm_returns(network: Network, config: TrafficConfig, seeds: Sequence[int]) -> list[float]:
    """Undiscounted return of an IDM-driven ego vehicle per seed."""
    traffic = Traffic(network, config)
    try:
        return [_episode(traffic, seed) for seed in seeds]
    finally:
        traffic.close()


def _episode(traffic: Traffic, seed: int) -> float:
    traffic.reset(seed, idm_ego=True)
    total = 0.0
    while True:
        step = traffic.step(IDLE)
        total += step.reward
        if step.terminated or step.truncated:
            return total


def write_reference(config: TrafficConfig, episodes: int, output: Path) -> dict[str, Any]:
    """Play episodes and write the mean and standard deviation of the returns per area."""
    areas = {}
    for name in AREAS:
        returns = idm_returns(load_network(name, config.networks), config, range(episodes))
        areas[name] = {"mean": round(float(np.mean(returns)), 2), "std": round(float(np.std(returns, ddof=1)), 2)}
    content = {"horizon": config.horizon, "reward": config.reward, "episodes": episodes, "areas": areas}
    known = [one for one in _read(output) if (one["horizon"], one["reward"]) != (config.horizon, config.reward)]
    output.write_text(json.dumps([*known, content], indent=1) + "\n", encoding="utf-8")
    return content


def idm_reference(config: TrafficConfig, num_clients: int = len(AREAS)) -> np.ndarray | None:
    """Mean return per client, if the package has it for these settings."""
    if config.networks:
        return None
    for one in _read(FILE):
        if (one["horizon"], one["reward"]) == (config.horizon, config.reward):
            return np.array([one["areas"][name]["mean"] for name in list(AREAS)[:num_clients]])
    return None


def _read(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
