"""Phocas: the mean of the values nearest to the trimmed mean (Xie et al., 2018)."""

from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates, by_part
from fedpohcs.server.aggregation.robust import nearest_to_centre


def phocas(updates: SoundUpdates) -> Combination:
    """Robust: the mean of every single weight without the values farthest from its trimmed mean (Xie et al., 2018)."""
    return by_part(updates, lambda rows, start: nearest_to_centre(rows, updates.settings.tolerated_liars))


PHOCAS = Aggregator(phocas, lambda byzantine: 2 * byzantine + 1)
