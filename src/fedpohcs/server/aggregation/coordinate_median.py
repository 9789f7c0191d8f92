"""The coordinate-wise median (Yin et al., 2018)."""

from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates, by_part
from fedpohcs.server.aggregation.robust import without_extremes


def coordinate_median(updates: SoundUpdates) -> Combination:
    """Robust: the median of every single weight (Yin et al., 2018)."""
    return by_part(updates, lambda rows, start: without_extremes(rows, (len(rows) - 1) // 2))


COORDINATE_MEDIAN = Aggregator(coordinate_median, lambda byzantine: 2 * byzantine + 1)
