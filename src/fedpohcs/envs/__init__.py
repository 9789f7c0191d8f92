"""The worlds. A world is an environment and a population of clients; adding one is one file and one line here."""

import importlib
from typing import Any

from fedpohcs.config import ExperimentConfig
from fedpohcs.errors import require_known

WORLDS = {
    "mountain-cars": "fedpohcs.envs.mountain_car:MountainCars",
    "hoppers": "fedpohcs.envs.mujoco:Hoppers",
    "half-cheetahs": "fedpohcs.envs.mujoco:HalfCheetahs",
    "walkers": "fedpohcs.envs.mujoco:Walkers",
    "hongkong": "fedpohcs.envs.hongkong.world:HongKong",
    "gym": "fedpohcs.envs.gym:GymWorld",
    "tabular": "fedpohcs.envs.tabular:TabularWorlds",
}

LEVELS = {
    "mountain-cars": ("low", "medium", "high", "high-authors"),
    "hoppers": ("low", "medium", "high"),
    "half-cheetahs": ("low", "medium", "high"),
    "walkers": ("low", "medium", "high"),
    "hongkong": ("areas",),
    "gym": ("own",),
    "tabular": ("none", "low", "medium", "high"),
}
"""Those of the worlds above once more: importing a world loads JAX, for which a misspelt level need not wait."""


def world_class(name: str) -> Any:
    """The class behind a registered name; imported only when asked for."""
    require_known("world", name, WORLDS)
    module, _, attribute = WORLDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def world_levels(name: str) -> tuple[str, ...]:
    """The levels of heterogeneity a world offers."""
    return LEVELS[name] if name in LEVELS else tuple(world_class(name).levels)


def make_world(config: ExperimentConfig) -> Any:
    """The population that an experiment is about."""
    require_known("level", config.level, world_levels(config.world))
    return world_class(config.world).from_config(config)
