"""Levels of heterogeneity kappa. Paper: Definition 2."""

from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.theory.mdp import AnyFederation, Array, Federation, Mask, SparseFederation


class Levels(NamedTuple):
    """The levels of heterogeneity of a federation, or of each federation of a stack.

    Attributes:
        pairwise: kappa_{i,j} [..., N, N].
        to_imaginary: kappa_{n,I} [..., N].
        kappa_1: sum_n q_n kappa_{n,I}: the mean distance from the imaginary MDP.
        kappa_2: sum_{i,j} q_i q_j kappa_{i,j}: the mean distance of two clients.
    """

    pairwise: Array
    to_imaginary: Array
    kappa_1: Array
    kappa_2: Array


def levels_of(federation: AnyFederation) -> Levels:
    """All levels of heterogeneity, exactly.

    The definition takes a maximum over policies and states of ||sum_a pi(a|s) (P_i - P_j)(.|s,a)||_1. For a fixed
    state this is a norm of a linear function of the distribution pi(.|s), and therefore convex. A convex function on
    the simplex is largest at a corner: if x = sum_a pi(a) e_a then f(x) <= sum_a pi(a) f(e_a) <= max_a f(e_a). A
    corner is a single action, and a policy may choose a corner in each state, hence

        kappa_{i,j} = max_{s,a} ||P_i(.|s,a) - P_j(.|s,a)||_1,

    and the same for kappa_{n,I}. Two facts follow from the triangle inequality: kappa_1 <= kappa_2 <= 2 kappa_1.
    """
    if isinstance(federation, SparseFederation):
        pairwise, to_imaginary = _sparse_distances(federation)
    else:
        assert isinstance(federation, Federation)
        pairwise, to_imaginary = _dense_distances(federation)
    q = federation.weights
    kappa_1 = (q * to_imaginary).sum(-1)
    kappa_2 = np.einsum("...i,...j,...ij->...", q, q, pairwise)
    return Levels(pairwise, to_imaginary, kappa_1, kappa_2)


def _dense_distances(federation: Federation) -> tuple[Array, Array]:
    P, mean = federation.transitions, federation.imaginary.transitions
    N = federation.num_clients
    pairwise = np.zeros((*P.shape[:-4], N, N))
    for client in range(N - 1):  # one client per step: all pairs at once would not fit into the cache
        apart = np.abs(P[..., client + 1 :, :, :, :] - P[..., client, None, :, :, :]).sum(-1).max((-1, -2))
        pairwise[..., client, client + 1 :] = pairwise[..., client + 1 :, client] = apart
    return pairwise, np.abs(P - mean[..., None, :, :, :]).sum(-1).max((-1, -2))


def _sparse_distances(federation: SparseFederation) -> tuple[Array, Array]:
    blocks, mean = federation.transitions, federation.imaginary.transitions
    N = len(blocks)
    pairwise = np.zeros((N, N))
    for i in range(N):
        for j in range(i):
            pairwise[i, j] = pairwise[j, i] = abs(blocks[i] - blocks[j]).sum(axis=1).max()
    return pairwise, np.array([abs(block - mean).sum(axis=1).max() for block in blocks])


def distance_under(federation: Federation, policy: Array, i: int, j: int) -> Array:
    """max_s sum_s' |P_i^pi(s'|s) - P_j^pi(s'|s)| for one policy; kappa_{i,j} is its maximum over policies."""
    chains = federation.clients.chain(policy[..., None, :, :])
    return np.abs(chains[..., i, :, :] - chains[..., j, :, :]).sum(-1).max(-1)


def closest_clients(levels: Levels, count: int) -> Mask:
    """The `count` clients with the least kappa_{m,I}, as a mask [..., N]. Paper: Remark 8."""
    return _least(levels.to_imaginary, count)


def central_clients(levels: Levels, weights: Array, count: int) -> Mask:
    """The `count` clients with the least mean kappa_{m,n}, which minimise the pairwise term of Proposition 7."""
    return _least((levels.pairwise * weights[..., None, :]).sum(-1), count)


def _least(scores: Array, count: int) -> Mask:
    N = scores.shape[-1]
    require(1 <= count <= N, "count", count, f"must lie between 1 and the number of clients, {N}")
    rank = np.argsort(np.argsort(scores, axis=-1, kind="stable"), axis=-1, kind="stable")
    return rank < count
