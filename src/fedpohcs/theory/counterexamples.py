"""Small federations that show, by hand, where a statement of the paper needs a change. Tests and docs use them."""

from typing import NamedTuple

import numpy as np

from fedpohcs.theory.iteration import Faults
from fedpohcs.theory.mdp import Array, Federation


def reach_or_not(discount: float = 0.9) -> Federation:
    """Against Lemma 3, with two states and one action: client 0 reaches the good state at once, client 1 never.

    On average the bad state is worth gamma / (2 (1 - gamma)). In the imaginary MDP the coin is tossed anew in every
    step until it falls well: gamma / ((2 - gamma) (1 - gamma)), which is more.
    """
    bad, good = np.eye(2)
    P = np.array([[[good], [good]], [[bad], [good]]])
    return Federation(P, [[0.0], [1.0]], discount, reward_bound=1.0)


def crossed_paths(discount: float = 0.9) -> Federation:
    """Against Lemma 3, with deterministic paths that do not return: s, a, b, good, bad.

    Client 0 goes s -> a -> bad, client 1 goes s -> b -> bad. What the other client would find at a or b is good, and
    the imaginary MDP gets there half the time.
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
    """The best policy for the average may have to be stochastic: action n leads client n on and the other nowhere.

    A deterministic policy leaves one of them where it is for ever.
    """
    here, there = np.eye(2)
    P = np.array([[[there, here], [there, there]], [[here, there], [there, there]]])
    return Federation(P, [[0.0, 0.0], [1.0, 1.0]], discount, np.array([1.0, 0.0]), reward_bound=1.0)


class Selected(NamedTuple):
    """A federation and two ways to choose one client of it."""

    federation: Federation
    by_imaginary: int
    by_distance: int


def skewed_crowd(discount: float = 0.95) -> Selected:
    """Against Remark 8: the client nearest to the mean, by kappa_{m,I}, is not nearest to the others, by kappa_{m,n}.

    From one state clients reach the other with probability 0, 0, 0, 0.4 and 1. The mean is 0.28, so the fourth is the
    nearest to it; the median is 0, so each of the first three is the best by the bound.
    """
    chances = np.array([0, 0, 0, 0.4, 1.0])
    return Selected(_leaving(chances, discount), by_imaginary=3, by_distance=0)


def threshold_not_enough() -> tuple[Federation, int]:
    """Against Remark 8: client 4 is below the threshold, and its bound is above that of everyone.

    The remark leaves out that kappa_{m,I} of the selected clients takes the place of kappa_1. It is larger here.
    """
    return _leaving(np.array([0, 0.2, 0.4, 0.6, 0.83, 1]), 0.942), 4


def _leaving(chances: Array, discount: float, weights: Array | None = None) -> Federation:
    """Two states and one action: from state 0 client n gets to state 1, where it stays, with probability chances[n]."""
    P = np.zeros((len(chances), 2, 1, 2))
    P[:, 0, 0, 0], P[:, 0, 0, 1] = 1 - chances, chances
    P[:, 1, 0, 1] = 1
    return Federation(P, [[0.0], [1.0]], discount, weights=weights, reward_bound=1.0)


def small_discount() -> Federation:
    """Against Sec. 3.2: two clients and gamma = 0.2. The bound of Lemma 6 is less than that of Lemma 5."""
    return _leaving(np.array([0.0, 1.0]), 0.2)


def overestimated(error: float = 100.0) -> tuple[Federation, Faults]:
    """Against Lemma 5 for any delta_n: evaluation errors that take values far out of [0, R_max / (1 - gamma)].

    From the first state, action n leads client n to `high` and the other client to `low`; action 2 leads both to
    `high` nine times of ten. Each client prefers its own action, the imaginary MDP action 2. No one is rewarded; all
    see `high` valued too much and `low` too little.
    """
    first, high, low = np.eye(3)
    sure = 0.9 * high + 0.1 * low
    P = np.tile(np.eye(3)[None, :, None], (2, 1, 3, 1))
    P[0, 0], P[1, 0] = [high, low, sure], [low, high, sure]
    noise = np.broadcast_to(high - low, (1, 2, 3))
    federation = Federation(P, np.zeros((3, 3)), 0.5, first, reward_bound=1.0)
    return federation, Faults(delta=error, noise=noise, clip=False)


def unlucky_selection(discount: float = 0.9) -> tuple[Federation, Faults, Array]:
    """Against Proposition 14 for partial participation: identical clients; the one that is selected improves badly.

    Client 0 has epsilon_0 = 1 and the weight 0.01, so the printed sum_n q_n epsilon_n is 0.01. But only client 0 takes
    part, and always takes the action without reward.
    """
    P = np.ones((2, 1, 2, 1))
    federation = Federation(P, [[1.0, 0.0]], discount, weights=[0.01, 0.99], reward_bound=1.0)
    return federation, Faults(epsilon=np.array([1.0, 0.0])), np.array([True, False])


def unreached_state(discount: float = 0.9) -> tuple[Federation, Array]:
    """Against Proposition 14: a policy that is optimal for eta and poor in a state that mu does not reach.

    Returns the federation and that policy. It maximises eta, so it is a pi* of Theorem 10; FAPI is exact here and has
    no error, yet differs from it in the other state by R_max / (1 - gamma).
    """
    P = np.tile(np.eye(2)[None, :, None, :], (2, 1, 2, 1))
    federation = Federation(P, [[1.0, 0.0], [1.0, 0.0]], discount, np.array([1.0, 0.0]), reward_bound=1.0)
    return federation, np.array([[1.0, 0.0], [0.0, 1.0]])
