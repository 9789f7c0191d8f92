"""FedCM: the previous global change is part of every local step (Xu et al., 2021)."""

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.steering import steering
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import Params
from fedpohcs.server.optimisers.base import Proposal, ServerOptimiser, optimised_arrays, optimised_parts
from fedpohcs.server.parts import scaled_change

Velocity = dict[str, np.ndarray]
"""The mean change of the previous round, by place."""


def fedcm(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedCM: every local step is alpha of the client's own plus (1 - alpha) of the last change (Xu et al., 2021).

    With alpha = 1 it is FedAvg.
    """
    rate = 1.0 if settings.learning_rate is None else settings.learning_rate

    def init(params: Params) -> Velocity:
        return {place: np.zeros_like(x) for place, x in optimised_arrays(params, settings.parts).items()}

    def apply(state: Velocity, previous: Params, proposal: Proposal) -> tuple[Params, Velocity]:
        old, new = named_arrays(previous), named_arrays(proposal.params)
        velocity = {place: new[place] - old[place] for place in state}
        return scaled_change(previous, proposal.params, rate, optimised_parts(previous, settings.parts)), velocity

    def sends(state: Velocity) -> dict[str, np.ndarray]:
        rest = np.float32(1 - settings.alpha)
        return steering({place: rest * change for place, change in state.items()}, settings.alpha)

    return ServerOptimiser(init, apply, sends)
