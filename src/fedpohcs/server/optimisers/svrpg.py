"""SVRPG and FedPG-BR: the server takes several steps per round, each corrected by the clients' mean gradient.

The clients' mean change is their mean gradient mu at theta_0 (learner `gpomdp`). In inner step n the server plays b
episodes with theta_n by itself, and follows

    v = g(theta_n) - w g(theta_0) + mu,     w = pi_theta_0(a|s) / pi_theta_n(a|s) of every step,

by Adam (Papini et al., 2018; Fan et al., 2021). At the first step both gradients are the same and v = mu, so that it
needs no episodes, and one inner step per round is GPOMDP.
"""

from typing import Any

import numpy as np

from fedpohcs.core.config import ServerOptimiserConfig
from fedpohcs.core.errors import require
from fedpohcs.core.steering import ANCHOR, ANCHORED, EPISODES
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import Params
from fedpohcs.server.optimisers.base import Proposal, ServerOptimiser, Vectors, optimised_parts
from fedpohcs.server.parts import from_parts, from_vector, parts_of, rows_of, vector_of

LEARNING_RATE = 1e-3
IMPORTANCE_TOLERANCE = 0.005  # the inner loop ends where the mean weight differs by more than this from 1
MOST_INNER_STEPS = 1000  # of a geometric number


def svrpg(settings: ServerOptimiserConfig) -> ServerOptimiser:
    """SVRPG: inner steps of Adam on the server with reduced variance (Papini et al., 2018; Fan et al., 2021).

    With one inner step it is GPOMDP: Adam on the clients' mean gradient.
    """
    span, geometric = settings.batch_episodes, settings.inner_steps == 0
    rule = "must be set where server_optimiser.inner_steps is 0"
    require(not geometric or span is not None, "server_optimiser.batch_episodes", span, rule, "For example 12 20.")

    def init(params: Params) -> dict[str, Vectors]:
        parts = parts_of(params)
        sizes = {name: len(vector_of(parts[name])) for name in optimised_parts(params, settings.parts)}
        return {name: {"m": np.zeros(n), "v": np.zeros(n), "steps": np.zeros(())} for name, n in sizes.items()}

    def draws(generator: np.random.Generator) -> dict[str, Any]:
        if span is None:
            return {}
        return {EPISODES: np.int32(generator.integers(span[0], span[1], endpoint=True))}

    def apply(state: dict[str, Vectors], previous: Params, proposal: Proposal) -> tuple[Params, dict[str, Vectors]]:
        mean = changes(previous, proposal.params, state)
        corrected = any(x.any() for x in mean.values())
        now, inside = proposal.params, True
        now = from_parts({**parts_of(now), **{name: parts_of(previous)[name] for name in state}}, now)
        for attempt in range(inner_steps(settings, proposal)):
            direction = mean
            if attempt or (not corrected and settings.inner_steps != 1):
                found = simulated(settings, now, previous, proposal, corrected, attempt + 1)
                if found is None:
                    break
                own, inside = found
                direction = {name: own[name] + mean[name] for name in state}
            elif not corrected:
                break  # nobody is trusted, and the server plays no episodes itself
            now, state = adam_step(settings, state, now, direction)
            if not inside:
                break
        return now, state

    return ServerOptimiser(init, apply, draws=draws, simulates=settings.inner_steps != 1)


def inner_steps(settings: ServerOptimiserConfig, proposal: Proposal) -> int:
    """N_t: as configured, or geometric with success b/(B+b), so that the mean is (B+b)/b."""
    if settings.inner_steps:
        return settings.inner_steps
    assert proposal.generator is not None
    b = settings.inner_episodes
    success = b / (int(proposal.sent[EPISODES]) + b)
    return min(int(proposal.generator.geometric(success)), MOST_INNER_STEPS)


def simulated(
    settings: ServerOptimiserConfig,
    now: Params,
    anchor: Params,
    proposal: Proposal,
    corrected: bool,
    attempt: int,
) -> tuple[Vectors, bool] | None:
    """g(theta_n) - w g(theta_0) by part, on b episodes of the server, and whether the mean weight w is near 1.

    Where no client is trusted it is g(theta_n) alone. None: the episodes gave no finite gradient.
    """
    assert proposal.simulate is not None
    assert proposal.generator is not None
    where = settings.simulated_client
    if where == "mixture":
        where = int(proposal.generator.integers(max(len(proposal.returns), 1)))
    rule = f"must be below federation.num_clients (={len(proposal.returns)})"
    require(where < len(proposal.returns), "server_optimiser.simulated_client", where, rule)
    extra = {EPISODES: np.int32(settings.inner_episodes), ANCHORED: np.float32(corrected)}
    extra |= {ANCHOR + place: x for place, x in named_arrays(anchor).items()}
    updates = proposal.simulate(now, np.array([where]), extra, attempt)
    if not (updates.steps > 0).all():
        return None
    learned, rows = parts_of(updates.params), {}
    for name in optimised_parts(now, settings.parts):
        rows[name] = rows_of(learned[name])[0] - vector_of(parts_of(now)[name])
    return rows, bool(abs(float(updates.info["importance"][0]) - 1) <= IMPORTANCE_TOLERANCE)


def changes(previous: Params, params: Params, names: Any) -> Vectors:
    """How far each of these parts is from the previous one."""
    old, new = parts_of(previous), parts_of(params)
    return {name: vector_of(new[name]) - vector_of(old[name]) for name in names}


def adam_step(
    settings: ServerOptimiserConfig, state: dict[str, Vectors], params: Params, direction: Vectors
) -> tuple[Params, dict[str, Vectors]]:
    """Adam with the correction of the first steps' bias (Kingma and Ba, 2015), uphill."""
    rate = LEARNING_RATE if settings.learning_rate is None else settings.learning_rate
    parts, states = parts_of(params), {}
    for name, (slope, old) in {name: (direction[name], state[name]) for name in state}.items():
        steps = old["steps"] + 1
        m = settings.beta1 * old["m"] + (1 - settings.beta1) * slope
        v = settings.beta2 * old["v"] + (1 - settings.beta2) * slope**2
        step = rate * (m / (1 - settings.beta1**steps)) / (np.sqrt(v / (1 - settings.beta2**steps)) + settings.epsilon)
        parts[name] = from_vector(vector_of(parts[name]) + step, parts[name])
        states[name] = {"m": m, "v": v, "steps": steps}
    return from_parts(parts, params), states
