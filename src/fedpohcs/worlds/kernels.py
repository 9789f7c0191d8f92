"""Transition and reward tables of published tabular federations, as plain arrays.

The exact methods of `theory` and the traced worlds read the same tables. RandomMDPs and WindyCliffs are those of Jin et
al. (2022), the perturbed kernels those of Zhang et al. (2024).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import require

STEP_REWARD, CLIFF_REWARD, GOAL_REWARD = -1.0, -100.0, 100.0
UP, DOWN, LEFT, RIGHT = range(4)
MOVES = ((0, 1), (0, -1), (-1, 0), (1, 0))
"""Up, down, left, right, as steps of column and row; row 0 is the bottom."""


class Tables(NamedTuple):
    """The MDPs of N clients.

    Attributes:
        transitions: P_n(s'|s,a) [..., N, S, A, S].
        rewards: R(s,a) [..., S, A], the same for all clients.
        start: mu(s) [S].
    """

    transitions: np.ndarray
    rewards: np.ndarray
    start: np.ndarray


def random_mdps(
    num_clients: int,
    *,
    num_states: int = 5,
    num_actions: int = 5,
    heterogeneity: float = 1.0,
    density: float = 0.2,
    orthogonal: bool = False,
    stack: tuple[int, ...] = (),
    seed: int = 0,
) -> Tables:
    """Random MDPs P_n = (1 - e) P_0 + e U_n with rewards uniform on [0, 1] and a uniform start.

    Without a stack, more clients leave the first ones as they are. Another e or density leaves the draws as they are.

    Args:
        num_clients: N.
        num_states: S.
        num_actions: A.
        heterogeneity: e, from 0 for equal clients to 1 for independent ones.
        density: Probability of an entry, which is then uniform before rows are normalised. An empty row gets one entry.
        orthogonal: Whether U_n has entries at all places where P_0 has none, and no others.
        stack: Leading axes: so many independent federations at once.
        seed: Seed of all draws.
    """
    require(min(num_clients, num_states, num_actions) >= 1, "sizes", "0", "must be at least 1")
    require(0 <= heterogeneity <= 1, "heterogeneity", heterogeneity, "must lie in [0, 1]")
    require(0 <= density <= 1, "density", density, "must lie in [0, 1]")
    require(not orthogonal or num_states > 1, "num_states", num_states, "must be at least 2 with orthogonal")
    generator = np.random.default_rng(seed)
    pairs = (num_states, num_actions)
    rewards = generator.random((*stack, *pairs))
    places, sizes = np.moveaxis(generator.random((*stack, 1, *pairs, num_states, 2)), -1, 0)
    own_places, own_sizes = np.moveaxis(generator.random((*stack, num_clients, *pairs, num_states, 2)), -1, 0)
    present = _some(places < density, sizes)
    if orthogonal:
        present = ~_some(~present, -sizes)
        own_present = np.broadcast_to(~present, own_sizes.shape)
    else:
        own_present = _some(own_places < density, own_sizes)
    shared, own = _normalised(present * (1 - sizes)), _normalised(own_present * (1 - own_sizes))
    return Tables((1 - heterogeneity) * shared + heterogeneity * own, rewards, np.full(num_states, 1 / num_states))


def _some(present: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The places of entries, where a row without any gets the one of the largest score."""
    largest = np.arange(scores.shape[-1]) == scores.argmax(-1)[..., None]
    return np.where(present.any(-1, keepdims=True), present, largest)


def windy_cliffs(winds: Sequence[float] | np.ndarray, columns: int = 4, rows: int = 4) -> Tables:
    """A grid whose bottom row is the start, a cliff and the goal. The wind of a client, in [0, 1], blows down.

    Every move but down fails with a third of the wind and then leads down; walls stop moves. From the cliff and from
    the goal every action leads back to the start. Rewards depend on the state: -100 on the cliff, 100 at the goal, and
    -1 elsewhere. States are numbered by row from the bottom left.
    """
    require(columns >= 3 and rows >= 2, "grid", (columns, rows), "must have at least 3 columns and 2 rows")
    for client, wind in enumerate(winds):
        require(0 <= wind <= 1, f"wind of client {client}", wind, "must lie in [0, 1]")
    size, goal = rows * columns, columns - 1
    arrived = np.array([[_walk(state, move, columns, rows) for move in MOVES] for state in range(size)])
    arrived[1 : goal + 1] = 0
    places = np.eye(size)
    fail = np.asarray(winds, np.float64)[:, None, None, None] / 3
    transitions = (1 - fail) * places[arrived] + fail * places[arrived[:, DOWN]][:, None]
    rewards = np.full((size, len(MOVES)), STEP_REWARD)
    rewards[1:goal], rewards[goal] = CLIFF_REWARD, GOAL_REWARD
    return Tables(transitions, rewards, places[0])


def _walk(state: int, move: tuple[int, int], columns: int, rows: int) -> int:
    row, column = divmod(state, columns)
    return min(max(row + move[1], 0), rows - 1) * columns + min(max(column + move[0], 0), columns - 1)


class PerturbedChains(NamedTuple):
    """MDPs whose actions shift the next state, in which clients differ in transitions and in rewards.

    Attributes:
        chains: P_n(s'|s) of action 0 [N, S, S]; action a shifts the next state by `shifts[a]`, round the end.
        shifts: [A].
        rewards: R_n(s,a) [N, S, A].
    """

    chains: np.ndarray
    shifts: np.ndarray
    rewards: np.ndarray

    @property
    def transitions(self) -> np.ndarray:
        """P_n(s'|s,a) [N, S, A, S]."""
        return np.stack([np.roll(self.chains, shift, axis=-1) for shift in self.shifts], axis=2)


def perturbed_chains(
    num_clients: int,
    *,
    transition_noise: float = 0.0,
    reward_noise: float = 0.0,
    num_states: int = 100,
    num_actions: int = 100,
    reward_bound: float = 10.0,
    seed: int = 0,
) -> PerturbedChains:
    """A nominal MDP, which client 0 has, and perturbed copies of it. More clients leave the first ones as they are.

    Args:
        num_clients: N.
        transition_noise: e_p: entries are multiplied by (1 + e_p u)(1 +- e_p) with u uniform in [-1, 1], cut at 0, and
            rows divided by their sums.
        reward_noise: e_r: rewards are R +- e_r R, cut to [-R, R].
        num_states: S.
        num_actions: A; action a shifts the next state by a S / A.
        reward_bound: Largest nominal reward.
        seed: Seed of all draws.
    """
    require(min(num_clients, num_states, num_actions) >= 1, "sizes", "0", "must be at least 1")
    for name, noise in (("transition_noise", transition_noise), ("reward_noise", reward_noise)):
        require(noise >= 0, name, noise, "must not be negative")
    nominal, others = (np.random.default_rng([seed, part]) for part in range(2))
    pairs, square = (num_states, num_actions), (num_states, num_states)
    rewards = _stretched(nominal.random(pairs), 0.95)
    rewards = reward_bound * (rewards - rewards.min()) / np.ptp(rewards) if np.ptp(rewards) else rewards
    chain = _normalised(_stretched(nominal.random(square), 0.7))
    chains, tables = [chain], [rewards]
    for _ in range(num_clients - 1):
        factor = 1 + transition_noise * others.uniform(-1, 1, square)
        sign, reward_sign = others.choice([-1.0, 1.0], square), others.choice([-1.0, 1.0], pairs)
        chains.append(_normalised(np.maximum(chain * factor * (1 + transition_noise * sign), 0), chain))
        tables.append(np.clip(rewards + reward_noise * reward_sign * rewards, -rewards, rewards))
    return PerturbedChains(np.stack(chains), np.arange(num_actions) * num_states // num_actions, np.stack(tables))


def _stretched(numbers: np.ndarray, threshold: float) -> np.ndarray:
    """Numbers above the threshold ten times as large, the others a tenth."""
    return np.where(numbers > threshold, numbers * 10, numbers / 10)


def _normalised(entries: np.ndarray, otherwise: np.ndarray | None = None) -> np.ndarray:
    """Rows divided by their sums; a row without positive entries becomes that of `otherwise`."""
    sums = entries.sum(-1, keepdims=True)
    rows = entries / np.where(sums > 0, sums, 1)
    return rows if otherwise is None else np.where(sums > 0, rows, otherwise)
