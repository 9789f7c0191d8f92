"""What every world tells of itself, and what a traced one provides: physics as pure functions, and the population."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from fedpohcs.core.spaces import ContinuousActions, DiscreteActions

if TYPE_CHECKING:
    import jax

    from fedpohcs.core.config import ExperimentConfig

EnvParams = Any  # a pytree; with a leading client axis it is a population
EnvState = Any


class Transition(NamedTuple):
    """One step. Time limits are not the environment's business: `terminated` never means "out of time"."""

    state: EnvState
    observation: jax.Array
    reward: jax.Array
    terminated: jax.Array


class World(ABC):
    """A population of clients whose environments differ but look the same to a policy."""

    levels: ClassVar[tuple[str, ...]]
    observation_size: int
    actions: ContinuousActions | DiscreteActions
    horizon: int
    """Steps after which an episode is cut."""

    @classmethod
    def from_config(cls, config: ExperimentConfig) -> Any:
        """The world of an experiment. A world with settings of its own reads them here."""
        make: Any = cls
        return make(config.level, config.federation.num_clients)


class TracedWorld(World):
    """A Markov decision process whose physics is an argument, and N clients as one pytree of arguments.

    Randomness comes in as uniform numbers in [0, 1): the caller draws those of a whole rollout at once. Worlds of one
    class are equal, because they differ in their population alone, and that is data: compiled programs serve them all.
    """

    reset_noise: ClassVar[int]
    step_noise: ClassVar[int]
    population: EnvParams

    @abstractmethod
    def reset(self, noise: jax.Array, params: EnvParams) -> tuple[EnvState, jax.Array]:
        """A start state and its observation."""

    @abstractmethod
    def step(self, state: EnvState, action: jax.Array, noise: jax.Array, params: EnvParams) -> Transition:
        """The state that follows."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))
