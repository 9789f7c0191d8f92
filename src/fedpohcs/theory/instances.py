"""Federations, policies, value functions and errors to test claims on: drawn, varied, stored and read back.

An instance is a dictionary of arrays. Instances of the same size are stacked along a first axis of these arrays.
Rewards are stored as shares of R_max, value functions and sizes of errors as shares of R_max / (1 - gamma).
"""

import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpohcs.core.errors import UserError, require
from fedpohcs.theory import bounds
from fedpohcs.theory.iteration import FapiRun, Faults, run_fapi, selected_weights
from fedpohcs.theory.mdp import Array, Federation, Mask
from fedpohcs.theory.operators import (
    advantages,
    average_values,
    discounted_visitation,
    evaluate,
    good_policy,
    optimal_policy,
    single,
)

Instances = dict[str, np.ndarray]

REWARD_BOUND = 2.0
"""R_max of all instances. It is not 1, so that a bound without its factor R_max has another ratio."""
CYCLE = 4
"""Number of rounds after which the directions of random errors repeat, so that a run ends in a cycle."""
ROUNDS = 16
"""Number of rounds of a run."""
DISTRIBUTIONS = {
    "transitions", "start", "weights", "policy", "other_policy", "first_policy", "client_policies", "target",
    "draw_probabilities",
}  # fmt: skip
"""Arrays whose rows sum to 1 and are varied as a whole."""
LARGE_ERROR = 20.0
"""Factor by which claims for any delta_n enlarge evaluation errors."""


class Size(NamedTuple):
    """The size of the federations of a group."""

    num_clients: int
    num_states: int
    num_actions: int


LARGEST = Size(6, 8, 4)


def groups(count: int, seed: int, num_groups: int = 40) -> Iterator[Instances]:
    """`count` random instances with N <= 6, S <= 8 and A <= 4, in groups of one size."""
    generator = np.random.default_rng(seed)
    edges = np.linspace(0, count, min(num_groups, count) + 1).astype(int)
    for first, last in itertools.pairwise(edges):
        size = Size(
            int(generator.integers(2, LARGEST.num_clients + 1)),
            int(generator.integers(2, LARGEST.num_states + 1)),
            int(generator.integers(1, LARGEST.num_actions + 1)),
        )
        yield draw(generator, size, int(last - first))


def draw(generator: np.random.Generator, size: Size, count: int) -> Instances:
    """Instances of many kinds: dense, sparse or deterministic transitions, low or high heterogeneity, any discount."""
    N, S, A = size
    shared = _rows(generator, (count, 1, S, A), S)
    own = _rows(generator, (count, N, S, A), S)
    heterogeneity = generator.choice([1.0, 0.3, 0.05], (count, 1, 1, 1, 1), p=[0.6, 0.3, 0.1])
    rewards = generator.random((count, S, A))
    rewards = np.where(generator.random((count, 1, 1)) < 0.5, rewards, np.round(rewards))
    return {
        "transitions": (1 - heterogeneity) * shared + heterogeneity * own,
        "rewards": rewards,
        "discount": _discounts(generator, count),
        "start": _rows(generator, (count,), S),
        "weights": np.where(generator.random((count, 1)) < 0.5, 1 / N, generator.dirichlet(np.ones(N), count)),
        "policy": _rows(generator, (count, S), A),
        "other_policy": _rows(generator, (count, S), A),
        "first_policy": _rows(generator, (count, S), A),
        "client_policies": _rows(generator, (count, N, S), A),
        "values": _levels(generator, (count, S)),
        "other_values": _levels(generator, (count, S)),
        "noise": 2 * _levels(generator, (count, CYCLE, N, S)) - 1,
        "preference": generator.random((count, CYCLE, N, S, A)),
        "delta": _errors(generator, (count, N)),
        "epsilon": _errors(generator, (count, N)),
        "participation": _participation(generator, count, N),
        **_aggregation_errors(generator, count),
        "shift": 2 * _levels(generator, (count, CYCLE, S)) - 1,
        "target": _rows(generator, (count, CYCLE, S), A),
        "draw_probabilities": _draw_probabilities(generator.spawn(1)[0], count, N),
    }


def instance_of(federation: Federation, **given: ArrayLike) -> Instances:
    """One instance without errors in which all clients take part, except for the arrays in `given`.

    Policies take action 0 and value functions are 0 unless given. Arrays have no instance axis; it is added here.
    """
    N, S, A, _ = federation.transitions.shape
    first = np.eye(A)[np.zeros(S, int)]
    arrays: dict[str, ArrayLike] = {
        "transitions": federation.transitions,
        "rewards": federation.rewards,
        "discount": federation.discount,
        "start": federation.start,
        "weights": federation.weights,
        "policy": first,
        "other_policy": first,
        "first_policy": first,
        "client_policies": np.broadcast_to(first, (N, S, A)),
        "values": np.zeros(S),
        "other_values": np.zeros(S),
        "noise": np.zeros((1, N, S)),
        "preference": np.zeros((1, N, S, A)),
        "delta": np.zeros(N),
        "epsilon": np.zeros(N),
        "participation": np.ones(N),
        "value_aggregation": 0.0,
        "policy_aggregation": 0.0,
        "shift": np.zeros((1, S)),
        "target": first[None],
        "draw_probabilities": np.full(N, 1 / N),
    }
    unknown = sorted(set(given) - set(arrays))
    require(not unknown, "arrays", unknown, f"must be among {', '.join(arrays)}")
    return {name: np.asarray(array, np.float64)[None] for name, array in (arrays | given).items()}


