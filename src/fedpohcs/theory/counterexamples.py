"""Small federations that refute a statement of the paper or show which condition it needs."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpohcs.theory.iteration import Faults
from fedpohcs.theory.mdp import Array, Federation


def reach_or_not(discount: float = 0.9) -> Federation:
    """Against Lemma 3, with two states and one action: client 0 reaches the good state at once, client 1 never.

    The mean value of the bad state is gamma / (2 (1 - gamma)). The imaginary MDP leaves it with probability 1/2 in
    every step, so that its value is gamma / ((2 - gamma) (1 - gamma)), which is larger.
    """
    bad, good = np.eye(2)
    P = np.array([[[good], [good]], [[bad], [good]]])
    return Federation(P, [[0.0], [1.0]], discount, reward_bound=1.0)


def crossed_paths(discount: float = 0.9) -> Federation:
    """Against Lemma 3, with deterministic paths that do not return: s, a, b, good, bad.

    Client 0 moves s -> a -> bad, client 1 moves s -> b -> bad. From a client 1 would move to the good state, and from b
    client 0 would. The imaginary MDP reaches the good state with probability 1/2.
    """
    s, a, b, good, bad = range(5)
    P = np.zeros((2, 5, 1, 5))
    for client, steps in enumerate(({s: a, a: bad, b: good}, {s: b, b: bad, a: good})):
        for state in range(5):
            P[client, state, 0, steps.get(state, state)] = 1
    rewards = np.zeros((5, 1))
    rewards[good] = 1
    return Federation(P, rewards, discount, np.eye(5)[s], reward_bound=1.0)


def coin_flip(discount: float = 0.9) -> Federation:
    """The policy with the largest eta may be stochastic: action n moves client n on and leaves the other one in place.

    Under a deterministic policy one client never moves.
    """
    here, there = np.eye(2)
    P = np.array([[[there, here], [there, there]], [[here, there], [there, there]]])
    return Federation(P, [[0.0, 0.0], [1.0, 1.0]], discount, np.array([1.0, 0.0]), reward_bound=1.0)


class NearestClients(NamedTuple):
    """A federation, its client with the least kappa_{m,I}, and its client with the least mean kappa_{m,n}."""

    federation: Federation
    by_imaginary: int
    by_distance: int


def skewed_crowd(discount: float = 0.95) -> NearestClients:
    """Against Remark 8: the client nearest to the mean, by kappa_{m,I}, is not nearest to the others, by kappa_{m,n}.

    The clients move from one state to the other with probability 0, 0, 0, 0.4 and 1. The mean is 0.28, so the fourth
    client is the nearest to it. The median is 0, so each of the first three clients has the least bound.
    """
    chances = np.array([0, 0, 0, 0.4, 1.0])
    return NearestClients(_leaving(chances, discount), by_imaginary=3, by_distance=0)


def threshold_not_enough() -> tuple[Federation, int]:
    """Against Remark 8: client 4 is below the threshold, and its bound is above that of full participation.

    The remark leaves out that kappa_{m,I} of the selected clients replaces kappa_1, and is larger here.
    """
    return _leaving(np.array([0, 0.2, 0.4, 0.6, 0.83, 1]), 0.942), 4


def _leaving(chances: Array, discount: float, weights: Array | None = None) -> Federation:
    """Two states and one action: client n moves from state 0 to state 1, which is absorbing, with chances[n]."""
    P = np.zeros((len(chances), 2, 1, 2))
    P[:, 0, 0, 0], P[:, 0, 0, 1] = 1 - chances, chances
    P[:, 1, 0, 1] = 1
    return Federation(P, [[0.0], [1.0]], discount, weights=weights, reward_bound=1.0)


def threshold_not_needed() -> tuple[Federation, int]:
    """Against Remark 8: client 1 is above the threshold, and its bound is below that of full participation.

    Client 1 has the mean transitions, so kappa_{1,I} = 0. For a small discount the threshold is close to 0.
    """
    return _leaving(np.array([0, 0.5, 1]), 0.1), 1


def small_discount(discount: float = 0.2) -> Federation:
    """Against Sec. 3.2: for two clients and gamma < 1/3 the bound of Lemma 6 is smaller than that of Lemma 5."""
    return _leaving(np.array([0.0, 1.0]), discount)


def overestimated(error: float = 100.0) -> tuple[Federation, Faults]:
    """Against Lemma 5 for any delta_n: evaluated values far outside of [0, R_max / (1 - gamma)].

    In the first state, action n leads client n to `high` and the other client to `low`; action 2 leads both to `high`
    with probability 0.9. Client n prefers action n, the imaginary MDP action 2. All rewards are 0; every client
    overvalues `high` and undervalues `low`.
    """
    first, high, low = np.eye(3)
    sure = 0.9 * high + 0.1 * low
    P = np.tile(np.eye(3)[None, :, None], (2, 1, 3, 1))
    P[0, 0], P[1, 0] = [high, low, sure], [low, high, sure]
    noise = np.broadcast_to(high - low, (1, 2, 3))
    federation = Federation(P, np.zeros((3, 3)), 0.5, first, reward_bound=1.0)
    return federation, Faults(delta=error, noise=noise, clip=False)


def unlucky_selection(discount: float = 0.9) -> tuple[Federation, Faults, Array]:
    """Against Proposition 14 for partial participation: of two identical clients the selected one has a large error.

    Client 0 has epsilon_0 = 1 and the weight 0.01, so the printed sum_n q_n epsilon_n is 0.01. Only client 0 takes
    part, and it always takes the action without reward.
    """
    P = np.ones((2, 1, 2, 1))
    federation = Federation(P, [[1.0, 0.0]], discount, weights=[0.01, 0.99], reward_bound=1.0)
    return federation, Faults(epsilon=np.array([1.0, 0.0])), np.array([True, False])


def unreached_state(discount: float = 0.9) -> tuple[Federation, Array]:
    """Against Proposition 14: a policy that is optimal for eta and poor in a state that mu does not reach.

    Returns the federation and this policy. The policy maximises eta, so it is a pi* of Theorem 10. FAPI without errors
    differs from it by R_max / (1 - gamma) in the state that is not reached.
    """
    P = np.tile(np.eye(2)[None, :, None, :], (2, 1, 2, 1))
    federation = Federation(P, [[1.0, 0.0], [1.0, 0.0]], discount, np.array([1.0, 0.0]), reward_bound=1.0)
    return federation, np.array([[1.0, 0.0], [0.0, 1.0]])


def one_favourite(weights: ArrayLike | None = None, discount: float = 0.9) -> Federation:
    """Against taking the top: client 0 has the largest Delta_n in every round, and three times the mean table.

    From the first state both actions lead to the high or to the low state, and from there back. Action 0 leads client
    0 to the high state and action 1 to the low one. Client 1 reaches the high state with the probabilities 1/3 and 2/3.
    Under the uniform policy the rows of D_n A_n at the first state are in the proportion (3, -3) to (-1, 1).
    """
    first, high, low = np.eye(3)
    P = np.empty((2, 3, 2, 3))
    P[:, 1:] = first
    P[0, 0] = [high, low]
    P[1, 0] = [(high + 2 * low) / 3, (2 * high + low) / 3]
    return Federation(P, [[0, 0], [1, 1], [0, 0]], discount, first, weights, 1.0)
