"""No optimiser: the aggregated policy is the new policy, as in FedAvg (McMahan et al., 2017)."""

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.server.optimisers.base import ServerOptimiser

IDENTITY = ServerOptimiser(
    init=lambda params: (), apply=lambda state, previous, proposal: (proposal.params, state), name="identity"
)


def identity(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """The aggregated policy itself (McMahan et al., 2017)."""
    del settings
    return IDENTITY
