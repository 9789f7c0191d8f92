"""Drawing clients with unequal probabilities, so that who is drawn more often counts less."""

from typing import NamedTuple

import numpy as np

from fedpohcs.core.types import Vector


class Drawn(NamedTuple):
    """The positions that were drawn, with the probability and the weight of each."""

    place: np.ndarray
    probability: Vector
    weight: Vector


def draw_in_proportion(size: Vector, number: int, generator: np.random.Generator) -> Drawn:
    """So many positions, drawn in proportion to `size`; weights are size over probability (Horvitz and Thompson, 1952).

    Weights are all the same, except of positions so large that they are always drawn.
    """
    probability = inclusion_probabilities(size, number)
    place = draw(probability, generator)
    return Drawn(place, probability[place], size[place] / probability[place])


def inclusion_probabilities(size: Vector, number: int) -> Vector:
    """Probabilities in proportion to `size`, at most 1 each, that sum to `number` (or to the clients there are).

    Clients of size 0 get what the others cannot take: equal shares.

    Example:
        >>> inclusion_probabilities(np.array([1.0, 1.0, 2.0, 12.0]), 2).tolist()
        [0.25, 0.25, 0.5, 1.0]
    """
    size = np.where(np.isfinite(size) & (size > 0), size, 0.0)
    number = min(number, len(size))
    probability = np.zeros(len(size))
    open_ = size > 0
    while open_.any():
        left = number - probability.sum()
        share = size * open_ * (left / (size * open_).sum())
        full = open_ & (share >= 1)
        if not full.any():
            probability += share
            break
        probability[full] = 1.0
        open_ &= ~full
    left, empty = number - probability.sum(), size == 0
    if left > 1e-12 and empty.any():
        probability[empty] = left / empty.sum()
    return np.minimum(probability, 1.0)


def draw(probability: Vector, generator: np.random.Generator) -> np.ndarray:
    """Positions drawn with these inclusion probabilities, ascending: systematic sampling in a random order.

    If they sum to a whole number, exactly so many are drawn (Madow, 1949; the order by Hartley and Rao, 1962).
    """
    order = generator.permutation(len(probability))
    reached = np.cumsum(probability[order])
    number = round(float(probability.sum()))
    reached *= number / max(reached[-1], 1e-300)  # without the rounding of the sum, which could drop the last one
    ticks = generator.random() + np.arange(number)
    return np.sort(order[np.searchsorted(reached, ticks, side="right").clip(max=len(order) - 1)])


def draw_up_to(probability: Vector, generator: np.random.Generator) -> np.ndarray:
    """Positions drawn with these inclusion probabilities, whose sum need not be whole: as many, rounded up or down."""
    total = float(probability.sum())
    if abs(total - round(total)) < 1e-9:
        return draw(probability, generator)
    nobody = np.ceil(total) - total  # a position for nobody makes the sum whole
    drawn = draw(np.append(probability, nobody), generator)
    return drawn[drawn < len(probability)]
