"""Flower's SuperNode as a process that ends when it has lost the server.

`python -m fedpohcs.deploy.supernode ...` takes the arguments of `flower-supernode`. Flower's own program outlives its
connection: after an answer that it does not expect, such as "database is locked", its loop ends, or its heartbeat does,
but the process stays, so it would be alive and offline for ever.
"""

import os
import threading

from fedpohcs.deploy import flower_internals as flower
from fedpohcs.deploy.node_command import EXIT_LOST


def end_with_threads() -> None:
    """Let an error in any thread, such as that of the heartbeat, end the process."""
    report = threading.excepthook

    def end(problem: threading.ExceptHookArgs) -> None:
        report(problem)
        os._exit(EXIT_LOST)

    threading.excepthook = end


def main() -> None:
    """Run a SuperNode. It ends by itself, with a code of its own, if it never got a connection."""
    end_with_threads()
    flower.flower_supernode()
    os._exit(EXIT_LOST)  # the thread of its runtime port would keep the process alive


if __name__ == "__main__":
    main()
