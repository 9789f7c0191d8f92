"""The worlds. A world is an environment and a population of clients; adding one is one file and one line here."""

import importlib
from typing import Any

from fedpohcs.errors import require_known

WORLDS = {
    "mountain-cars": "fedpohcs.envs.mountain_car:MountainCars",
    "tabular": "fedpohcs.envs.tabular:TabularWorlds",
}


def world_class(name: str) -> Any:
    """The class behind a registered name; imported only when asked for."""
    require_known("world", name, WORLDS)
    module, _, attribute = WORLDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def world_levels(name: str) -> tuple[str, ...]:
    """The levels of heterogeneity a world offers."""
    return tuple(world_class(name).levels)


def make_world(name: str, level: str, num_clients: int) -> Any:
    """A population of `num_clients` at the given level of heterogeneity."""
    require_known("level", level, world_levels(name))
    return world_class(name)(level, num_clients)
