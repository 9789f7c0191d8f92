"""The command line."""

import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see `fedpohcs.cli.program`."""
    try:
        from fedpohcs.cli import program

        code = program.main(arguments)
    except KeyboardInterrupt:  # while modules were imported
        print("fedpohcs: interrupted.", file=sys.stderr)
        code = 130
    if arguments is None and code >= 128:  # the program ends now; another Ctrl-C must not print a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code
