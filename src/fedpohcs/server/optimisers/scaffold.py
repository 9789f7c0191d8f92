"""SCAFFOLD: control variates that take the drift of single clients out of their local steps (Karimireddy et al., 2020).

In units of the change of a round, so that neither learning rates nor numbers of minibatches occur: u_n is how a client
changed the policy by itself when it last trained, u the mean of the u_n of all clients. In every local iteration a
client adds (u - u_n) / I to its own step. This is the published rule with u = -I eta c (option II) wherever a local
iteration is one gradient step with a constant learning rate eta.
"""

from typing import Any

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.steering import steering
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import Params
from fedpohcs.server.optimisers.base import Proposal, ServerOptimiser, optimised_arrays, optimised_parts
from fedpohcs.server.parts import scaled_change

Control = dict[str, np.ndarray]
"""u by place. Clients keep their own u_n; that of the server follows from their updates."""


def scaffold(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """SCAFFOLD: local steps less the client's own drift, plus that of all clients (Karimireddy et al., 2020).

    u <- u + sum over the K that trained of (Delta_n - u) / N, theta <- theta + learning_rate times the mean change.
    """
    rate = 1.0 if settings.learning_rate is None else settings.learning_rate

    def init(params: Params) -> Control:
        return {place: np.zeros_like(x) for place, x in optimised_arrays(params, settings.parts).items()}

    def apply(state: Control, previous: Params, proposal: Proposal) -> tuple[Params, Any]:
        old, rows, n = named_arrays(previous), named_arrays(proposal.updates), max(len(proposal.returns), 1)
        share = len(proposal.weight) / n
        control = {
            place: ((1 - share) * u + (rows[place].astype(float) - old[place]).sum(axis=0) / n).astype(u.dtype)
            for place, u in state.items()
        }
        parts = optimised_parts(previous, settings.parts)
        return scaled_change(previous, proposal.params, rate, parts), control

    return ServerOptimiser(init, apply, sends=steering, controls=True)
