"""Names and modules that are imported when they are first used."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def importer(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for `package` that imports names on first use. `homes`: module to its names, joined by spaces."""
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return find


class LazyModule:
    """Stands for a module that takes long to import, until one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
