"""Writes the app folder for `flwr run`. It holds settings only, because both apps are in the installed package."""

from pathlib import Path
from typing import Any

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.version import __version__
from fedpohcs.deploy.protocol import config_text

PUBLISHER, APP_NAME = "fedpohcs", "fedpohcs-app"
APP_ID = f"{PUBLISHER}/{APP_NAME}"


def run_settings(config: ExperimentConfig, out: Path, **changes: Any) -> dict[str, Any]:
    """The run config of the two apps: every key, with its default unless it is in `changes`."""
    settings = {
        "config": config_text(config),
        "out": str(out.absolute()),
        "resume": False,
        "overwrite": False,
        "checkpoint-every": 1,
        "phase-timeout": 600.0,
        "startup-timeout": 600.0,
        "min-clients": 0,
        "state-dir": "",
        "members": "",
        "plan": "",
        "simulated-keys": "",
        "outcome": "",
    }
    assert changes.keys() <= settings.keys()
    return settings | changes


def write_app(folder: Path, settings: dict[str, Any]) -> Path:
    """Write the app folder into `folder` and return its path."""
    app = folder / APP_NAME
    app.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"{key} = {_toml(value)}" for key, value in settings.items())
    (app / "pyproject.toml").write_text(
        f"""[project]
name = "{APP_NAME}"
version = "{__version__}"
description = "A federation of fedpohcs"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "{PUBLISHER}"

[tool.flwr.app.components]
serverapp = "fedpohcs.deploy.server_app:app"
clientapp = "fedpohcs.deploy.client_app:app"

[tool.flwr.app.config]
{lines}
""",
        encoding="utf-8",
    )
    (app / "README.md").write_text("Run it with `flwr run`; the apps are in the package fedpohcs.\n", encoding="utf-8")
    return app


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'''" + value + "'''"  # a literal string: JSON has no triple single quotes
    return repr(value)
