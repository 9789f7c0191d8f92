"""What actions look like."""

from typing import NamedTuple


class ContinuousActions(NamedTuple):
    """A box of `size` numbers; policies may exceed it, environments clip."""

    size: int
    low: float
    high: float


class DiscreteActions(NamedTuple):
    """One of so many choices."""

    num_choices: int
