"""Checks of the values that server optimisers return. Optimisers may be written by users; errors name them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.registries import OPTIMISERS
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import NO_EXTRA, Extra, Params, Vector
from fedpohcs.server.aggregation import Aggregation
from fedpohcs.server.factories import kind_of, make_registered, refuse
from fedpohcs.server.optimisers.base import Proposal, ServerOptimiser, Simulate
from fedpohcs.server.optimisers.decay import decaying


def make_optimiser(name: str, settings: ServerOptimiserConfig) -> ServerOptimiser:
    """The server optimiser that is registered under this name, with these settings."""
    made = make_registered(OPTIMISERS, name, ServerOptimiser, settings)._replace(name=name)
    return made if settings.learning_rate_decay == 1 else decaying(made, settings)


def arrays_to_send(optimiser: ServerOptimiser, state: Any, generator: np.random.Generator) -> Mapping[str, Any]:
    """Arrays that the optimiser sends to the clients with the policy: of its state, and drawn for this round."""
    sent, drawn = optimiser.sends(state), optimiser.draws(generator)
    for some in (sent, drawn):
        if not isinstance(some, Mapping):
            refuse(_author(optimiser), f"sends {kind_of(some)}", "It must send a dict of arrays by name.")
    return {**sent, **drawn}


def start_of(optimiser: ServerOptimiser, state: Any, params: Params) -> Params:
    """The parameters from which clients train."""
    start = optimiser.start(state, params)
    return params if start is params else sound_params(_author(optimiser), start, params)


def optimise(
    optimiser: ServerOptimiser,
    state: Any,
    previous: Params,
    aggregation: Aggregation,
    returns: Vector,
    sent: Extra = NO_EXTRA,
    generator: np.random.Generator | None = None,
    simulate: Simulate | None = None,
    delay: int = 0,
) -> tuple[Params, Any]:
    """The new global parameters and the new state. Without a sound update both stay as they were."""
    if aggregation.sound is None:
        return previous, state
    proposed = sound_params(f"aggregator {aggregation.sound.settings.aggregator!r}", aggregation.params, previous)
    sound = aggregation.sound
    proposal = Proposal(proposed, sound.params, sound.weight, sound.client, returns, sent, generator, simulate, delay)
    with np.errstate(all="ignore"):  # a number that is not finite is refused below
        answer = optimiser.apply(state, previous, proposal)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        refuse(_author(optimiser), f"returned {kind_of(answer)}", "It must return parameters and the new state.")
    # One that returns what it got needs no second check.
    return answer[0] if answer[0] is proposed else sound_params(_author(optimiser), answer[0], previous), answer[1]


def sound_params(author: str, params: Params, previous: Params) -> Params:
    """Parameters with the structure, shapes and types of the previous ones; others are refused."""
    import jax

    structure = jax.tree.structure(previous)
    if jax.tree.structure(params) != structure:
        text = f"returned parameters with the structure {jax.tree.structure(params)}, not {structure}"
        refuse(author, text, "Keep the structure of the parameters.")
    found, wanted = named_arrays(params), named_arrays(previous)
    for name, old in wanted.items():
        _check_array(author, name, found[name], old)
    if all(found[name].dtype == old.dtype for name, old in wanted.items()):
        return params
    return jax.tree.unflatten(structure, [found[name].astype(old.dtype) for name, old in wanted.items()])


def _check_array(author: str, name: str, new: np.ndarray, old: np.ndarray) -> None:
    if new.shape != old.shape:
        refuse(author, f"returned {name} of shape {new.shape}, not {old.shape}", "Keep the shapes of the parameters.")
    if new.dtype.kind not in "fiub":
        refuse(author, f"returned {name} of type {new.dtype}", "Parameters are real numbers.")
    with np.errstate(over="ignore"):
        finite = np.isfinite(new.astype(old.dtype)).all()
    if not finite:
        refuse(author, f"returned a number in {name} that is not finite", "Use smaller steps, or repair it.")


def _author(optimiser: ServerOptimiser) -> str:
    return f"server optimiser {optimiser.name!r}"
