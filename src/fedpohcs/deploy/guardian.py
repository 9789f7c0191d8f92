"""Finds and ends all processes of a local fleet, also after the process that started them was killed.

`python -m fedpohcs.deploy.guardian FLEET FOLDER` reads its standard input until the end. The kernel closes that pipe
when the parent process ends, for whatever reason. Then the guardian ends the processes that are left of the fleet and
removes the folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "FEDPOHCS_FLEET"  # environment variable that all processes of a fleet inherit, by which they are found
SECONDS_TO_STOP = 15.0
SECONDS_PER_POLL = 0.1


def start_guardian(fleet: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that cleans up after this one has ended."""
    program = [sys.executable, "-m", __name__, fleet, str(folder)]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def end_processes(living: Callable[[], list[int]]) -> None:
    """Send SIGTERM, after a while SIGKILL, and wait until no process is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in living():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + SECONDS_TO_STOP
        while living() and time.monotonic() < deadline:
            time.sleep(SECONDS_PER_POLL)


def marked_processes(fleet: str) -> list[int]:
    """Ids of the processes that inherited a fleet's mark; on Linux only, where /proc tells."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={fleet}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


def main() -> None:
    """Wait until the parent process ends, then clean up."""
    fleet, folder = sys.argv[1:]
    sys.stdin.buffer.read()
    end_processes(lambda: marked_processes(fleet))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
