"""The weighted value problem (Steimle et al., 2021): one policy for several MDPs, for the weighted mean of returns.

That is the objective eta of a federation. `operators.best_deterministic_policy` solves it by enumeration for stationary
deterministic policies. With different transitions, the best common policy may have to be random or change with time.
"""

from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.theory.mdp import AnyFederation, Array
from fedpohcs.theory.operators import action_values, client_mean, greedy_policy


class Plan(NamedTuple):
    """Deterministic policies by time, and what they reach.

    Attributes:
        policies: pi_t(a|s) [H, ..., S, A], from the first time to the last.
        values: V_n(s) over H steps [..., N, S].
    """

    policies: Array
    values: Array

    @property
    def first(self) -> Array:
        """The policy of the first time, [..., S, A]: for a long horizon a stationary policy of the same idea."""
        return self.policies[0]


def weighted_select_update(federation: AnyFederation, horizon: int) -> Plan:
    """The heuristic WSU: backwards in time, take the action of the largest weighted mean of the clients' action values.

    Every client then updates its own values with that same action. Exact for one client.
    """
    require(horizon >= 1, "horizon", horizon, "must be at least 1")
    clients = federation.clients
    values = np.zeros((*federation.weights.shape, federation.rewards.shape[-2]))
    policies = []
    for _ in range(horizon):
        q = action_values(clients, values)
        policies.append(greedy_policy(client_mean(federation.weights, q, 2)))
        values = (policies[-1][..., None, :, :] * q).sum(-1)
    return Plan(np.stack(policies[::-1]), values)
