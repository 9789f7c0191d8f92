"""Locks between processes, on every platform: a file `.lock` in the folder that one process at a time may change."""

import warnings
from pathlib import Path
from typing import Any

from fedpohcs.core.errors import UserError

NAME = ".lock"


class FolderLock:
    """A lock on a folder. It is released by `release`, or when the process ends."""

    def __init__(self, folder: Path, *, wait: bool = False, text: str = "") -> None:
        """Lock the folder.

        Args:
            folder: must exist.
            wait: wait for another process. Otherwise its lock is a `UserError`.
            text: what is locked, for that error.
        """
        from filelock import FileLock, Timeout  # loads asyncio, which most commands do not need

        self._lock: Any = FileLock(str(folder / NAME), timeout=-1 if wait else 0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise UserError(f"{text} is being written by another process. Wait for it or stop it.") from error
        except (OSError, NotImplementedError) as error:  # some network file systems have no locks
            warnings.warn(f"{folder} cannot be locked ({error}); let no other process write it", stacklevel=3)

    def release(self) -> None:
        """Release the lock. May be called twice."""
        self._lock.release()

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
