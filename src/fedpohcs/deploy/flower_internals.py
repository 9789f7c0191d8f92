"""Every name of Flower that is used here and that is not part of Flower's public interface.

The client app that stays (`resident`) talks to a SuperNode as Flower's own `flwr-clientapp` does, and Flower has no
public interface for that. Such names may move in any release, so they are found on first use: `flower_internals.NAME`
is the object, or a `UserError` that says what is missing. `tests/deploy/test_flower_internals.py` checks how each is
used.
"""

import importlib
from importlib.metadata import version
from typing import Any

from fedpohcs.core.errors import UserError

SUPPORTED = "1.41 and 1.42"

MODULES = {
    "AcquireTaskRequest": "flwr.proto.runtime_pb2",
    "ErrorCode": "flwr.common.constant",
    "HeartbeatSender": "flwr.supercore.heartbeat",
    "RuntimeHttpClient": "flwr.supercore.runtime",
    "RuntimeTokenHttpInterceptor": "flwr.supercore.interceptors",
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
    "SuperExecAuthHttpInterceptor": "flwr.supercore.interceptors",
    "SubStatus": "flwr.common.constant",
    "TaskType": "flwr.supercore.constant",
    "flower_superlink": "flwr.superlink.cli",
    "flower_supernode": "flwr.supernode.cli",
    "get_middleware": "flwr.superlink.extensions",
    "make_simple_http_retry_invoker": "flwr.supercore.retry",
    "make_task_heartbeat_fn_http": "flwr.supercore.heartbeat",
    "pull_task_input": "flwr.supernode.runtime.run_clientapp",
    "push_message": "flwr.supernode.runtime.run_clientapp",
    "push_task_output": "flwr.supernode.runtime.run_clientapp",
    "start_parent_process_monitor": "flwr.supercore.app_utils",
}
"""The module of each name."""

FLEET_CALLS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run"),
        *("get-fab", "push-object", "pull-object", "confirm-message-received"),
    )
)
"""Paths of the calls of a registered SuperNode."""

ACQUIRE_TASK = "/flwr.proto.Runtime/AcquireTask"
"""The call of a SuperNode's runtime that gives messages to a client app; the others need the token that it returns."""

REGISTRATION_CALLS = frozenset({"/v1/fleet/register-node", "/v1/fleet/unregister-node"})
"""Paths of the calls by which a SuperNode without a key registers itself."""


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _find(name)


def replace(name: str, value: Any) -> None:
    """Let Flower use another object under the name."""
    _find(name)
    setattr(importlib.import_module(MODULES[name]), name, value)


def check_internals() -> None:
    """Raise `UserError` if the installed Flower lacks one of the names."""
    for name in MODULES:
        _find(name)


def _find(name: str) -> Any:
    module = MODULES[name]
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not module.startswith(str(error.name)):
            raise  # Flower is broken: a package that it needs is missing
        raise UserError(
            f"flwr {version('flwr')} moved {module}.{name}; fedpohcs supports {SUPPORTED}. "
            "Install one of them with: pip install 'fedpohcs[flower]'"
        ) from error
