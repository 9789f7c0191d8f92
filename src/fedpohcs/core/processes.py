"""What differs between platforms when processes are started: cores, start methods and signals."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedpohcs.core.errors import UserError

STOPPING = (signal.SIGINT, signal.SIGTERM)
EXIT_NOT_GUARDED = 77
NOT_GUARDED = (
    "worker processes could not start. They import this script, which must not train when it is imported. Put what it "
    'does under: if __name__ == "__main__":'
)


class NotGuardedError(UserError, SystemExit):
    """A script trains when it is imported. Where nobody catches it, Python prints the message alone, no traceback."""

    def __init__(self) -> None:
        super().__init__(NOT_GUARDED)
        self.code = f"fedpohcs: {NOT_GUARDED}"


_most_cores: int | None = None


def limit_cores(most: int) -> None:
    """Let this process count on no more than so many cores: it shares the machine with others of its kind."""
    global _most_cores
    _most_cores = most


def available_cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return sorted(os.sched_getaffinity(0))[:_most_cores]
    return list(range(os.cpu_count() or 1))[:_most_cores]


def start_method() -> str:
    """How worker processes start: from a server that has imported everything once, or each from nothing (Windows)."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def refuse_while_importing() -> None:
    """End a worker process that imports a script which would train, and so start workers of its own."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # set while the main module is imported
        os._exit(EXIT_NOT_GUARDED)  # an exception would be printed with its traceback


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Hold signals that stop a program back, also from a process that is started meanwhile.

    That process would otherwise die with a traceback while it imports what handles signals. It lets them in by
    `let_interrupts_in`.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it is started with the first process, and then lets signals in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        with interrupts_deferred():  # the system gives a signal that this thread blocks to another one
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Handle signals that stop a program after the block."""
    if threading.current_thread() is not threading.main_thread():  # no other handles signals
        yield
        return
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: held.append(number)) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for number in held:
            signal.raise_signal(number)


def let_interrupts_in() -> None:
    """Accept the signals that `interrupts_blocked` held back."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
