"""Errors in the user's input, as one line: the name, the value, the rule and the remedy."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints its message alone and exits with code 2."""


def require(condition: bool, name: str, value: object, rule: str, remedy: str = "") -> None:
    """Refuse `value` for the setting `name` unless `condition` holds."""
    if not condition:
        raise UserError(f"{name} (={value!r}) {rule}." + (f" {remedy}" if remedy else ""))


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not in a registry, and suggest the nearest one that is."""
    known = sorted(known)
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise UserError(f"{kind} (={name!r}) is not known.{hint} Known: {', '.join(known)}.")
