"""Worlds: an environment and a population of clients each. A world is one file and one line in the registry."""

from typing import Any

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import require_known
from fedpohcs.core.registries import WORLDS


def world_class(name: str) -> Any:
    """The class behind a registered name; imported only when asked for."""
    return WORLDS.find(name)


def world_levels(name: str) -> tuple[str, ...]:
    """The levels of heterogeneity a world offers."""
    return tuple(world_class(name).levels)


def make_world(config: ExperimentConfig) -> Any:
    """The population that an experiment is about."""
    require_known("level", config.level, world_levels(config.world))
    return world_class(config.world).from_config(config)
