"""The coordinate-wise trimmed mean (Yin et al., 2018)."""

from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates, by_part
from fedpohcs.server.aggregation.robust import without_extremes


def trimmed_mean(updates: SoundUpdates) -> Combination:
    """Robust: the mean of every single weight without its lowest and highest `tolerated_liars` (Yin et al., 2018)."""
    return by_part(updates, lambda rows, start: without_extremes(rows, updates.settings.tolerated_liars))


TRIMMED_MEAN = Aggregator(trimmed_mean, lambda byzantine: 2 * byzantine + 1)
