"""What a client sends is checked here, and nowhere else, before it touches the policy or a record.

An executor describes what it expects, name by name; what came is described by the sender and made into arrays only
when the description fits. No number is trusted because it arrived.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

LARGEST_REPLY = 256 * 2**20  # bytes of all arrays of a reply
LARGEST_RETURN = 1e12  # beyond it a mean return, or an entry of a table, is a mistake


class BadReplyError(Exception):
    """A reply that is not what was asked for; the message names the array and the rule."""


class Expected(NamedTuple):
    """What an array must be."""

    dtype: Any
    shape: tuple[int | None, ...] = ()  # None: any length
    low: float = -math.inf
    high: float = math.inf
    finite: bool = True


class Received(NamedTuple):
    """An array as it came: described, and not made yet."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Stamp(NamedTuple):
    """Which question a reply answers. One that bears another is late, or a copy."""

    client: int
    phase: str
    round: int
    attempt: int


def expected_like(template: Mapping[str, np.ndarray]) -> dict[str, Expected]:
    """Arrays of the same names, shapes and types."""
    return {name: Expected(array.dtype, array.shape) for name, array in template.items()}


def check_stamp(found: Stamp, asked: Stamp) -> None:
    """Refuse the answer to another question."""
    if found != asked:
        raise BadReplyError(f"answers {tuple(found)}, but {tuple(asked)} was asked")


def checked_arrays(
    received: Mapping[str, Received], expected: Mapping[str, Expected], largest: int = LARGEST_REPLY
) -> dict[str, np.ndarray]:
    """The arrays of a reply, all as expected, or `BadReplyError`. Nothing is allocated for what does not fit."""
    if received.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - received.keys()), sorted(received.keys() - expected.keys())
        raise BadReplyError(f"lacks {missing[:3]} and brings {extra[:3]}")
    size = sum(len(one.data) for one in received.values())
    if size > largest:
        raise BadReplyError(f"holds {size} bytes, more than {largest}")
    return {name: _checked(name, received[name], rule) for name, rule in expected.items()}


def _checked(name: str, one: Received, rule: Expected) -> np.ndarray:
    dtype = np.dtype(rule.dtype)
    if one.dtype != dtype.str:
        raise BadReplyError(f"{name} is of type {one.dtype!r}, not {dtype.str!r}")
    fits = len(one.shape) == len(rule.shape) and all(
        n >= 0 and wanted in (None, n) for n, wanted in zip(one.shape, rule.shape, strict=True)
    )
    if not fits:
        raise BadReplyError(f"{name} has the shape {tuple(one.shape)}, not {rule.shape}")
    if math.prod(one.shape) * dtype.itemsize != len(one.data):
        raise BadReplyError(f"{name} claims the shape {tuple(one.shape)} for {len(one.data)} bytes")
    array = np.frombuffer(one.data, dtype).reshape(one.shape).copy()
    if rule.finite and not np.isfinite(array).all():
        raise BadReplyError(f"{name} holds a number that is not finite")
    if rule.finite and array.size and not (array.min() >= rule.low and array.max() <= rule.high):
        raise BadReplyError(f"{name} holds a number outside [{rule.low:g}, {rule.high:g}]")
    return array


def check_ascending(name: str, keys: np.ndarray) -> None:
    """Refuse keys that do not ascend: tables are joined by them."""
    if (keys[1:] <= keys[:-1]).any():
        raise BadReplyError(f"{name} does not ascend")
