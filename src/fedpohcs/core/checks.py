"""Rules that many settings share: the type of a value and its bounds."""

import dataclasses
import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedpohcs.core.errors import require, require_known

LARGEST_INTEGER = 2**62
UNIONS = (UnionType, Union)  # Python writes some unions in the old way: those with a Literal


def check_kinds(section: str, config: Any) -> None:
    """Refuse values of the wrong type. Dataclasses do not check types, and a file may hold anything."""
    hints = get_type_hints(type(config))
    for name in (field.name for field in dataclasses.fields(config)):
        hint, value = hints[name], getattr(config, name)
        if get_origin(hint) is Literal and isinstance(value, str):
            require_known(f"{section}{name}", value, get_args(hint))
        require(_is_a(value, hint), f"{section}{name}", value, f"must be {_kind(hint)}")
        rule = f"must lie between -{LARGEST_INTEGER} and {LARGEST_INTEGER}"
        require(all(map(_is_small, _items(value))), f"{section}{name}", value, rule)


def _items(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_small(value: Any) -> bool:
    """Whether a value is no integer, or one that floats and arrays can hold."""
    return not isinstance(value, int) or abs(value) <= LARGEST_INTEGER


def _is_a(value: Any, hint: Any) -> bool:
    if get_origin(hint) in UNIONS:
        return any(_is_a(value, one) for one in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is_a(one, get_args(hint)[0]) for one in value)
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)


def _kind(hint: Any) -> str:
    """A type in words, for messages."""
    if get_origin(hint) in UNIONS:
        kinds = [_kind(one) for one in get_args(hint) if one is not NoneType]
        return " or ".join(kinds) + (", or left out" if NoneType in get_args(hint) else "")
    if get_origin(hint) is tuple:
        return f"a list, each item {_kind(get_args(hint)[0])}"
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return f"of type {hint.__name__}"


def require_positive(section: str, config: object, *names: str) -> None:
    """Refuse what is not above 0 in these fields of a config."""
    for name in names:
        value = getattr(config, name)
        require(math.isfinite(value) and value > 0, f"{section}{name}", value, "must be a finite number above 0")


def require_fraction(section: str, config: object, *names: str) -> None:
    """Refuse what is not in (0, 1] in these fields of a config."""
    for name in names:
        value = getattr(config, name)
        require(math.isfinite(value) and 0 < value <= 1, f"{section}{name}", value, "must be above 0 and at most 1")


def require_not_negative(section: str, config: object, *names: str) -> None:
    """Refuse what is below 0 in these fields of a config."""
    for name in names:
        value = getattr(config, name)
        require(math.isfinite(value) and value >= 0, f"{section}{name}", value, "must be a finite number, 0 or more")
