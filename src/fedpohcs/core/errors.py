"""Errors in the user's input, as one line: the name, the value, the rule and the remedy."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints its message alone and exits with code 2."""


class NobodyError(UserError):
    """None of the clients that were asked could do it. Others, that were asked elsewhere, may have done it."""


LONGEST_VALUE = 300  # characters of a value in a message


def printable(text: str) -> str:
    r"""Text for a terminal or a table: what would move a cursor, turn the direction or break the line is written out.

    Example:
        >>> print(printable("mild\x1b[2J"))
        mild\x1b[2J
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def shown(value: object) -> str:
    """A value in a message: its `repr`, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or lists within lists
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def require(condition: bool, name: str, value: object, rule: str, remedy: str = "") -> None:
    """Refuse `value` for the setting `name` unless `condition` holds."""
    if not condition:
        raise UserError(f"{name} (={shown(value)}) {rule}." + (f" {remedy}" if remedy else ""))


def require_checkpoint(condition: bool, content: str) -> None:
    """Refuse a checkpoint that does not hold what it must. Its checksum fits, so it was not damaged by chance."""
    if not condition:
        raise UserError(f"the checkpoint does not hold {content}. Start the run anew with --overwrite.")


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not in a registry, and suggest the nearest one that is."""
    known = sorted(known)
    if name not in known:
        nearest = difflib.get_close_matches(name[:LONGEST_VALUE], known, n=1, cutoff=0.4)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise UserError(f"{kind} (={shown(name)}) is not known.{hint} Known: {', '.join(known)}.")
