"""Commands in processes of their own, which end with the test that started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 300.0  # seconds

AS_IN_A_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell that runs the tests in the background ignores it
os.execv(sys.executable, [sys.executable, "-m", "fedpohcs", *sys.argv[1:]])
"""


@contextmanager
def started(folder: Path, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, as a terminal starts it."""
    program = [sys.executable, "-c", AS_IN_A_TERMINAL, *arguments]
    process = subprocess.Popen(program, cwd=folder, stdout=-1, stderr=-1, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever is left of it holds the pipes open
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
