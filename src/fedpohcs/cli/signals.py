"""Handling of SIGINT and SIGTERM in commands."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


@contextmanager
def stopped_by_signals(message: str = "interrupted.") -> Iterator[None]:
    """SIGINT and SIGTERM end the block with `message`; a second one kills at once. A closed terminal is ignored."""

    def stop(number: int, frame: object) -> None:
        del frame
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: signal.SIG_IGN}
    before = {name: signal.signal(name, handler) for name, handler in handlers.items()}
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(message) from interrupt
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
