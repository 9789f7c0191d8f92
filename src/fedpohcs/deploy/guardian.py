"""The processes of a local fleet: how all of them are found and ended, also when the one that started them was killed.

`python -m fedpohcs.deploy.guardian FLEET FOLDER` waits for the end of its standard input, which the system closes
however the process at the other end goes; then it ends what is left of the fleet and removes the folder.
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

MARK = "FEDPOHCS_FLEET"  # in the environment of all processes of a fleet, so that none is overlooked at the end
SECONDS_TO_STOP = 15.0


def start_guardian(fleet: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that outlives this one just long enough to clear up after it."""
    program = [sys.executable, "-m", __name__, fleet, str(folder)]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def end_processes(living: Callable[[], list[int]]) -> None:
    """Ask processes to end, then make them, and wait until all are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in living():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + SECONDS_TO_STOP
        while living() and time.monotonic() < deadline:
            time.sleep(0.1)


def marked_processes(fleet: str) -> list[int]:
    """Processes that inherited a fleet's mark, where the system tells: on Linux."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={fleet}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # gone, or not ours
            continue
    return found


def main() -> None:
    """Wait for the end of the fleet's parent."""
    fleet, folder = sys.argv[1:]
    sys.stdin.buffer.read()
    end_processes(lambda: marked_processes(fleet))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
