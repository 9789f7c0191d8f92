"""How a server optimiser steers local training, whatever the learner: names of the arrays it sends, and the rule.

After every local iteration a client moves on to

    theta + share (theta' - theta) + (drift - control) / I

instead of theta', the weights that its learner has reached from theta; I is the number of local iterations of a round.
The server sends `share` and `drift`, which is in units of the change of a whole round. `control` is the client's own
control variate, if the optimiser lets clients keep one. Weights without a drift are left to the learner.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpohcs.core.trees import by_place, with_places
from fedpohcs.core.types import Extra, Params

SHARE, DRIFT = "steering/share", "steering/drift/"
BYZANTINE = "byzantine"
"""Which clients of a simulation spoil the episodes that they learn from, [N]; see `learners.client.Poison`."""
EPISODES = "policy-gradient/episodes"
"""Episodes of a local iteration that count, of a learner that follows the gradient of whole episodes."""
CHANGE = "last-change/"
"""The mean change of the previous round by place, which clients read but are not steered by."""
ANCHORED, ANCHOR = "policy-gradient/anchored", "policy-gradient/anchor/"
"""Factor of the gradient at other weights that such a learner subtracts, and these weights by place."""


def steering(drift: Mapping[str, Any], share: float = 1.0) -> dict[str, Any]:
    """What a server optimiser sends: the drift by place, and the share of a client's own steps."""
    return {SHARE: np.float32(share), **{DRIFT + place: array for place, array in drift.items()}}


def is_steered(extra: Extra) -> bool:
    """Whether a server optimiser steers with these arrays."""
    return SHARE in extra


def drift_of(extra: Extra) -> dict[str, Any]:
    """The drift by place."""
    return {name.removeprefix(DRIFT): array for name, array in extra.items() if name.startswith(DRIFT)}


def steered(extra: Extra, start: Params, learned: Params, control: Mapping[str, Any] | None, iterations: int) -> Params:
    """The weights after a local iteration from `start` in which the learner got to `learned`. NumPy or JAX.

    A share of 1 without a drift gives exactly what was learned.
    """
    before, after, changed = by_place(start), by_place(learned), {}
    for place, drift in drift_of(extra).items():
        pull = drift if control is None else drift - control[place]
        own = after[place] - before[place]
        changed[place] = after[place] + (extra[SHARE] - 1) * own + pull / iterations
    return with_places(learned, changed)


def next_control(extra: Extra, start: Params, trained: Params, control: Mapping[str, Any]) -> dict[str, Any]:
    """The control variate after a round: what the client would have changed without being steered.

    The leading axes of `trained` and `control` are clients.
    """
    before, after, new = by_place(start), by_place(trained), dict(control)
    for place, drift in drift_of(extra).items():
        new[place] = (control[place] - drift) + (after[place] - before[place])
    return new
