"""Joins a Ray cluster, or starts one on this machine. Extra: ray."""

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedpohcs.core.checks import require_positive
from fedpohcs.core.errors import UserError, require

REMEDY = "Install it: pip install 'fedpohcs[ray]'."


@dataclass(frozen=True)
class ClusterSettings:
    """The cluster of the executor ray. None of it changes a result, so it is not stored with a run."""

    address: str | None = None
    """Ray cluster to join: HOST:PORT, or auto for that of this machine. None: the one that RAY_ADDRESS names, or a new
    one on this machine, which ends with the run."""
    actors: int | None = None
    """Processes that share the groups of clients, with a core each. None: one per core of the cluster, at most one per
    group."""
    restarts: int = 3
    """Attempts in a row to replace an actor that died, before the run ends."""
    startup_timeout: float = 600.0
    """Seconds to wait for an actor to start."""

    def __post_init__(self) -> None:
        if self.actors is not None:
            require_positive("ray.", self, "actors")
        require(self.restarts >= 0, "ray.restarts", self.restarts, "must be 0 or more")
        require_positive("ray.", self, "startup_timeout")
        rule = "must be auto or HOST:PORT: the server itself runs on a machine of the cluster"
        require("://" not in (self.address or ""), "ray.address", self.address, rule)


def import_ray(setting: str, value: str) -> Any:
    """The package, for a setting that needs it."""
    try:
        import ray
    except ImportError as error:
        raise UserError(f"{setting} (={value!r}) needs the extra ray. {REMEDY}") from error
    return ray


@contextmanager
def joined_cluster(ray: Any, address: str | None = None, cores: int | None = None) -> Iterator[int]:
    """Join a cluster, or start one on this machine with at least so many cores; gives the number of its cores.

    A connection that exists already is used, and left as it is.
    """
    if ray.is_initialized():
        yield _num_cores(ray)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address or os.environ.get("RAY_ADDRESS"):
        settings["address"] = address
    else:
        settings |= {"include_dashboard": False, "num_cpus": max(cores or 1, _cores_here())}
    with _quietly():
        try:
            ray.init(**settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = address or os.environ.get("RAY_ADDRESS") or "this machine"
            raise UserError(f"no Ray cluster answers at {where}: {_first_line(error)}") from error
    with _silenced(ray):
        try:
            yield _num_cores(ray)
        finally:
            ray.shutdown()


@contextmanager
def _silenced(ray: Any) -> Iterator[None]:
    """Keep Ray from printing what its daemons report: the standard output may hold JSON, and a table may be shown.

    Its setting `log_to_driver` does not concern these messages.
    """
    worker, name = ray._private.worker, "print_to_stdstream"
    printing = getattr(worker, name, None)
    if printing is None:
        yield
        return
    setattr(worker, name, lambda *data, **more: None)
    try:
        yield
    finally:
        setattr(worker, name, printing)


def _cores_here() -> int:
    from fedpohcs.core.processes import available_cores

    return len(available_cores())


def _num_cores(ray: Any) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep Ray from changing how this process handles signals, and from warnings that nobody here can act on."""
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if here else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # Ray's processes do not use this JAX
        warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
