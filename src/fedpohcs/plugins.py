"""What users bring along: functions named by a setting, and what installed packages offer by their entry points.

A package names them in its `pyproject.toml`:

    [project.entry-points."fedpohcs.worlds"]
    point-mass = "their_package.worlds:PointMass"

The groups are `fedpohcs.worlds` (a world class), `fedpohcs.selectors` (a function that makes a `Selector`) and
`fedpohcs.presets` (a function of level and selector that makes an `ExperimentConfig`).
"""

import importlib
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from fedpohcs.errors import UserError


def import_function(setting: str, name: str) -> Any:
    """What `module:function` stands for, or None if the module has no such function.

    A user's own file is found in the folder in which the command is run.
    """
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise UserError(f"{setting} (={name!r}) names a module that cannot be imported: {error}.") from error
    return found if callable(found) else None


@cache
def register_plugins() -> None:
    """Put what installed packages offer into the registries, once; a name that is taken stays with whom it is."""
    from fedpohcs.envs import WORLDS
    from fedpohcs.presets import PRESETS
    from fedpohcs.selection import SELECTORS

    for entry in entry_points(group="fedpohcs.worlds"):
        WORLDS.setdefault(entry.name, entry.value)  # imported only when it is used
    registries: tuple[tuple[str, dict[str, Any]], ...] = (
        ("fedpohcs.selectors", SELECTORS),
        ("fedpohcs.presets", PRESETS),
    )
    for group, registry in registries:
        for entry in entry_points(group=group):
            if entry.name not in registry:
                registry[entry.name] = _load(entry)


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist else "an installed package"
        what = f"{entry.group} {entry.name!r} (={entry.value!r}) of {package}"
        raise UserError(f"{what} cannot be loaded: {error}. Repair or uninstall that package.") from error
