"""Programs of a fleet as child processes: where they are, their environment, their ports, and how they end."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedpohcs.core.errors import UserError, require

LOOPBACK = "127.0.0.1"
SECONDS_TO_START = 180.0
SECONDS_TO_STOP = 10.0
SECONDS_PER_POLL = 0.1
PR_SET_PDEATHSIG = 1
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # the package is installed; nothing is downloaded
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}

PROGRAMS = Path(sys.executable).parent  # of the environment of this Python: Flower's programs are there as well


def find_program(name: str) -> str:
    """Path of one of Flower's programs, in the environment of this Python or on PATH."""
    found = shutil.which(name, path=str(PROGRAMS)) or shutil.which(name)
    if found is None:
        raise UserError(f"{name} is not installed. Install it with: pip install 'fedpohcs[flower]'")
    return found


def quiet_environment(*, telemetry: bool) -> dict[str, str]:
    """The environment of this process, in which Flower finds its own programs and downloads nothing."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return os.environ | QUIET | {"PATH": path, "FLWR_TELEMETRY_ENABLED": str(int(telemetry))}


def start_child(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that writes to this terminal and ends with this process."""
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)


def _end_with_parent() -> None:
    """Make the kernel end the child with its parent, also after SIGKILL (on Linux only).

    A SuperNode that outlived its client app would look alive to the server and answer nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_child(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force if it does not end by itself."""
    process.terminate()
    try:
        process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A TCP port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def checked_port(port: int, host: str = LOOPBACK) -> int:
    """Return `port`, or raise `UserError` if it is in use. 0 stands for a free port, chosen later."""
    require(0 <= port < 2**16, "port", port, "must be at least 0 and below 65536")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was closed just now counts as free
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "Name another, or 0 for any that is free"
            raise UserError(f"port (={port}) cannot be used: {error.strerror}. {remedy}.") from error
    return port


def wait_until_answered(port: int, name: str, check_alive: Callable[[], None]) -> None:
    """Wait until a program accepts connections on a port of loopback; `check_alive` raises if it has ended."""
    deadline = time.monotonic() + SECONDS_TO_START
    while not _answers(port):
        check_alive()
        if time.monotonic() > deadline:
            raise UserError(f"the {name} did not start within {SECONDS_TO_START:g} s.")
        time.sleep(SECONDS_PER_POLL)


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
