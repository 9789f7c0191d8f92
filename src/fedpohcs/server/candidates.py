"""The candidates of a round and the weights of clients: functions of the config, known to clients too."""

import numpy as np

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.types import ClientIds, Vector


def draw_candidates(num_clients: int, num_candidates: int, seed: int, round_number: int) -> ClientIds:
    """The candidates of a round, ascending. They depend on the seed only, so every selector gets the same."""
    generator = host_generator(seed, Purpose.CANDIDATES, round_number)
    return np.sort(generator.choice(num_clients, num_candidates, replace=False))


def draw_evaluated(federation: FederationConfig, seed: int, round_number: int) -> ClientIds:
    """The clients that are evaluated after a round, ascending: all, or a random sample that depends on the seed."""
    n, size = federation.num_clients, federation.evaluated_clients
    if size is None or round_number in federation.full_evaluation_rounds:
        return np.arange(n)
    generator = host_generator(seed, Purpose.EVALUATED_SAMPLE, round_number)
    return np.sort(generator.choice(n, size, replace=False))


def client_weight(federation: FederationConfig) -> Vector:
    """q_n of every client, summing to one."""
    weight = np.asarray(federation.client_weights or np.ones(federation.num_clients), float)
    return weight / weight.sum()
