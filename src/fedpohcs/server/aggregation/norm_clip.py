"""The mean of updates whose norms are bounded."""

from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates, by_part
from fedpohcs.server.aggregation.robust import clipped_changes


def norm_clip(updates: SoundUpdates) -> Combination:
    """Robust: the mean, after changes longer than `change_limit` times the median change are scaled down to that."""
    return by_part(updates, lambda rows, start: clipped_changes(rows, start, updates.settings.change_limit))


NORM_CLIP = Aggregator(norm_clip, lambda byzantine: 2 * byzantine + 1)
