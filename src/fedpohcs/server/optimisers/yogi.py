"""FedYogi: as FedAdam, with a second moment that changes more slowly (Reddi et al., 2021)."""

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.server.optimisers.adam import adaptive
from fedpohcs.server.optimisers.base import ServerOptimiser


def yogi(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """FedYogi: as adam, but the second moment moves by at most a share of the squared change (Reddi et al., 2021)."""
    return adaptive(settings, lambda v, square: v - (1 - settings.beta2) * square * np.sign(v - square))
