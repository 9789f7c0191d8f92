"""The Byzantine filter of FedPG-BR: the mean of the updates near the most central one (Fan et al., 2021, Alg. 1.1).

It assumes that honest gradients differ by noise alone, whose size sigma is known. With heterogeneous clients it removes
honest ones that differ; docs/claims.md has what that costs.
"""

import math

import numpy as np

from fedpohcs.core.steering import EPISODES
from fedpohcs.core.types import Vector
from fedpohcs.server.aggregation.base import Aggregator, Combination, SoundUpdates, by_part
from fedpohcs.server.aggregation.robust import Merged, Rows


def fedpg_filter(updates: SoundUpdates) -> Combination:
    """Robust: the mean of the changes near the most central one, by FedPG-BR's thresholds (Fan et al., 2021).

    T = 2 sigma sqrt(2 ln(2K/delta) / B) with B the episodes behind a gradient. If that leaves fewer than K - f changes,
    T = 2 sigma. If none is central even then, the policy stays as it was.
    """
    settings = updates.settings
    episodes = int(updates.sent.get(EPISODES, settings.filter_episodes))
    return by_part(
        updates,
        lambda rows, start: near_the_centre(
            rows, start, settings.filter_sigma, settings.filter_delta, episodes, settings.tolerated_liars
        ),
    )


def near_the_centre(rows: Rows, start: Vector, sigma: float, delta: float, episodes: int, byzantine: int) -> Merged:
    """The mean of the good rows, and which are good; the start if none is.

    Example:
        >>> rows = np.array([[1.0], [1.2], [1.1], [9.0]])
        >>> merged, good = near_the_centre(rows, np.zeros(1), sigma=0.1, delta=0.6, episodes=16, byzantine=1)
        >>> merged.round(2).tolist(), good.tolist()
        ([1.1], [1.0, 1.0, 1.0, 0.0])
    """
    count = len(rows)
    variance = 2 * math.log(2 * count / delta)
    distance = np.sqrt(np.array([((rows - row) ** 2).sum(axis=1) for row in rows]))
    good = good_rows(rows, distance, 2 * sigma * math.sqrt(variance / episodes))
    if good.sum() < count - byzantine:
        good = good_rows(rows, distance, 2 * sigma)
    merged = start + (rows[good] - start).mean(axis=0) if good.any() else start
    return merged, good.astype(float)


def good_rows(rows: Rows, distance: Vector, threshold: float) -> np.ndarray:
    """Rows within the threshold of the central one: the row nearest to the mean of those that most rows are near to."""
    near = distance <= threshold
    central = near.sum(axis=1) > len(rows) / 2
    if not central.any():
        return np.zeros(len(rows), bool)
    away = ((rows - rows[central].mean(axis=0)) ** 2).sum(axis=1)
    centre = int(np.argmin(np.where(central, away, np.inf)))
    return near[centre]


FEDPG_FILTER = Aggregator(fedpg_filter, lambda byzantine: 2 * byzantine + 1)
