"""The interface of server optimisers, and a helper for rules that treat each part of the parameters as one vector."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.errors import require
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import NO_EXTRA, ClientIds, ClientUpdates, Extra, Params, Vector
from fedpohcs.server.parts import from_parts, from_vector, parts_of, rows_of, vector_of, weight_parts

NOBODY = np.arange(0)
Simulate = Callable[[Params, ClientIds, Extra, int], ClientUpdates]
"""(parameters, clients, arrays sent, attempt from 1) to what training in the worlds of these clients gives."""


class Proposal(NamedTuple):
    """The policy that aggregation proposes, and the sound updates behind it."""

    params: Params
    updates: Params  # every leaf has a leading axis K
    weight: Vector  # [K], summing to one
    client: ClientIds = NOBODY  # [K] who sent the updates, ascending
    returns: Vector = np.zeros(0)  # [N] of every client under the previous policy, as last evaluated; NaN: never
    sent: Extra = NO_EXTRA  # arrays that went to the clients with the policy
    generator: np.random.Generator | None = None  # of this round, for draws of the optimiser
    simulate: Simulate | None = None  # lets the server train in the worlds of clients itself
    delay: int = 0  # rounds since the update of an asynchronous round began


class ServerOptimiser(NamedTuple):
    """How the server gets from the previous policy and a proposal to the new policy.

    The state holds dicts, tuples and arrays, so that every checkpoint can store it. `apply` is called in every round
    with at least one sound update, and returns new values without changing those it gets.
    """

    init: Callable[[Params], Any]
    apply: Callable[[Any, Params, Proposal], tuple[Params, Any]]  # (state, previous, proposal) -> (params, state)
    sends: Callable[[Any], Mapping[str, Any]] = lambda state: {}  # arrays that clients get along with the policy
    controls: bool = False  # clients keep a control variate; see `core.steering`
    draws: Callable[[np.random.Generator], Mapping[str, Any]] = lambda generator: {}  # sent too, drawn in every round
    simulates: bool = False  # `apply` calls `Proposal.simulate`, which costs real clients a message each
    start: Callable[[Any, Params], Params] = lambda state, params: params
    """(state, global parameters) to those from which clients train; updates are then changes of these."""
    name: str = ""  # under which it is registered; `make_optimiser` fills it in


class Change(NamedTuple):
    """How a round would change one part of the parameters."""

    mean: Vector  # [P] what aggregation proposes, minus the previous numbers
    updates: Vector  # [K, P] the same for each update
    weight: Vector  # [K], summing to one
    client: ClientIds = NOBODY  # [K] who sent the updates, ascending
    returns: Vector = np.zeros(0)  # [N] of every client under the previous policy, as last evaluated; NaN: never


Vectors = dict[str, Vector]
Rule = Callable[[Vectors, Change], tuple[Vector, Vectors]]
"""From the state of a part and its change to the step [P] of that part and the new state."""


def by_part(settings: ServerOptimiserConfig, init: Callable[[int], Vectors], rule: Rule) -> ServerOptimiser:
    """An optimiser that follows one rule for every part. Controls keep the value that aggregation proposes.

    Args:
        settings: says which parts are optimised.
        init: the state of a part with so many numbers.
        rule: one step of a part.
    """

    def start(params: Params) -> dict[str, Vectors]:
        parts = parts_of(params)
        return {name: init(len(vector_of(parts[name]))) for name in optimised_parts(params, settings.parts)}

    def apply(state: dict[str, Vectors], previous: Params, proposal: Proposal) -> tuple[Params, dict[str, Vectors]]:
        old, new, updates = parts_of(previous), parts_of(proposal.params), parts_of(proposal.updates)
        states = {}
        for name, vectors in state.items():
            origin, proposed = vector_of(old[name]), vector_of(new[name])
            rows = rows_of(updates[name]) - origin
            change = Change(proposed - origin, rows, proposal.weight, proposal.client, proposal.returns)
            step, states[name] = rule(vectors, change)
            # In this order of operations, a step that equals the mean change gives exactly the proposal.
            new[name] = from_vector(proposed + (step - change.mean), new[name])
        return from_parts(new, proposal.params), states

    return ServerOptimiser(start, apply)


def optimised_parts(params: Params, wanted: tuple[str, ...] | None) -> list[str]:
    """The names of the parts that a server optimiser changes: those that are wanted, or all but controls."""
    possible = weight_parts(params)
    rule = f"must name some of the parts {', '.join(possible)}"
    require(wanted is None or set(wanted) <= set(possible), "server_optimiser.parts", wanted, rule)
    return [name for name in possible if wanted is None or name in wanted]


def optimised_arrays(params: Params, wanted: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """The arrays of the parts that a server optimiser changes, by place."""
    parts = parts_of(params)
    return named_arrays({name: parts[name] for name in optimised_parts(params, wanted)})
