"""The command line."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see `fedpohcs.cli.program`."""
    from fedpohcs.cli import program

    return program.main(arguments)
