"""Example federations: random ones, published ones, a windy grid, a river, and Gymnasium's toy-text worlds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from fedpohcs.core.errors import UserError, require
from fedpohcs.theory.mdp import Array, Federation, SparseFederation
from fedpohcs.worlds import kernels

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""North, east, south, west, as steps of row and column."""
CLIFF_SHIFT = 100.0
"""What `windy_cliffs` adds to every reward."""
TOY_TEXT: dict[str, dict[str, Any]] = {"FrozenLake": {"is_slippery": False}, "CliffWalking": {}, "Taxi": {}}
"""Names of Gymnasium's toy-text worlds, and the settings that make them deterministic."""


def random_federation(
    num_clients: int,
    num_states: int,
    num_actions: int,
    *,
    heterogeneity: float = 1.0,
    discount: float = 0.9,
    concentration: float = 1.0,
    seed: int = 0,
) -> Federation:
    """Random transitions P_n = (1 - h) P_shared + h P_own,n: identical clients for h = 0, independent ones for h = 1.

    Rewards are uniform on [0, 1]. With a small `concentration` of the Dirichlet distribution most rows are close to
    deterministic.
    """
    _check_share("heterogeneity", heterogeneity)
    require(min(num_clients, num_states, num_actions) >= 1, "sizes", "0", "must be at least 1")
    require(concentration > 0, "concentration", concentration, "must be positive")
    generator = np.random.default_rng(seed)
    alpha = np.full(num_states, concentration)
    shared = generator.dirichlet(alpha, (1, num_states, num_actions))
    own = generator.dirichlet(alpha, (num_clients, num_states, num_actions))
    rewards = generator.random((num_states, num_actions))
    return Federation((1 - heterogeneity) * shared + heterogeneity * own, rewards, discount, reward_bound=1.0)


def random_mdps(num_clients: int, *, discount: float = 0.9, **options: Any) -> Federation:
    """RandomMDPs of Jin et al. (2022), or a stack of such federations. Options are those of `kernels.random_mdps`."""
    tables = kernels.random_mdps(num_clients, **options)
    return Federation(tables.transitions, tables.rewards, discount, tables.start, reward_bound=1.0)


def windy_cliffs(winds: Sequence[float] | Array, *, discount: float = 0.95, **options: Any) -> Federation:
    """WindyCliffs of Jin et al. (2022), options as in `kernels.windy_cliffs`. Rewards are larger by `CLIFF_SHIFT`.

    The theory has no negative rewards. So values are larger by `CLIFF_SHIFT / (1 - discount)`.
    """
    tables = kernels.windy_cliffs(winds, **options)
    return Federation(tables.transitions, tables.rewards + CLIFF_SHIFT, discount, tables.start)


def split(federation: Federation, count: int) -> tuple[Federation, Federation]:
    """The first `count` clients and the others, as two federations with equal weights within each."""
    rest = federation.num_clients - count
    require(min(count, rest) >= 1, "count", count, "must leave at least one client on both sides")
    shared = (federation.rewards, federation.discount, federation.start)
    parts = np.split(federation.transitions, [count], axis=-4)
    first, second = (Federation(P, *shared, reward_bound=federation.reward_bound) for P in parts)
    return first, second


def random_sparse_federation(
    num_clients: int,
    num_states: int,
    num_actions: int,
    *,
    successors: int = 4,
    heterogeneity: float = 0.5,
    discount: float = 0.9,
    seed: int = 0,
) -> SparseFederation:
    """As `random_federation`, with at most 2 * `successors` successors per state and action."""
    _check_share("heterogeneity", heterogeneity)
    generator = np.random.default_rng(seed)
    rows = num_states * num_actions

    def draw() -> csr_array:
        columns = generator.integers(num_states, size=(rows, successors))
        shares = generator.dirichlet(np.ones(successors), rows)
        ends = np.arange(0, rows * successors + 1, successors)
        return csr_array((shares.ravel(), columns.ravel(), ends), shape=(rows, num_states))

    shared = draw()
    clients = [csr_array((1 - heterogeneity) * shared + heterogeneity * draw()) for _ in range(num_clients)]
    return SparseFederation(clients, generator.random((num_states, num_actions)), discount, reward_bound=1.0)


