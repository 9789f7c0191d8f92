"""Modules that have moved: their old names work for one release and warn.

`import fedpohcs.config` gives `fedpohcs.core.config`, the same module object.
"""

import importlib
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importlib.abc takes a third of the time of `import fedpohcs`, and nothing asks for the class

MOVED = {
    "aggregation": "server.aggregation",
    "checkpoints": "runs.checkpoints",
    "comparison": "cli.compare",
    "config": "core.config",
    "configfile": "core.toml",
    "defences": "server.defences",
    "deploy.command": "cli.flower",
    "deploy.following": "cli.following",
    "display": "cli.display",
    "envs": "worlds",
    "errors": "core.errors",
    "execution.base": "server.protocols",
    "execution.replies": "server.replies",
    "experiment": "runs.experiment",
    "exporting": "runs.export",
    "grid": "cli.grid",
    "heterogeneity": "metrics",
    "heterogeneity.metric": "metrics.comparison",
    "inspection": "cli.inspect",
    "learners.trajectory": "core.trajectory",
    "loggers": "runs.loggers",
    "options": "cli.options",
    "parsing": "cli.parsing",
    "pictures": "worlds.pictures",
    "playing": "runs.playing",
    "plugins": "core.imports",
    "policy": "runs.policy",
    "presets": "core.presets",
    "randomness": "core.randomness",
    "reproduction": "cli.reproduce",
    "robust": "server.aggregation.robust",
    "rounds": "server.round",
    "rules": "core.checks",
    "selection": "server.selection",
    "runs.storage": "runs.loading",
    "storage": "runs.loading",
    "theory.command": "cli.theory",
    "types": "core.types",
}
"""Old names to new ones, below `fedpohcs`."""


def new_name(name: str) -> str | None:
    """Where the module `fedpohcs.<name>` is now; None if it has not moved."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        head = ".".join(parts[:length])
        if head in MOVED:
            return ".".join([MOVED[head], *parts[length:]])
    return None


class MovedModuleFinder(Loader):
    """Finds old names of modules of one package."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for an old name; None for every other."""
        inside = fullname.removeprefix(f"{self.package}.")
        if inside == fullname or new_name(inside) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The module under its new name."""
        new = f"{self.package}.{new_name(spec.name.removeprefix(f'{self.package}.'))}"
        warnings.warn(f"{spec.name} has moved to {new}; the old name goes with the next release", DeprecationWarning, 2)
        module = importlib.import_module(new)
        self._kept = module.__spec__, module.__loader__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module is loaded already. Restore its spec, which the import system has replaced by the old name's."""
        module.__spec__, module.__loader__ = self._kept


def redirect_old_names(package: str) -> None:
    """Let `import package.old` find the module under its new name."""
    if not any(isinstance(finder, MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModuleFinder(package))  # before the finder that would load a second copy
