"""The settings of a world: every world class names its own dataclass, `World.Config`.

A run can be read where its world is not installed. Its settings are then kept as they were stored, unchecked.
"""

import dataclasses
import keyword
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedpohcs.core.checks import check_kinds
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.registries import WORLDS, register_plugins


@dataclass(frozen=True)
class WorldConfig:
    """Settings of a world; this class has none. Derived classes give every field a default."""

    def __post_init__(self) -> None:
        check_kinds("scenario.", self)


def find_world(name: Any) -> Any:
    """The class of a world; None if no such world is registered, or if its package cannot be loaded."""
    if not isinstance(name, str):
        return None
    if name not in WORLDS:
        register_plugins()
    try:
        return WORLDS.get(name)
    except UserError:  # reported when the world is made; reading a run needs no world
        return None


def scenario_for(world: str, given: WorldConfig) -> WorldConfig:
    """The settings as an instance of the world's own class: its defaults if `given` is a plain `WorldConfig`."""
    found = find_world(world)
    if found is None or type(given) is found.Config:
        return given
    rule = f"must be of type {found.Config.__name__}, the settings of the world {world!r}"
    require(type(given) is WorldConfig, "scenario", given, rule)
    return found.Config()


def scenario_class(world: Any, values: dict[str, Any]) -> type[WorldConfig]:
    """The class for stored settings of a world."""
    found = find_world(world)
    if found is None:
        return _unchecked_class(tuple(values))
    if values and not dataclasses.fields(found.Config):
        raise UserError(f"scenario.key (={next(iter(values))!r}) is not known: the world {world!r} has no settings.")
    return found.Config


@cache
def _unchecked_class(names: tuple[str, ...]) -> type[WorldConfig]:
    """A class per set of field names; it is cached, so that equal settings compare equal."""
    for name in names:  # they become attributes
        plain = name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name)
        require(plain, "scenario.key", name, "must be a plain name")
    fields = [(name, object) for name in names]
    return dataclasses.make_dataclass("UncheckedWorldConfig", fields, bases=(WorldConfig,), frozen=True)


def with_present_keys(values: dict[str, Any], default_world: str) -> dict[str, Any]:
    """The values of a config with `scenario` in place of `env` and `traffic`, the keys of release 0.1."""
    values = dict(values)
    old = {name: values.pop(name) for name in ("env", "traffic") if name in values}
    world = values.get("world", default_world)
    if (env := old.get("env")) is not None:
        require(world == "gym", "env", env, f"is for the world 'gym', not for {world!r}")
        _move(values, "env", env, {"env": env})
    if "traffic" in old and world == "hongkong":  # every config had it, whatever its world
        _move(values, "traffic", old["traffic"], old["traffic"])
    return values


def _move(values: dict[str, Any], name: str, given: Any, scenario: Any) -> None:
    require("scenario" not in values, name, given, "is part of scenario now", "Name it there only.")
    values["scenario"] = scenario
