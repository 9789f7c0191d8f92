"""A server optimiser of your own: FedAdagrad, whose steps shrink where the policy has already changed much."""

import sys
from collections.abc import Sequence

import numpy as np

from fedpohcs.cli import main as fedpohcs
from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.registries import OPTIMISERS
from fedpohcs.server.optimisers import Change, ServerOptimiser, by_part

LEARNING_RATE = 0.1
Vectors = dict[str, np.ndarray]


def adagrad(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedAdagrad: steps divided by the root of the sum of squared changes (Reddi et al., 2021)."""
    rate = LEARNING_RATE if settings.learning_rate is None else settings.learning_rate

    def init(size: int) -> Vectors:
        return {"sum": np.full(size, settings.epsilon**2)}

    def step(state: Vectors, change: Change) -> tuple[np.ndarray, Vectors]:
        total = state["sum"] + change.mean**2
        return rate * change.mean / (np.sqrt(total) + settings.epsilon), {"sum": total}

    return by_part(settings, init, step)


OPTIMISERS["adagrad"] = adagrad


def main(more: Sequence[str] = ("--rounds", "20", "--out", "runs/own-optimiser")) -> int:
    """Train with it on the small world. Every command accepts it, as it does the built-in ones."""
    return fedpohcs(["train", "tabular", "--federation.server-optimiser", "adagrad", *more])


if __name__ == "__main__":
    sys.exit(main())
