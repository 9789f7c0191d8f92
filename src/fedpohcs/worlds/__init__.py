"""Worlds: each is an environment and a population of clients. A world is one class and one line in the registry."""

from typing import Any

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import require, require_known
from fedpohcs.core.registries import WORLDS
from fedpohcs.worlds.windows import windowed


def world_class(name: str) -> Any:
    """The class of a registered world, imported at the first call."""
    return WORLDS.find(name)


def world_levels(name: str) -> tuple[str, ...]:
    """The levels of heterogeneity a world offers."""
    return tuple(world_class(name).levels)


def check_world(config: ExperimentConfig) -> Any:
    """The class of an experiment's world, if it has the level, the settings and the held-out clients of the config."""
    world = world_class(config.world)
    require_known("level", config.level, world.levels)
    held_out = config.federation.held_out_clients
    rule = f"must be 0: the world {config.world!r} has no held-out clients"
    require(world.held_out or not held_out, "federation.held_out_clients", held_out, rule)
    placement = config.federation.held_out_placement
    rule = f"must be 'between': the world {config.world!r} has no range that they could lie beyond"
    require(world.extrapolates or placement == "between", "federation.held_out_placement", placement, rule)
    world.check_settings(config.scenario)
    return world


def make_world(config: ExperimentConfig) -> Any:
    """The world of an experiment with its population of clients."""
    return windowed(check_world(config).from_config(config), config.learner.observation_window)
