"""Handling of SIGINT and SIGTERM in commands."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpohcs.core.processes import let_interrupts_in

SECONDS_TO_TRY_AGAIN = 0.01


class TerminationInterrupt(KeyboardInterrupt):
    """The process received SIGTERM."""


def how_to_go_on(run: Path, command: str) -> Callable[[], str]:
    """The last line of a run that is stopped: the command that goes on with its folder, if it has one by then."""

    def message() -> str:
        stored = (run / "config.json").exists()
        return f"stopped; to go on: {command} {run}" if stored else "stopped before the first round; nothing is stored."

    return message


@contextmanager
def stopped_by_signals(message: str | Callable[[], str] = "interrupted.") -> Iterator[None]:
    """SIGINT and SIGTERM end the block with `message`; a second one kills at once. A closed terminal is ignored."""

    def stop(number: int, frame: object) -> None:
        del frame
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        raise TerminationInterrupt if number == signal.SIGTERM else KeyboardInterrupt

    def try_again(dropped: Any) -> None:
        """Python drops what is raised in some callbacks, such as those of garbage collection, in which JAX has one."""
        if isinstance(dropped.exc_value, OSError) and "race condition" in str(dropped.exc_value):
            return None  # a second signal came while the first was handled
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            return report(dropped)
        number = signal.SIGTERM if isinstance(dropped.exc_value, TerminationInterrupt) else signal.SIGINT
        signal.signal(number, stop)
        threading.Timer(SECONDS_TO_TRY_AGAIN, os.kill, (os.getpid(), number)).start()
        return None

    handlers: dict[int, Any] = {signal.SIGINT: stop, signal.SIGTERM: stop}
    if hasattr(signal, "SIGHUP"):  # not on Windows
        handlers[signal.SIGHUP] = signal.SIG_IGN
    before = {name: signal.signal(name, handler) for name, handler in handlers.items()}
    report, sys.unraisablehook = sys.unraisablehook, try_again
    try:
        let_interrupts_in()
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(message() if callable(message) else message) from interrupt
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        sys.unraisablehook = report
