"""Finite MDPs, federations of them, and the imaginary MDP. Paper: Sec. 2.1 and 2.3.

Arrays may have leading axes: a `TabularMDP` is then a stack of MDPs, a `Federation` a stack of federations, and every
function of this package processes the whole stack in one call. The clients of a federation are a stack of MDPs, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import bicgstab, spsolve

from fedpohcs.core.errors import UserError, require

Array = NDArray[Any]  # of float64; the stubs of NumPy lose that in most linear algebra
Mask = NDArray[np.bool_]

SUM_TOLERANCE = 1e-9
SOLVE_TOLERANCE = 1e-12
"""Largest error of a sparse policy evaluation, as a share of the largest possible value."""


class MDP(Protocol):
    """The interface of an MDP, or of a stack of MDPs, that the operators use."""

    @property
    def rewards(self) -> Array: ...

    @property
    def discount(self) -> Array: ...

    @property
    def start(self) -> Array: ...

    @property
    def reward_bound(self) -> Array: ...

    def expected(self, values: Array) -> Array:
        """E[V(s') | s, a] for every state and action."""
        ...

    def solve(self, policy: Array, vector: Array, *, transposed: bool = False) -> Array:
        """The solution x of x = vector + gamma P^pi x, or of the same with the transposed P^pi."""
        ...

    def chain(self, policy: Array) -> Array:
        """The matrix P^pi(s'|s)."""
        ...


@dataclass(frozen=True, eq=False)
class _Tables:
    """What dense and sparse MDPs and federations have in common."""

    rewards: Array
    discount: Array
    start: Array
    reward_bound: Array


@dataclass(frozen=True, eq=False)
class _DenseTables(_Tables):
    """Tables with transitions in one array [..., S, A, S]."""

    transitions: Array

    @property
    def num_states(self) -> int:
        return self.transitions.shape[-1]

    @property
    def num_actions(self) -> int:
        return self.transitions.shape[-2]


@dataclass(frozen=True, eq=False)
class TabularMDP(_DenseTables):
    """A finite MDP (S, mu, A, P, R, gamma). Paper: Sec. 2.1.

    Attributes:
        transitions: P(s'|s,a), an array [..., S, A, S].
        rewards: R(s,a) in [0, R_max], an array [..., S, A].
        discount: gamma in (0, 1), one number for each MDP of the stack.
        start: mu(s), an array [..., S]; uniform if left out.
        reward_bound: R_max; the largest reward if left out.
    """

    def __init__(
        self,
        transitions: ArrayLike,
        rewards: ArrayLike,
        discount: ArrayLike,
        start: ArrayLike | None = None,
        reward_bound: ArrayLike | None = None,
    ) -> None:
        P = _array("transitions", transitions)
        require(P.ndim >= 3 and P.shape[-1] == P.shape[-3], "transitions", P.shape, "must have the shape [S, A, S]")
        _check_transitions(P, ("state", "action"))
        shared = _shared_tables(P.shape[-1], P.shape[-2], rewards, discount, start, reward_bound)
        _set(self, transitions=P, **shared)

    @classmethod
    def unchecked(cls, **tables: Array) -> "TabularMDP":
        """An MDP of tables that are known to be valid."""
        made = cls.__new__(cls)
        _set(made, **tables)
        return made

    def expected(self, values: Array) -> Array:
        *stack, S, A, _ = self.transitions.shape
        return (self.transitions.reshape(*stack, S * A, S) @ values[..., None]).reshape(
            *np.broadcast_shapes(tuple(stack), values.shape[:-1]), S, A
        )

    def chain(self, policy: Array) -> Array:
        return (policy[..., None, :] @ self.transitions)[..., 0, :]

    def solve(self, policy: Array, vector: Array, *, transposed: bool = False) -> Array:
        chain = self.chain(policy)
        chain = np.swapaxes(chain, -1, -2) if transposed else chain
        return np.linalg.solve(np.eye(self.num_states) - self.discount[..., None, None] * chain, vector[..., None])[
            ..., 0
        ]


@dataclass(frozen=True, eq=False)
class SparseMDP(_Tables):
    """A finite MDP whose P(s'|s,a) is a sparse matrix [S * A, S]; row s * A + a belongs to state s and action a."""

    transitions: csr_array

    def expected(self, values: Array) -> Array:
        return (self.transitions @ values).reshape(self.rewards.shape)

    def chain(self, policy: Array) -> Array:
        return self.sparse_chain(policy).toarray()

    def sparse_chain(self, policy: Array) -> csr_array:
        """P^pi. Its rows concatenate the rows of all actions, without sorting or merging entries."""
        S, A = self.rewards.shape
        pairs = np.flatnonzero(policy)
        taken = self.transitions[pairs]
        data = taken.data * np.repeat(policy.ravel()[pairs], np.diff(taken.indptr))
        ends = taken.indptr[np.searchsorted(pairs, np.arange(0, S * A + 1, A))]
        return csr_array((data, taken.indices, ends), shape=(S, S))

    def solve(self, policy: Array, vector: Array, *, transposed: bool = False) -> Array:
        S, _ = self.rewards.shape
        chain = self.sparse_chain(policy)
        matrix = eye_array(S, format="csr") - float(self.discount) * (chain.T if transposed else chain)
        # ||x - x*|| <= ||residual|| / (1 - gamma) in the sup-norm, which the Euclidean norm bounds.
        largest = max(float(np.abs(vector).max()), np.finfo(float).tiny)
        solution, failed = bicgstab(matrix, vector, rtol=0.0, atol=SOLVE_TOLERANCE * largest, maxiter=2_000)
        return np.asarray(spsolve(matrix.tocsc(), vector)) if failed else solution


@dataclass(frozen=True, eq=False)
class SparseClients:
    """Sparse MDPs of one federation, along a first axis of clients."""

    mdps: tuple[SparseMDP, ...]

    @property
    def rewards(self) -> Array:
        return self.mdps[0].rewards[None]

    @property
    def discount(self) -> Array:
        return self.mdps[0].discount[None]

    @property
    def start(self) -> Array:
        return self.mdps[0].start[None]

    @property
    def reward_bound(self) -> Array:
        return self.mdps[0].reward_bound[None]

    def expected(self, values: Array) -> Array:
        values = np.broadcast_to(values, (len(self.mdps), values.shape[-1]))
        return np.stack([mdp.expected(own) for mdp, own in zip(self.mdps, values, strict=True)])

    def chain(self, policy: Array) -> Array:
        return np.stack([mdp.chain(own) for mdp, own in self._with(policy)])

    def solve(self, policy: Array, vector: Array, *, transposed: bool = False) -> Array:
        vector = np.broadcast_to(vector, (len(self.mdps), vector.shape[-1]))
        pairs = zip(self._with(policy), vector, strict=True)
        return np.stack([mdp.solve(own, right, transposed=transposed) for (mdp, own), right in pairs])

    def _with(self, policy: Array) -> list[tuple[SparseMDP, Array]]:
        policies = np.broadcast_to(policy, (len(self.mdps), *policy.shape[-2:]))
        return list(zip(self.mdps, policies, strict=True))


@dataclass(frozen=True, eq=False)
class Federation(_DenseTables):
    """N finite MDPs that differ only in their transitions, and their weights. Paper: Sec. 2.1.

    Attributes:
        transitions: P_n(s'|s,a), an array [..., N, S, A, S].
        rewards: R(s,a) in [0, R_max], an array [..., S, A].
        discount: gamma in (0, 1).
        start: mu(s), an array [..., S]; uniform if left out.
        weights: q_n, an array [..., N] that sums to 1; all alike if left out.
        reward_bound: R_max; the largest reward if left out.
    """

    weights: Array

    def __init__(
        self,
        transitions: ArrayLike,
        rewards: ArrayLike,
        discount: ArrayLike,
        start: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        reward_bound: ArrayLike | None = None,
    ) -> None:
        P = _array("transitions", transitions)
        require(P.ndim >= 4 and P.shape[-1] == P.shape[-3], "transitions", P.shape, "must have the shape [N, S, A, S]")
        _check_transitions(P, ("client", "state", "action"))
        shared = _shared_tables(P.shape[-1], P.shape[-2], rewards, discount, start, reward_bound)
        _set(self, transitions=P, weights=_client_weights(weights, P.shape[-4]), **shared)

    @classmethod
    def of(cls, mdps: Sequence[TabularMDP], weights: ArrayLike | None = None) -> "Federation":
        """A federation of single MDPs. They must share rewards, discount and start distribution."""
        require(len(mdps) > 0, "mdps", len(mdps), "must be at least one")
        first = mdps[0]
        for client, mdp in enumerate(mdps):
            for name in ("transitions", "rewards", "discount", "start"):
                own, other = getattr(mdp, name), getattr(first, name)
                require(own.shape == other.shape, f"{name} of client {client}", own.shape, f"must be {other.shape}")
                same = name == "transitions" or np.array_equal(own, other)
                require(same, f"{name} of client {client}", "other", "must be those of client 0")
        bound = np.max([mdp.reward_bound for mdp in mdps], axis=0)
        P = np.stack([mdp.transitions for mdp in mdps])
        return cls(P, first.rewards, first.discount, first.start, weights, bound)

    @property
    def num_clients(self) -> int:
        return self.transitions.shape[-4]

    @cached_property
    def clients(self) -> TabularMDP:
        """The MDPs M_n of the clients, stacked along an axis before those of states and actions."""
        return TabularMDP.unchecked(
            transitions=self.transitions,
            rewards=self.rewards[..., None, :, :],
            discount=self.discount[..., None],
            start=self.start[..., None, :],
            reward_bound=self.reward_bound[..., None],
        )

    @cached_property
    def imaginary(self) -> TabularMDP:
        """The imaginary MDP M_I with the mean transitions P-bar = sum_n q_n P_n. Paper: Sec. 2.3."""
        return TabularMDP.unchecked(
            transitions=np.einsum("...n,...nsat->...sat", self.weights, self.transitions),
            rewards=self.rewards,
            discount=self.discount,
            start=self.start,
            reward_bound=self.reward_bound,
        )


@dataclass(frozen=True, eq=False)
class SparseFederation(_Tables):
    """A federation of large worlds, with one sparse matrix P_n [S * A, S] per client."""

    transitions: tuple[csr_array, ...]
    weights: Array

    def __init__(
        self,
        transitions: Sequence[csr_array],
        rewards: ArrayLike,
        discount: float,
        start: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        reward_bound: float | None = None,
    ) -> None:
        require(len(transitions) > 0, "transitions", len(transitions), "must be at least one matrix")
        R = _array("rewards", rewards)
        require(R.ndim == 2, "rewards", R.shape, "must have the shape [S, A]")
        blocks = tuple(csr_array(block, dtype=np.float64) for block in transitions)
        for client, block in enumerate(blocks):
            expected = (R.size, R.shape[0])
            require(block.shape == expected, f"transitions of client {client}", block.shape, f"must be {expected}")
            _check_sparse(block, client, R.shape[1])
        shared = _shared_tables(R.shape[0], R.shape[1], R, discount, start, reward_bound)
        _set(self, transitions=blocks, weights=_client_weights(weights, len(blocks)), **shared)

    @cached_property
    def clients(self) -> SparseClients:
        return SparseClients(tuple(self._mdp(block) for block in self.transitions))

    @cached_property
    def imaginary(self) -> SparseMDP:
        """The imaginary MDP. Paper: Sec. 2.3."""
        mean = csr_array(self.transitions[0].shape)
        for weight, block in zip(self.weights, self.transitions, strict=True):
            mean = mean + weight * block
        return self._mdp(csr_array(mean))

    def _mdp(self, block: csr_array) -> SparseMDP:
        return SparseMDP(self.rewards, self.discount, self.start, self.reward_bound, block)


AnyFederation = Federation | SparseFederation


def _set(made: object, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(made, name, value)


def _array(name: str, given: ArrayLike) -> Array:
    try:
        array = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} must be an array of numbers: {error}.") from error
    _refuse_first(~np.isfinite(array), array, name, (), "must be a finite number")
    return array


def _check_transitions(P: Array, axes: tuple[str, ...]) -> None:
    _refuse_first(P < 0, P, "transitions", (*axes, "next state"), "must not be negative")
    sums = P.sum(-1)
    _refuse_first(np.abs(sums - 1) > SUM_TOLERANCE, sums, "sum of transitions", axes, "must be 1")


def _check_sparse(block: csr_array, client: int, num_actions: int) -> None:
    sums = block.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > SUM_TOLERANCE)
    if block.nnz and block.data.min() < 0:
        wrong = np.flatnonzero(block.min(axis=1).toarray().ravel() < 0)
        raise UserError(f"transitions at {_pair(client, wrong[0], num_actions)} must not be negative.")
    if len(wrong):
        row = wrong[0]
        raise UserError(f"sum of transitions at {_pair(client, row, num_actions)} (={sums[row]:.6g}) must be 1.")


def _pair(client: int, row: int, num_actions: int) -> str:
    return f"client {client}, state {row // num_actions}, action {row % num_actions}"


def _shared_tables(
    S: int,
    A: int,
    rewards: ArrayLike,
    discount: ArrayLike,
    start: ArrayLike | None,
    reward_bound: ArrayLike | None,
) -> dict[str, Array]:
    R, gamma = _array("rewards", rewards), _array("discount", discount)
    require(R.shape[-2:] == (S, A), "rewards", R.shape, f"must have the shape [S, A] = [{S}, {A}]")
    _refuse_first(R < 0, R, "rewards", ("state", "action"), "must not be negative", "Add a constant to all of them.")
    _refuse_first((gamma <= 0) | (gamma >= 1), gamma, "discount", (), "must lie between 0 and 1, ends excluded")
    mu = np.full(S, 1 / S) if start is None else _array("start", start)
    require(mu.shape[-1] == S, "start", mu.shape, f"must have the shape [S] = [{S}]")
    _refuse_first(mu < 0, mu, "start", ("state",), "must not be negative")
    sums = mu.sum(-1)
    _refuse_first(np.abs(sums - 1) > SUM_TOLERANCE, sums, "sum of start", (), "must be 1")
    bound = R.max((-1, -2)) if reward_bound is None else _array("reward_bound", reward_bound)
    above = bound[..., None, None] < R
    _refuse_first(above, R, "rewards", ("state", "action"), f"must not exceed reward_bound (={bound})")
    return {"rewards": R, "discount": gamma, "start": mu, "reward_bound": bound}


def _client_weights(weights: ArrayLike | None, N: int) -> Array:
    q = np.full(N, 1 / N) if weights is None else _array("weights", weights)
    require(q.shape[-1] == N, "weights", q.shape, f"must have the shape [N] = [{N}]")
    _refuse_first(q < 0, q, "weights", ("client",), "must not be negative")
    sums = q.sum(-1)
    _refuse_first(np.abs(sums - 1) > SUM_TOLERANCE, sums, "sum of weights", (), "must be 1")
    return q


def _refuse_first(wrong: Mask, values: Array, name: str, axes: tuple[str, ...], rule: str, remedy: str = "") -> None:
    """Refuse the first wrong entry and name its client, state and action where `axes` has them."""
    if not np.any(wrong):
        return
    index = np.unravel_index(int(np.argmax(wrong)), np.shape(wrong))
    named = zip(axes, index[len(index) - len(axes) :], strict=True)
    place = ", ".join(f"{axis} {position}" for axis, position in named)
    found = float(np.asarray(values)[index])
    require(False, f"{name} at {place}" if place else name, found, rule, remedy)
