"""Server steps that become shorter from round to round, of any server optimiser."""

from typing import Any

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.types import Params
from fedpohcs.server.optimisers.base import Proposal, ServerOptimiser, optimised_parts
from fedpohcs.server.parts import scaled_change

State = dict[str, Any]


def decaying(optimiser: ServerOptimiser, settings: ServerOptimiserConfig) -> ServerOptimiser:
    """The optimiser with its t-th step multiplied by learning_rate_decay^t; the first step is t = 0."""

    def init(params: Params) -> State:
        return {"steps": np.array(0), "within": optimiser.init(params)}

    def apply(state: State, previous: Params, proposal: Proposal) -> tuple[Params, State]:
        params, within = optimiser.apply(state["within"], previous, proposal)
        factor = settings.learning_rate_decay ** int(state["steps"])
        params = scaled_change(previous, params, factor, optimised_parts(params, settings.parts))
        return params, {"steps": state["steps"] + 1, "within": within}

    def start(state: State, params: Params) -> Params:
        return optimiser.start(state["within"], params)

    return optimiser._replace(init=init, apply=apply, sends=lambda state: optimiser.sends(state["within"]), start=start)
