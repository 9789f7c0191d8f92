"""Drawing clients at random in place of a fixed selection. None of this is in the paper; docs/theory.md has the proofs.

K clients are drawn independently and with replacement, client n with probability r_n. Each drawn client counts with
q_n / (K r_n), so that sums over the drawn clients have the mean sum_n q_n x_n.
"""

import itertools
from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.theory.mdp import Array
from fedpohcs.theory.operators import client_mean


class Draws(NamedTuple):
    """Every possible draw of K clients, for exact expectations.

    Attributes:
        weights: The weights of all clients in each draw [..., N^K, N]; 0 for those that are not drawn.
        probabilities: The probability of each draw [..., N^K].
    """

    weights: Array
    probabilities: Array

    def estimates(self, tables: Array) -> Array:
        """The weighted sum of the drawn tables, for each draw [..., N^K, S, A]."""
        flat = self.weights @ tables.reshape(*tables.shape[:-2], -1)
        return flat.reshape(*flat.shape[:-1], *tables.shape[-2:])

    def policies(self, policy: Array, client_policies: Array) -> Array:
        """pi-tilde = pi^t + the weighted sum of the drawn pi_n - pi^t. Rows sum to 1, entries may leave [0, 1]."""
        return policy[..., None, :, :] + self.estimates(client_policies - policy[..., None, :, :])

    def mean(self, outcomes: Array) -> Array:
        """The expectation of a vector per draw [..., N^K, S]."""
        return client_mean(self.probabilities, outcomes, 1)


def all_draws(weights: Array, probabilities: Array, num_drawn: int) -> Draws:
    """All N^K draws of K = `num_drawn` clients with the probabilities r_n. For small N and K."""
    require(num_drawn >= 1, "num_drawn", num_drawn, "must be at least 1")
    require(bool(np.all(probabilities > 0)), "probabilities", probabilities.min(), "must all be positive")
    N = weights.shape[-1]
    clients = np.array(list(itertools.product(range(N), repeat=num_drawn)))
    times = np.eye(N)[clients].sum(1)
    own = (weights / probabilities)[..., None, :]
    return Draws(times * own / num_drawn, probabilities[..., clients].prod(-1))


def mean_square_error(weights: Array, probabilities: Array, vectors: Array, num_drawn: int) -> Array:
    """E ||estimate - sum_n q_n x_n||_2^2 for vectors x_n [..., N, d] and K = `num_drawn`."""
    lengths = np.sqrt((vectors**2).sum(-1))
    truth = client_mean(weights, vectors, 1)
    return (second_moment(weights, probabilities, lengths) - (truth**2).sum(-1)) / num_drawn


def second_moment(weights: Array, probabilities: Array, lengths: Array) -> Array:
    """sum_n q_n^2 / r_n x_n^2: the part of the mean squared error that depends on r."""
    return (weights**2 / probabilities * lengths**2).sum(-1)


def best_probabilities(weights: Array, lengths: Array) -> Array:
    """r_n proportional to q_n x_n, which has the least second moment, (sum_n q_n x_n)^2."""
    total = (weights * lengths).sum(-1, keepdims=True)
    require(bool(np.all(total > 0)), "lengths", 0, "must hold a positive one", "Any r has the error 0 if all are 0.")
    return weights * lengths / total


def largest_excess(weights: Array, probabilities: Array, lengths: Array) -> Array:
    """(a + b)^2 / (4 a b), where all q_n x_n / r_n lie in [a, b]: the second moment in shares of the least one."""
    ratio = weights * lengths / probabilities
    a, b = ratio.min(-1), ratio.max(-1)
    return (a + b) ** 2 / (4 * a * b)
