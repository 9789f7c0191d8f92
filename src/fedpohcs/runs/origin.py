"""Where a run comes from: commit, software and hardware."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fedpohcs.core.version import __version__

_REPORTED_PACKAGES = ("jax", "jaxlib", "optax", "numpy", "scipy", "numba")


def describe_origin() -> dict[str, Any]:
    """The software and hardware of a run, without the names of machine and user."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "fedpohcs": __version__,
        **_describe_commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "packages": {name: metadata.version(name) for name in _REPORTED_PACKAGES},
    }


def _describe_commit() -> dict[str, Any]:
    """The commit of this source tree; None when the package is not run from its own repository."""
    here = str(Path(__file__).parent)

    def git(*arguments: str) -> str:
        command = ["git", "-C", here, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "origin.py")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "."))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
