"""An aggregator of your own: the geometric median, which a minority of Byzantine clients cannot move far."""

import sys
from collections.abc import Sequence

import numpy as np

from fedpohcs.cli import main as fedpohcs
from fedpohcs.core.registries import AGGREGATORS
from fedpohcs.server.aggregation import Aggregator, Combination, SoundUpdates, by_part

NUM_STEPS = 50  # of Weiszfeld's iteration
SMALLEST_DISTANCE = 1e-8


def geometric_median(updates: SoundUpdates) -> Combination:
    """Robust: the point with the least sum of distances to all updates (Pillutla et al., 2022)."""
    return by_part(updates, lambda rows, start: nearest_to_all(rows))


def nearest_to_all(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The geometric median [P] of rows [K, P], and how much of each row is in it, relative to the nearest one."""
    centre = rows.mean(axis=0)
    share = np.ones(len(rows))
    for _ in range(NUM_STEPS):
        distance = np.maximum(np.linalg.norm(rows - centre, axis=1), SMALLEST_DISTANCE)
        share = distance.min() / distance
        centre = share @ rows / share.sum()
    return centre, share


AGGREGATORS["geometric-median"] = Aggregator(geometric_median, lambda byzantine: 2 * byzantine + 1)


def main(more: Sequence[str] = ("--rounds", "20", "--out", "runs/own-aggregator")) -> int:
    """Train with it while one selected client per round is Byzantine and flips the sign of its change."""
    attack = ["--attack.kind", "flipped-update", "--attack.clients", "one-selected"]
    return fedpohcs(["train", "tabular", "--federation.aggregator", "geometric-median", *attack, *more])


if __name__ == "__main__":
    sys.exit(main())
