"""QAvg, SoftPAvg and ProjPAvg (Jin et al., 2022) with exact clients: local steps on tables, which the server averages.

A table is [..., S, A]: action values in QAvg, logits in SoftPAvg, probabilities in ProjPAvg. Clients keep theirs on an
axis before those of states and actions. A stack of federations takes all its steps in one call.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.theory.mdp import MDP, AnyFederation, Array
from fedpohcs.theory.networks import softmax
from fedpohcs.theory.operators import (
    action_values,
    advantages,
    client_mean,
    discounted_visitation,
    evaluate,
    greedy_policy,
    objective,
)

LEAST_GROWTH = 1e-3
"""The rate shrinks after a round in which the objective grows by less than this share of itself."""
UNTOUCHED_ROUNDS = 2
"""First rounds after which the rate stays."""


class LocalMethod(Protocol):
    """What clients compute between two merges, and the policy that a table stands for."""

    def improve(self, clients: MDP, tables: Array, rate: Array, steps: int) -> Array:
        """The tables of the clients [..., N, S, A] after this many local steps."""
        ...

    def policy(self, table: Array) -> Array:
        """pi(a|s)."""
        ...


@dataclass(frozen=True)
class QAvg:
    """Damped value iteration of every client. The policy is greedy.

    published: Q_n <- (1 - rate) Q_n + rate (R + gamma P_n max_a Q_n).
    released: the authors' code takes the local steps on V_n = max_a Q, and then sets Q_n = R + gamma P_n V_n. So every
    round has a full Bellman step besides its damped ones.
    """

    form: Literal["published", "released"] = "published"

    def __post_init__(self) -> None:
        forms = ("published", "released")
        require(self.form in forms, "form", self.form, f"must be one of {', '.join(forms)}")

    def improve(self, clients: MDP, tables: Array, rate: Array, steps: int) -> Array:
        rate = rate[..., None, None, None]
        if self.form == "published":
            for _ in range(steps):
                tables = (1 - rate) * tables + rate * action_values(clients, tables.max(-1))
            return tables
        values = tables.max(-1)
        for _ in range(steps):
            values = (1 - rate[..., 0]) * values + rate[..., 0] * action_values(clients, values).max(-1)
        return action_values(clients, values)

    def policy(self, table: Array) -> Array:
        return greedy_policy(table)


class SoftPAvg:
    """Natural policy gradient of every client: logits_n <- logits_n + rate A_n / (1 - gamma)."""

    def improve(self, clients: MDP, tables: Array, rate: Array, steps: int) -> Array:
        scale = rate[..., None, None, None] / (1 - clients.discount[..., None, None])
        for _ in range(steps):
            tables = tables + scale * advantages(clients, softmax(tables))
        return tables

    def policy(self, table: Array) -> Array:
        return softmax(table)


class ProjPAvg:
    """Projected policy gradient of every client: pi_n <- Proj(pi_n + rate d_n Q_n / (1 - gamma)), d_n normalised."""

    def improve(self, clients: MDP, tables: Array, rate: Array, steps: int) -> Array:
        for _ in range(steps):
            visits = discounted_visitation(clients, tables)[..., None]  # d_n / (1 - gamma)
            gradient = visits * action_values(clients, evaluate(clients, tables))
            tables = projected(tables + rate[..., None, None, None] * gradient)
        return tables

    def policy(self, table: Array) -> Array:
        return table


def projected(points: Array) -> Array:
    """The nearest distribution to each point, along the last axis.

    Example:
        >>> projected(np.array([0.5, 0.9, -1.0])).round(2).tolist()
        [0.3, 0.7, 0.0]
    """
    descending = -np.sort(-points, axis=-1)
    excess = descending.cumsum(-1) - 1
    size = np.arange(1, points.shape[-1] + 1)
    positive = (descending - excess / size > 0).sum(-1, keepdims=True)
    return np.maximum(points - np.take_along_axis(excess, positive - 1, -1) / positive, 0)


class Rate(NamedTuple):
    """The learning rate of a run.

    Attributes:
        first: Its first value.
        factor: Its factor after rounds without growth of the objective.
        baseline: A constant in all objectives, as from shifted rewards; growth is a share of what exceeds it.
    """

    first: float
    factor: float = 1.0
    baseline: float = 0.0


@dataclass
class AveragingRun:
    """The record of a run; entry t of the lists belongs to the state before round t, the last one to the end.

    Attributes:
        table: The mean table at the end.
        clients: The tables of the clients at the end, before the merge [..., N, S, A].
        policies: The policies of the mean tables.
        objectives: eta of these policies.
    """

    table: Array
    clients: Array
    policies: list[Array] = field(default_factory=list)
    objectives: list[Array] = field(default_factory=list)

    @property
    def policy(self) -> Array:
        """The last policy."""
        return self.policies[-1]


def run_averaging(
    federation: AnyFederation,
    method: LocalMethod,
    rounds: int,
    *,
    start: Array,
    rate: Rate,
    local_steps: int = 1,
    merge: bool = True,
) -> AveragingRun:
    """Rounds of local steps and averages.

    Args:
        federation: One federation or a stack of them.
        method: QAvg, SoftPAvg or ProjPAvg.
        rounds: Number of rounds.
        start: The table that all clients start from [..., S, A].
        rate: The learning rate; it shrinks apart for each federation of a stack.
        local_steps: E, the steps of a client per round.
        merge: Whether clients go on from the mean table. False: they train alone, and the mean is only evaluated.
    """
    require(rounds >= 1, "rounds", rounds, "must be at least 1")
    require(local_steps >= 1, "local_steps", local_steps, "must be at least 1")
    require(rate.first > 0, "rate", rate.first, "must be positive")
    require(0 < rate.factor <= 1, "factor", rate.factor, "must lie in (0, 1]")
    run = AveragingRun(start, _of_clients(start, federation))
    _record(run, federation, method)
    now = np.full(run.objectives[0].shape, rate.first)
    for number in range(rounds):
        now = np.where(_stalls(run, number, rate.baseline), now * rate.factor, now)
        run.clients = method.improve(federation.clients, run.clients, now, local_steps)
        run.table = client_mean(federation.weights, run.clients, 2)
        _record(run, federation, method)
        if merge and number + 1 < rounds:
            run.clients = _of_clients(run.table, federation)
    return run


def _of_clients(table: Array, federation: AnyFederation) -> Array:
    N = federation.weights.shape[-1]
    return np.broadcast_to(table[..., None, :, :], (*table.shape[:-2], N, *table.shape[-2:]))


def _record(run: AveragingRun, federation: AnyFederation, method: LocalMethod) -> None:
    run.policies.append(method.policy(run.table))
    run.objectives.append(objective(federation, run.policy))


def _stalls(run: AveragingRun, number: int, baseline: float) -> np.ndarray | bool:
    if number <= UNTOUCHED_ROUNDS:
        return False
    before, after = run.objectives[number - 2 : number]
    return after - before < LEAST_GROWTH * (before - baseline)