def vary(generator: np.random.Generator, instances: Instances) -> Instances:
    """Instances near the given ones: mixtures with new draws, which stay valid because all sets are convex."""
    count, N, S, A, _ = instances["transitions"].shape
    fresh = draw(generator, Size(N, S, A), count)
    varied = {}
    for name, old in instances.items():
        one_each = (count,) + (1,) * (old.ndim - 1)
        touched = generator.random(one_each) < 0.4
        parts = generator.random((*old.shape[:-1], 1) if name in DISTRIBUTIONS else old.shape)
        step = generator.choice([0.02, 0.1, 0.5, 1.0], one_each)
        mixed = (1 - step) * old + step * fresh[name]
        varied[name] = np.where(touched & (parts < generator.choice([0.2, 1.0])), mixed, old)
    varied["participation"] = (varied["participation"] > 0.5) * 1.0
    alone = varied["participation"].sum(-1) == 0
    varied["participation"][alone] = instances["participation"][alone]
    return varied


def _rows(generator: np.random.Generator, shape: tuple[int, ...], size: int) -> Array:
    """Distributions that are, per instance, dense, close to one outcome, on two outcomes, or on one outcome."""
    dense = generator.dirichlet(np.ones(size), shape)
    corner = np.eye(size)[generator.integers(size, size=shape)]
    other = np.eye(size)[generator.integers(size, size=shape)]
    share = generator.random((*shape, 1))
    kind = generator.integers(4, size=(shape[0],) + (1,) * len(shape))
    return np.choose(kind, [dense, 0.95 * corner + 0.05 * dense, share * corner + (1 - share) * other, corner])


