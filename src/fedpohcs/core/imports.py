"""Imports functions that users name in a setting as `module:function`."""

import importlib
import sys
from pathlib import Path
from typing import Any

from fedpohcs.core.errors import UserError


def import_function(setting: str, name: str) -> Any:
    """The object that `module:function` names, or None if the module has no such attribute.

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
