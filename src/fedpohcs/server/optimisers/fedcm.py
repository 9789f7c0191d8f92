"""FedCM: the previous global change is part of every local step (Xu et al., 2021)."""

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.steering import steering
from fedpohcs.core.types import Extra
from fedpohcs.server.optimisers.base import ServerOptimiser
from fedpohcs.server.optimisers.last_change import Change, that_remembers_change


def fedcm(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedCM: every local step is alpha of the client's own plus (1 - alpha) of the last change (Xu et al., 2021).

    With alpha = 1 it is FedAvg.
    """

    def sends(state: Change) -> Extra:
        rest = np.float32(1 - settings.alpha)
        return steering({place: rest * change for place, change in state.items()}, settings.alpha)

    return that_remembers_change(settings, sends)
