"""Sixteen kinds of replies that a server will meet one day. Also fed to Flower's own FedAvg by a benchmark."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Reply(NamedTuple):
    """What one of the selected clients sends back after training."""

    client: int
    arrays: dict[str, np.ndarray]
    weight: Any  # steps, or examples, that it trained on
    more: Mapping[str, float] = {}  # numbers that nobody asked for
    error: bool = False


Kind = Callable[[list[Reply], int], list[Reply]]
"""Takes sound replies and a position among them; gives what arrives."""


class Case(NamedTuple):
    """A kind, the rule that it breaks, and how many of the replies are sound."""

    spoil: Kind
    rule: str  # of `BadReply`; empty: nothing arrives that could break one
    array: str = ""  # "first", "weight", or none in particular
    num_lost: int | None = 1  # None: all


def sound_replies(template: dict[str, np.ndarray], count: int, seed: int) -> list[Reply]:
    """Updates near `template`, of different weight."""
    generator = np.random.default_rng(seed)

    def near(array: np.ndarray) -> np.ndarray:
        return np.asarray(array + generator.normal(size=array.shape), array.dtype)

    return [Reply(n, {name: near(array) for name, array in template.items()}, 100 + n) for n in range(count)]


def only(change: Callable[[Reply], Reply]) -> Kind:
    return lambda replies, position: [change(one) if n == position else one for n, one in enumerate(replies)]


def everyone(change: Callable[[Reply], Reply]) -> Kind:
    return lambda replies, position: [change(one) for one in replies]


def first_array(change: Callable[[np.ndarray], np.ndarray | None]) -> Kind:
    def changed(reply: Reply) -> Reply:
        name = next(iter(reply.arrays))
        arrays = reply.arrays | {name: change(reply.arrays[name])}
        return reply._replace(arrays={key: array for key, array in arrays.items() if array is not None})

    return only(changed)


def weight(value: Any) -> Kind:
    return only(lambda reply: reply._replace(weight=value))


KINDS = {
    "weights that are not a number": Case(first_array(lambda x: np.full_like(x, np.nan)), "finite", "first"),
    "infinite weights": Case(first_array(lambda x: np.full_like(x, np.inf)), "finite", "first"),
    "a shape that would broadcast": Case(first_array(lambda x: x[:1]), "shape", "first"),
    "a shape that would not": Case(first_array(lambda x: np.zeros((len(x) + 1, 7), x.dtype)), "shape", "first"),
    "whole numbers for fractions": Case(first_array(lambda x: x.astype(np.int64)), "type", "first"),
    "half precision": Case(first_array(lambda x: x.astype(np.float16)), "type", "first"),
    "an array is missing": Case(first_array(lambda x: None), "names"),
    "a number too much": Case(only(lambda reply: reply._replace(more={"extra": 1.0})), "names"),
    "a negative weight": Case(weight(-50), "range", "weight"),
    "a weight that is not a number": Case(weight(float("nan")), "type", "weight"),
    "an absurd weight": Case(weight(10**18), "range", "weight"),
    "all weights are zero": Case(everyone(lambda reply: reply._replace(weight=0)), "range", "weight", None),
    "a client that replies twice": Case(lambda replies, position: [*replies, replies[position]], "twice", "", 0),
    "a client that failed": Case(only(lambda reply: reply._replace(error=True)), "error"),
    "all clients failed": Case(everyone(lambda reply: reply._replace(error=True)), "error", "", None),
    "no replies": Case(lambda replies, position: [], "", "", None),
}