def windy_grid(winds: Sequence[float], rows: int = 4, columns: int = 5, *, discount: float = 0.95) -> Federation:
    """A grid with four moves and a goal in the far corner. The wind of a client, in [-1, 1], pushes south or north.

    With probability |wind| a move is followed by a gust: one cell south if the wind is positive, otherwise north. Walls
    stop moves and gusts. The goal is absorbing and has the reward 1 per step.
    """
    for client, wind in enumerate(winds):
        require(-1 <= wind <= 1, f"wind of client {client}", wind, "must lie in [-1, 1]")
    goal = rows * columns - 1
    P = np.zeros((len(winds), rows * columns, len(MOVES), rows * columns))
    for client, wind in enumerate(winds):
        for state in range(rows * columns):
            for action, move in enumerate(MOVES):
                arrived = _walk(state, move, rows, columns)
                blown = _walk(arrived, (1 if wind > 0 else -1, 0), rows, columns)
                P[client, state, action, arrived] += 1 - abs(wind)
                P[client, state, action, blown] += abs(wind)
    P[:, goal] = np.eye(rows * columns)[goal]
    rewards = np.zeros((rows * columns, len(MOVES)))
    rewards[goal] = 1
    start = np.eye(rows * columns)[0]
    return Federation(P, rewards, discount, start, reward_bound=1.0)


def _walk(state: int, move: tuple[int, int], rows: int, columns: int) -> int:
    row, column = divmod(state, columns)
    return min(max(row + move[0], 0), rows - 1) * columns + min(max(column + move[1], 0), columns - 1)


def river_swim(currents: Sequence[float], length: int = 6, *, discount: float = 0.95) -> Federation:
    """A chain in which action 1 swims up against the current of a client, in [0, 1], and action 0 drifts down.

    Swimming moves up with probability 0.9 - 0.8 * current, down with 0.05 + 0.45 * current, and otherwise stays. The
    reward is 0.005 for drifting in the lowest place and 1 for swimming in the highest one.
    """
    for client, current in enumerate(currents):
        require(0 <= current <= 1, f"current of client {client}", current, "must lie in [0, 1]")
    require(length >= 2, "length", length, "must be at least 2")
    P = np.zeros((len(currents), length, 2, length))
    places = np.arange(length)
    below, above = np.maximum(places - 1, 0), np.minimum(places + 1, length - 1)
    P[:, places, 0, below] = 1
    for client, current in enumerate(currents):
        forward, back = 0.9 - 0.8 * current, 0.05 + 0.45 * current
        for place in places:
            P[client, place, 1, above[place]] += forward
            P[client, place, 1, below[place]] += back
            P[client, place, 1, place] += 1 - forward - back
    rewards = np.zeros((length, 2))
    rewards[0, 0], rewards[-1, 1] = 0.005, 1
    return Federation(P, rewards, discount, np.eye(length)[0], reward_bound=1.0)


def toy_text(name: str, slips: Sequence[float], *, discount: float = 0.95, **settings: Any) -> Federation:
    """FrozenLake, CliffWalking or Taxi from Gymnasium, where client n slips with probability `slips[n]`.

    A slip replaces the action by a random one. Final states become absorbing. Rewards are the expected rewards of the
    intended action, equal for all clients as in the paper, shifted and scaled to [0, 1]. The shift adds the same
    constant to every value, because the horizon is infinite.

    Args:
        name: A key of `TOY_TEXT`.
        slips: Probability of a slip per client.
        discount: gamma.
        settings: Settings of the Gymnasium world, such as `map_name="8x8"`.
    """
    require(name in TOY_TEXT, "name", name, f"must be one of {', '.join(TOY_TEXT)}")
    for client, slip in enumerate(slips):
        _check_share(f"slip of client {client}", slip)
    P, rewards, start = _toy_tables(name, settings)
    random_move = P.mean(1, keepdims=True)
    clients = np.stack([(1 - slip) * P + slip * random_move for slip in slips])
    low, high = rewards.min(), rewards.max()
    scaled = (rewards - low) / (high - low) if high > low else np.zeros_like(rewards)
    return Federation(clients, scaled, discount, start, reward_bound=1.0)


def _toy_tables(name: str, settings: dict[str, Any]) -> tuple[Array, Array, Array]:
    try:
        from gymnasium.envs import toy_text as worlds
    except ImportError as error:
        raise UserError("toy_text needs Gymnasium. Install it: pip install 'fedpohcs[gym]'.") from error
    world = getattr(worlds, f"{name}Env")(**(TOY_TEXT[name] | settings))
    S, A = len(world.P), len(world.P[0])
    P, rewards, ends = np.zeros((S, A, S)), np.zeros((S, A)), np.zeros(S, bool)
    for state, actions in world.P.items():
        for action, outcomes in actions.items():
            for probability, arrived, reward, terminated in outcomes:
                P[state, action, arrived] += probability
                rewards[state, action] += probability * reward
                ends[arrived] |= terminated
    P[ends], rewards[ends] = np.eye(S)[ends][:, None, :], 0
    return P, rewards, np.asarray(world.initial_state_distrib, np.float64)


def _check_share(name: str, value: float) -> None:
    require(0 <= value <= 1, name, value, "must lie in [0, 1]")