def _levels(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers in [0, 1] that are, per instance, arbitrary or only 0 and 1."""
    numbers = generator.random(shape)
    return np.where(generator.random((shape[0],) + (1,) * (len(shape) - 1)) < 0.5, numbers, np.round(numbers))


def _discounts(generator: np.random.Generator, count: int) -> Array:
    middle, low, high = generator.uniform([[0.05], [0.001], [0.95]], [[0.95], [0.05], [0.995]], (3, count))
    return np.choose(generator.choice(3, count, p=[0.7, 0.15, 0.15]), [middle, low, high])


def _errors(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Sizes of errors as shares of the largest value: 0, or between 0.001 and 0.5."""
    sizes = 10 ** generator.uniform(-3, np.log10(0.5), shape)
    return np.where(generator.random((shape[0], 1)) < 0.4, 0, sizes)


def _aggregation_errors(generator: np.random.Generator, count: int) -> Instances:
    """Sizes of both aggregation errors. Most instances have none, so that enough of them have no error at all."""
    aggregates = generator.random(count) < 0.3
    sizes = {name: _errors(generator, (count, 1))[:, 0] for name in ("value_aggregation", "policy_aggregation")}
    return {name: size * aggregates for name, size in sizes.items()}


def _participation(generator: np.random.Generator, count: int, N: int) -> Array:
    mask = generator.random((count, N)) < 0.5
    mask[np.arange(count), generator.integers(N, size=count)] = True
    return mask * 1.0


def _draw_probabilities(generator: np.random.Generator, count: int, N: int) -> Array:
    """Distributions over the clients that leave no client out."""
    return 0.9 * _rows(generator, (count,), N) + 0.1 / N


class Case:
    """Instances of one size, and quantities that claims share, computed at their first use."""

    def __init__(self, instances: Instances) -> None:
        self.instances = instances
        self._runs: dict[tuple[int, bool, bool], FapiRun] = {}
        P = instances["transitions"]
        self.federation = Federation(
            P / P.sum(-1, keepdims=True),
            instances["rewards"] * REWARD_BOUND,
            instances["discount"],
            instances["start"] / instances["start"].sum(-1, keepdims=True),
            instances["weights"] / instances["weights"].sum(-1, keepdims=True),
            np.full(len(P), REWARD_BOUND),
        )

    def __len__(self) -> int:
        return len(self.instances["discount"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.instances[name]

    @cached_property
    def setting(self) -> bounds.Setting:
        return bounds.setting_of(self.federation)

    @cached_property
    def largest(self) -> Array:
        """R_max / (1 - gamma)."""
        return self.setting.largest_value

    @cached_property
    def has_errors(self) -> Mask:
        """Whether any error is injected into the runs of an instance."""
        clients = self["delta"].any(-1) | self["epsilon"].any(-1)
        return clients | (self["value_aggregation"] > 0) | (self["policy_aggregation"] > 0)

    @cached_property
    def values(self) -> Array:
        """A value function in [0, R_max / (1 - gamma)]."""
        return self["values"] * self.largest[:, None]

    @cached_property
    def other_values(self) -> Array:
        return self["other_values"] * self.largest[:, None]

    @cached_property
    def client_values(self) -> Array:
        """V_n^pi of the policy of the instance."""
        return evaluate(self.federation.clients, self["policy"][:, None])

    @cached_property
    def average_values(self) -> Array:
        return average_values(self.federation, self["policy"])

    @cached_property
    def imaginary_values(self) -> Array:
        return evaluate(self.federation.imaginary, self["policy"])

    @cached_property
    def selected(self) -> Array:
        """q'_m of the clients that take part."""
        return selected_weights(self.federation.weights, self["participation"] > 0.5)

    @cached_property
    def draw_probabilities(self) -> Array:
        """r_n, the probability to draw client n."""
        return self["draw_probabilities"] / self["draw_probabilities"].sum(-1, keepdims=True)

    @cached_property
    def learning_tables(self) -> Array:
        """D_n A_n of the policy of the instance, by discounted visitation, which is unique for every federation."""
        clients, policy = self.federation.clients, self["policy"][:, None]
        return discounted_visitation(clients, policy)[..., None] * advantages(clients, policy)

    @cached_property
    def best_values(self) -> Array:
        """max(V-bar^{pi*}, V-bar^{pi_I*}) per state, with `good_policy` for pi*."""
        imaginary = average_values(self.federation, optimal_policy(self.federation.imaginary))
        return np.maximum(imaginary, average_values(self.federation, good_policy(self.federation)))

    @cached_property
    def imaginary_optimum(self) -> Array:
        return evaluate(self.federation.imaginary, optimal_policy(self.federation.imaginary))

    def run(self, algorithm: int, *, partial: bool = False, large: bool = False) -> FapiRun:
        """FAPI with the errors of the instance. `large`: larger evaluation errors, no clipping, fewer rounds."""
        key = (algorithm, partial, large)
        if key not in self._runs:
            self._runs[key] = self._run(self.federation, algorithm, partial, large)
        return self._runs[key]

    def _run(
        self, federation: Federation, algorithm: int, partial: bool, large: bool = False, aggregates: bool = True
    ) -> FapiRun:
        N = federation.num_clients
        scale = self.largest[:, None]
        faults = Faults(
            delta=self["delta"][:, :N] * scale * (LARGE_ERROR if large else 1),
            epsilon=self["epsilon"][:, :N] * scale,
            value_aggregation=self["value_aggregation"] * self.largest * aggregates,
            policy_aggregation=self["policy_aggregation"] * aggregates,
            noise=np.moveaxis(self["noise"][:, :, :N], 1, 0),
            preference=np.moveaxis(self["preference"][:, :, :N], 1, 0),
            shift=np.moveaxis(self["shift"], 1, 0),
            target=np.moveaxis(self["target"], 1, 0),
            clip=not large,
        )
        return run_fapi(
            federation,
            CYCLE if large else ROUNDS,
            algorithm=1 if algorithm == 1 else 2,
            participation=self["participation"][:, :N] > 0.5 if partial else None,
            faults=faults,
            start=self["first_policy"],
        )

    @cached_property
    def centralised_run(self) -> FapiRun:
        """Approximate policy iteration in the imaginary MDP. A single client has nothing to aggregate."""
        return self._run(single(self.federation), 1, False, aggregates=False)

    @cached_property
    def homogeneous(self) -> Federation:
        """The federation in which all clients have the transitions of client 0."""
        f = self.federation
        P = np.broadcast_to(f.transitions[:, :1], f.transitions.shape)
        return Federation(P, f.rewards, f.discount, f.start, f.weights, f.reward_bound)

    def homogeneous_run(self, partial: bool) -> FapiRun:
        return self._run(self.homogeneous, 1, partial)


def take(instances: Instances, rows: np.ndarray) -> Instances:
    """The instances with the given indices."""
    return {name: array[rows] for name, array in instances.items()}


def save_instance(path: Path, claim: str, instance: Instances) -> None:
    """Store one instance and the name of its claim as plain arrays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"claim": np.array(claim), **instance}
    np.savez_compressed(path, **arrays)


def load_instance(path: Path) -> tuple[str, Instances]:
    """Read the claim and the instance of a file that `save_instance` wrote."""
    require(path.is_file(), "instance", str(path), "must be a file that fedpohcs theory verify wrote")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        claim = str(arrays.pop("claim"))
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"instance (={str(path)!r}) is not a file that fedpohcs theory verify wrote.") from error
    missing = sorted(set(draw(np.random.default_rng(0), Size(2, 2, 1), 1)) - set(arrays))
    require(not missing, "instance", str(path), f"lacks {', '.join(missing)}")
    return claim, arrays
