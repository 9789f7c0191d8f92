"""The type, shape and range that an array of a client must have. Metrics declare them, the server checks them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST_RETURN = 1e12  # a larger mean return, or entry of a table, is an error
KEY, NUMBER, COUNT = np.uint64, np.float64, np.int64


class BadReplyError(Exception):
    """A reply that breaks a rule: the name of the rule, the array if one is at fault, and what is wrong."""

    def __init__(self, rule: str, text: str, array: str = "") -> None:
        super().__init__(f"{array} {text}".strip())
        self.rule = rule
        self.text = text
        self.array = array


class ArrayRule(NamedTuple):
    """Type, shape and range of an array."""

    dtype: Any
    shape: tuple[int | None, ...] = ()  # None: any length
    low: float = -math.inf
    high: float = math.inf
    finite: bool = True
    optional: bool = False  # the array may be missing


BOUNDED = ArrayRule(NUMBER, low=-LARGEST_RETURN, high=LARGEST_RETURN)


class Violation(NamedTuple):
    """A rule that some rows of an array break."""

    rule: str
    text: str
    rows: NDArray[np.bool_]


def check_names(received: Mapping[str, Any], expected: Mapping[str, ArrayRule]) -> None:
    """Refuse a reply with a missing or an additional array."""
    missing = sorted(name for name, rule in expected.items() if name not in received and not rule.optional)
    extra = sorted(received.keys() - expected.keys())
    if missing or extra:
        raise BadReplyError("names", f"lacks {missing[:3]} and brings {extra[:3]}")


def check_array(name: str, array: np.ndarray, rule: ArrayRule) -> None:
    """Refuse an array that is not as expected."""
    for violation in violations(array[None], rule):
        raise BadReplyError(violation.rule, violation.text, name)


def violations(rows: np.ndarray, rule: ArrayRule) -> Iterator[Violation]:
    """Rules that an array breaks, where every client sent one row of it."""
    everybody = np.ones(len(rows), bool)
    if rows.dtype != rule.dtype:
        yield Violation("type", f"is of type {rows.dtype.str!r}, not {np.dtype(rule.dtype).str!r}", everybody)
        return
    if not fits(rows.shape[1:], rule.shape):
        yield Violation("shape", f"has the shape {rows.shape[1:]}, not {rule.shape}", everybody)
        return
    if not rule.finite:
        return
    own_axes = tuple(range(1, rows.ndim))
    finite = np.asarray(np.isfinite(rows).all(axis=own_axes))
    if not finite.all():
        yield Violation("finite", "holds a number that is not finite", ~finite)
    if rule.low > -math.inf or rule.high < math.inf:
        inside = np.asarray(((rows >= rule.low) & (rows <= rule.high)).all(axis=own_axes))
        if not (inside | ~finite).all():
            yield Violation("range", f"holds a number outside [{rule.low:g}, {rule.high:g}]", finite & ~inside)


def fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a shape equals the wanted shape, in which None stands for any length."""
    return len(shape) == len(wanted) and all(
        n >= 0 and want in (None, n) for n, want in zip(shape, wanted, strict=True)
    )
