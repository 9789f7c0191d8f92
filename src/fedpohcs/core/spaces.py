"""Action spaces."""

from typing import NamedTuple


class ContinuousActions(NamedTuple):
    """A box of `size` numbers. Policies may exceed the box; environments clip."""

    size: int
    low: float
    high: float


class DiscreteActions(NamedTuple):
    """One of `num_choices` choices."""

    num_choices: int
