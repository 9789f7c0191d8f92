"""AFedPG (Lan et al., 2025): normalised steps along a running mean of gradients, and clients that look ahead.

The k-th gradient g to arrive was asked for d updates ago. With a = alpha(k - d), so that an old gradient counts as it
would have counted when it was asked for,

    u <- (1 - a) u + a g,     theta' = theta + eta(k) u / ||u||,

and clients get theta' + (1 - alpha(k + 1)) / alpha(k + 1) (theta' - theta), the policy ahead, at which a gradient makes
up for the older ones in u. alpha and eta fall as in N-PG-IGT (Fatkhullin et al., 2023), to which it reduces if no
update is ever late: alpha(k) = (2 / (k + 2))^0.8, eta(k) = 2 eta / (k + 2).
"""

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.types import Params
from fedpohcs.server.optimisers.base import Proposal, ServerOptimiser, Vectors, optimised_parts
from fedpohcs.server.parts import from_parts, from_vector, parts_of, vector_of

LEARNING_RATE = 1.0


def afedpg(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """AFedPG: steps of given length along a mean of gradients, taken where clients look ahead (Lan et al., 2025).

    A gradient that arrives late counts as in the round in which it was asked for.
    """
    rate = LEARNING_RATE if settings.learning_rate is None else settings.learning_rate

    def init(params: Params) -> dict[str, Vectors]:
        parts = parts_of(params)
        sizes = {name: len(vector_of(parts[name])) for name in optimised_parts(params, settings.parts)}
        return {
            name: {"direction": np.zeros(n), "ahead": np.zeros(n), "steps": np.zeros(())} for name, n in sizes.items()
        }

    def start(state: dict[str, Vectors], params: Params) -> Params:
        return moved(params, {name: vectors["ahead"] for name, vectors in state.items()})

    def apply(state: dict[str, Vectors], previous: Params, proposal: Proposal) -> tuple[Params, dict[str, Vectors]]:
        origin, reached = parts_of(start(state, previous)), parts_of(proposal.params)
        steps, states = {}, {}
        for name, old in state.items():
            k = int(old["steps"])
            gradient = vector_of(reached[name]) - vector_of(origin[name])
            share = gradient_share(settings, max(k - proposal.delay, 0))
            direction = (1 - share) * old["direction"] + share * gradient
            length = float(np.linalg.norm(direction))
            steps[name] = rate * falling(k, settings.step_decay) * direction / (length or 1.0)
            following = gradient_share(settings, k + 1)
            ahead = (1 - following) / following * steps[name]
            states[name] = {"direction": direction, "ahead": ahead, "steps": old["steps"] + 1}
        kept = {name: parts_of(previous)[name] for name in state}
        return moved(from_parts({**reached, **kept}, proposal.params), steps), states

    return ServerOptimiser(init, apply, start=start)


def falling(k: int, exponent: float) -> float:
    """1 at k = 0, and less and less.

    Example:
        >>> [falling(k, 1.0) for k in (0, 2, 6)]
        [1.0, 0.5, 0.25]
    """
    return (2 / (k + 2)) ** exponent


def gradient_share(settings: ServerOptimiserConfig, k: int) -> float:
    """alpha(k): how much the gradient of step k counts in the direction."""
    return falling(k, settings.gradient_decay)


def moved(params: Params, steps: Vectors) -> Params:
    """The parameters with these steps added to their parts; a part whose step is 0 everywhere stays as it is."""
    parts = parts_of(params)
    going = {name: step for name, step in steps.items() if step.any()}
    changed = {name: from_vector(vector_of(parts[name]) + step, parts[name]) for name, step in going.items()}
    return from_parts({**parts, **changed}, params)
