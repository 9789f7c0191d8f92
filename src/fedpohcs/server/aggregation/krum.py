"""Krum and Multi-Krum: the updates closest to their neighbours (Blanchard et al., 2017)."""

from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates, by_part
from fedpohcs.server.aggregation.robust import most_central


def krum(updates: SoundUpdates) -> Combination:
    """Robust: the one update that is closest to its nearest neighbours (Blanchard et al., 2017)."""
    return by_part(updates, lambda rows, start: most_central(rows, updates.settings.tolerated_liars, 1))


def multi_krum(updates: SoundUpdates) -> Combination:
    """Robust: the mean of all updates but the `tolerated_liars` that are farthest from their nearest neighbours."""
    byzantine = updates.settings.tolerated_liars
    return by_part(updates, lambda rows, start: most_central(rows, byzantine, len(rows) - byzantine))


KRUM = Aggregator(krum, lambda byzantine: 2 * byzantine + 3)
MULTI_KRUM = Aggregator(multi_krum, lambda byzantine: 2 * byzantine + 3)
