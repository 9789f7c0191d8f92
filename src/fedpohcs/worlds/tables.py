"""Published tabular federations as worlds: RandomMDPs, WindyCliffs and perturbed kernels; see `worlds.kernels`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fedpohcs.core.checks import require_not_negative
from fedpohcs.core.config import Placement
from fedpohcs.core.errors import require
from fedpohcs.core.lazy import LazyModule
from fedpohcs.core.scenario import WorldConfig
from fedpohcs.worlds import kernels
from fedpohcs.worlds.base import DiscreteActions, TracedWorld, Transition, with_held_out

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:  # the classes are read for options and help texts, which must not wait for JAX
    jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")

AT = "scenario."


class TableParams(NamedTuple):
    """The tables of a client, with probabilities as cumulative ones over the next state."""

    following: jax.Array  # [S, A, S]
    rewards: jax.Array  # [S, A]
    start: jax.Array  # [S]


class TableWorld(TracedWorld):
    """Finite MDPs with one-hot observations. Episodes end at the time limit only."""

    reset_noise = 1
    step_noise = 1

    def reset(self, noise: jax.Array, params: TableParams) -> tuple[jax.Array, jax.Array]:
        """A state of the start distribution."""
        state = _drawn(params.start, noise[0])
        return state, jax.nn.one_hot(state, self.observation_size)

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: TableParams) -> Transition:
        """The reward of state and action, and the next state."""
        following = _drawn(params.following[state, action], noise[0])
        seen = jax.nn.one_hot(following, self.observation_size)
        return Transition(following, seen, params.rewards[state, action], jnp.zeros((), bool))


def _drawn(cumulative: jax.Array, uniform: jax.Array) -> jax.Array:
    """The entry in whose interval a uniform number falls."""
    return jnp.minimum((uniform >= cumulative).sum(), cumulative.size - 1)


def _population(tables: kernels.Tables) -> TableParams:
    def for_all(shared: np.ndarray) -> jax.Array:
        return jnp.asarray(np.broadcast_to(shared, (len(tables.transitions), *shared.shape)), jnp.float32)

    following = jnp.asarray(np.cumsum(tables.transitions, axis=-1), jnp.float32)
    return TableParams(following, for_all(tables.rewards), for_all(np.cumsum(tables.start)))


@dataclass(frozen=True)
class RandomMDPsConfig(WorldConfig):
    """Settings of `random-mdps`."""

    tables_seed: int = 0
    """Seed of the tables. The seed of a run does not change them."""
    orthogonal: bool = False
    """Clients differ at all successors that the common transitions exclude, and nowhere else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(AT, self, "tables_seed")


class RandomMDPs(TableWorld):
    """Random decision processes with 5 states and 5 actions (Jin et al., 2022): P_n = (1 - e) P_0 + e U_n.

    The level is e. Held-out clients are further draws.
    """

    Config = RandomMDPsConfig
    shares: ClassVar[dict[str, float]] = {"none": 0.0, "low": 0.2, "medium": 0.6, "high": 1.0}
    levels: ClassVar[tuple[str, ...]] = tuple(shares)
    held_out = True
    observation_size = 5
    actions = DiscreteActions(num_choices=5)
    horizon = 50

    def __init__(
        self, level: str, num_clients: int, num_held_out: int = 0, *, settings: RandomMDPsConfig | None = None
    ) -> None:
        given = settings or RandomMDPsConfig()
        self.tables = kernels.random_mdps(
            num_clients + num_held_out,
            heterogeneity=self.shares[level],
            orthogonal=given.orthogonal,
            seed=given.tables_seed,
        )
        self.population = _population(self.tables)


class WindyCliffs(TableWorld):
    """A grid of 4 x 4 with a cliff and a wind of different strength (Jin et al., 2022), ascending with the client's id.

    The level is the range of the wind. A wind of 1, the strongest, makes a third of the moves fail.
    """

    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "none": (0.5, 0.5),
        "low": (0.4, 0.6),
        "medium": (0.2, 0.8),
        "high": (0.0, 1.0),
    }
    levels: ClassVar[tuple[str, ...]] = tuple(ranges)
    held_out = extrapolates = True
    observation_size = 16
    actions = DiscreteActions(num_choices=4)
    horizon = 100

    def __init__(
        self, level: str, num_clients: int, num_held_out: int = 0, *, placement: Placement = "between"
    ) -> None:
        low, high = self.ranges[level]
        winds = with_held_out(np.linspace(low, high, num_clients), num_held_out, placement)
        inside = bool(((winds >= 0) & (winds <= 1)).all())
        rule = f"has no winds to offer at the level {level!r}, which has them all"
        require(inside, "federation.held_out_placement", placement, rule, "Use the level medium.")
        self.tables = kernels.windy_cliffs(winds)
        self.population = _population(self.tables)


@dataclass(frozen=True)
class PerturbedKernelsConfig(WorldConfig):
    """Settings of `perturbed-kernels`."""

    tables_seed: int = 0
    """Seed of the tables. The seed of a run does not change them."""
    transition_noise: float | None = None
    """e_p, the size of the perturbation of transitions, in place of that of the level."""
    reward_noise: float = 0.0
    """e_r, the size of the perturbation of rewards. With 0, clients differ in transitions alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_not_negative(AT, self, "tables_seed", "reward_noise")
        if self.transition_noise is not None:
            require_not_negative(AT, self, "transition_noise")


class ChainParams(NamedTuple):
    """The tables of a client whose actions shift the next state."""

    following: jax.Array  # [S, S], cumulative, of action 0
    rewards: jax.Array  # [S, A]


class PerturbedKernels(TracedWorld):
    """A nominal MDP of 100 states and 100 actions, which client 0 has, and perturbed copies (Zhang et al., 2024).

    Action a shifts the next state by a. An observation tells the state modulo 5 only: the features of the publication.
    Held-out clients are further draws.
    """

    Config = PerturbedKernelsConfig
    noises: ClassVar[dict[str, float]] = {"none": 0.0, "low": 0.1, "medium": 0.5, "high": 2.0}
    levels: ClassVar[tuple[str, ...]] = tuple(noises)
    held_out = True
    num_states = 100
    observation_size = 5
    actions = DiscreteActions(num_choices=100)
    horizon = 50
    reset_noise = 1
    step_noise = 1

    def __init__(
        self, level: str, num_clients: int, num_held_out: int = 0, *, settings: PerturbedKernelsConfig | None = None
    ) -> None:
        given = settings or PerturbedKernelsConfig()
        noise = self.noises[level] if given.transition_noise is None else given.transition_noise
        self.chains = kernels.perturbed_chains(
            num_clients + num_held_out, transition_noise=noise, reward_noise=given.reward_noise, seed=given.tables_seed
        )
        following = np.cumsum(self.chains.chains, axis=-1)
        self.population = ChainParams(
            jnp.asarray(following, jnp.float32), jnp.asarray(self.chains.rewards, jnp.float32)
        )

    def reset(self, noise: jax.Array, params: ChainParams) -> tuple[jax.Array, jax.Array]:
        """A state, drawn uniformly."""
        del params
        state = jnp.minimum((noise[0] * self.num_states).astype(jnp.int32), self.num_states - 1)
        return state, self._seen(state)

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: ChainParams) -> Transition:
        """The reward of state and action, and the next state. Episodes end at the time limit only."""
        following = (_drawn(params.following[state], noise[0]) + action) % self.num_states
        return Transition(following, self._seen(following), params.rewards[state, action], jnp.zeros((), bool))

    def _seen(self, state: jax.Array) -> jax.Array:
        return jax.nn.one_hot(state % self.observation_size, self.observation_size)
