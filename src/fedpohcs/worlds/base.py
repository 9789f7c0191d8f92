"""The interface of worlds, and of traced worlds: physics as pure functions, and a population of clients."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedpohcs.core.config import ExperimentConfig, Placement
from fedpohcs.core.scenario import WorldConfig
from fedpohcs.core.spaces import ContinuousActions, DiscreteActions
from fedpohcs.core.types import Reference

if TYPE_CHECKING:
    import jax

EnvParams = Any  # a pytree; with a leading client axis it is a population
EnvState = Any


class Transition(NamedTuple):
    """The outcome of one step. `terminated` never means "out of time": the package applies the time limit."""

    state: EnvState
    observation: jax.Array
    reward: jax.Array
    terminated: jax.Array


class World(ABC):
    """A population of clients whose environments differ, but have the same observations and actions.

    The constructor takes the level and the number of clients; then the number of held-out clients if `held_out` is
    True, and their `placement=` if `extrapolates` is True; and `settings=`, an instance of `Config`, if that has
    fields. Importing the class must load neither JAX nor a simulator, because options and help texts are read from it.
    """

    Config: ClassVar[type[WorldConfig]] = WorldConfig
    """Dataclass with the settings of this world alone, set as `scenario` in a config."""
    levels: ClassVar[tuple[str, ...]]
    """Names of the levels of heterogeneity."""
    thresholds: ClassVar[tuple[float, ...]] = ()
    """Mean returns worth reaching, for statistics. Empty: statistics derive some from the runs."""
    painter: ClassVar[str | None] = None
    """Where the `worlds.pictures.Painter` of this world is, `module:attribute`. None: it cannot be drawn."""
    held_out: ClassVar[bool] = False
    """Whether the world can have held-out clients. Their ids follow those of the N clients that train."""
    extrapolates: ClassVar[bool] = False
    """Whether held-out clients can be placed beyond the range of those that train; see `with_held_out`."""
    observation_size: int
    actions: ContinuousActions | DiscreteActions
    horizon: int
    """Steps after which an episode is cut."""

    @classmethod
    def check_settings(cls, settings: Any) -> None:
        """Refuse settings that depend on the world, before anything is written. JAX is not loaded yet."""
        del settings  # most worlds have nothing to refuse

    @classmethod
    def from_config(cls, config: ExperimentConfig) -> Any:
        """The world of an experiment."""
        make: Any = cls
        federation = config.federation
        held_out = [federation.held_out_clients] if cls.held_out else []
        named: dict[str, Any] = {"settings": config.scenario} if dataclasses.fields(cls.Config) else {}
        if cls.extrapolates:
            named["placement"] = federation.held_out_placement
        return make(config.level, federation.num_clients, *held_out, **named)

    @classmethod
    def reference(cls, config: ExperimentConfig) -> Reference | None:
        """Known returns of a fixed way to act for runs of this config, shown in tables and figures. None: unknown."""
        del config
        return None


class TracedWorld(World):
    """A Markov decision process whose physical parameters are an argument, and the parameters of N clients as a pytree.

    Random numbers are an argument, too: uniform in [0, 1), drawn by the caller for a whole rollout. Worlds of one class
    compare equal, because they differ in `population` alone, and share their compiled programs.
    """

    reset_noise: ClassVar[int]
    step_noise: ClassVar[int]
    population: EnvParams

    @abstractmethod
    def reset(self, noise: jax.Array, params: EnvParams) -> tuple[EnvState, jax.Array]:
        """A start state and its observation."""

    @abstractmethod
    def step(self, state: EnvState, action: jax.Array, noise: jax.Array, params: EnvParams) -> Transition:
        """The transition to the next state."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


def with_held_out(values: np.ndarray, num_held_out: int, placement: Placement = "between") -> np.ndarray:
    """Ascending parameters of the clients that train, followed by those of held-out clients.

    `between`: they are spread evenly over the gaps between neighbours. One per gap lies at the midpoint, several divide
    the gap evenly. `beyond`: they are spread evenly over a quarter of the range below the lowest value and a quarter
    above the highest; but no farther than half the way to 0, so that masses and lengths stay positive. A single client
    has neither neighbour nor range: the held-out clients then equal it.

    Example:
        >>> with_held_out(np.array([0.0, 1.0, 2.0]), 2).tolist()
        [0.0, 1.0, 2.0, 0.5, 1.5]
        >>> with_held_out(np.array([-1.0, 0.0, 1.0]), 2, "beyond").tolist()
        [-1.0, 0.0, 1.0, -1.25, 1.25]
    """
    place = _between if placement == "between" else _beyond
    return np.concatenate([values, place(values, num_held_out)])


def _between(values: np.ndarray, count: int) -> np.ndarray:
    number = np.arange(count)
    gap = ((number + 0.5) * max(len(values) - 1, 1) / max(count, 1)).astype(int)
    _, first, inverse, in_gap = np.unique(gap, return_index=True, return_inverse=True, return_counts=True)
    share = (number - first[inverse] + 0.5) / in_gap[inverse]
    low, high = values[gap], values[np.minimum(gap + 1, len(values) - 1)]
    return low + share * (high - low)


def _beyond(values: np.ndarray, count: int) -> np.ndarray:
    low, high = values[0], values[-1]
    reach = (high - low) / 4
    below = min(reach, low / 2) if low > 0 else reach
    above = min(reach, -high / 2) if high < 0 else reach
    covered = (np.arange(count) + 0.5) / max(count, 1) * (below + above)  # of both sides, put end to end
    return np.where(covered < below, low - below + covered, high + covered - below)
