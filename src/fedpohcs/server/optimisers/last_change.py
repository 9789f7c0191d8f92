"""The mean change is the step, and clients get it in the next round, as FedSVRPG-M and FedNPG-ADMM need it."""

from collections.abc import Callable

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.steering import CHANGE
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import Extra, Params
from fedpohcs.server.optimisers.base import Proposal, ServerOptimiser, optimised_arrays, optimised_parts
from fedpohcs.server.parts import scaled_change

Change = dict[str, np.ndarray]
"""The mean change of the previous round, by place; 0 before the first."""


def last_change(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """The mean change times the learning rate; clients get the last mean change with the policy.

    The direction u of FedSVRPG-M (Wang et al., 2024) and y of FedNPG-ADMM (Lan et al., 2023).
    """
    return that_remembers_change(settings, lambda state: {CHANGE + place: change for place, change in state.items()})


def that_remembers_change(settings: ServerOptimiserConfig, sends: Callable[[Change], Extra]) -> ServerOptimiser:
    """A server optimiser whose step is the mean change, which it remembers; `sends` says what clients get of it."""
    rate = 1.0 if settings.learning_rate is None else settings.learning_rate

    def init(params: Params) -> Change:
        return {place: np.zeros_like(x) for place, x in optimised_arrays(params, settings.parts).items()}

    def apply(state: Change, previous: Params, proposal: Proposal) -> tuple[Params, Change]:
        old, new = named_arrays(previous), named_arrays(proposal.params)
        change = {place: new[place] - old[place] for place in state}
        return scaled_change(previous, proposal.params, rate, optimised_parts(previous, settings.parts)), change

    return ServerOptimiser(init, apply, sends)
