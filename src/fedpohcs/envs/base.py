"""What a traced world provides: physics as pure functions of a client's parameters, and the population itself."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax

EnvParams = Any  # a pytree; with a leading client axis it is a population
EnvState = Any


class ContinuousActions(NamedTuple):
    """A box of `size` numbers; policies may exceed it, environments clip."""

    size: int
    low: float
    high: float


class DiscreteActions(NamedTuple):
    """One of so many choices."""

    num_choices: int


class Transition(NamedTuple):
    """One step. Time limits are not the environment's business: `terminated` never means "out of time"."""

    state: EnvState
    observation: jax.Array
    reward: jax.Array
    terminated: jax.Array


class TracedWorld(ABC):
    """A Markov decision process whose physics is an argument, and N clients as one pytree of arguments.

    Randomness comes in as uniform numbers in [0, 1): the caller draws those of a whole rollout at once. Worlds of one
    class are equal, because they differ in their population alone, and that is data: compiled programs serve them all.
    """

    levels: ClassVar[tuple[str, ...]]
    observation_size: ClassVar[int]
    actions: ClassVar[ContinuousActions | DiscreteActions]
    horizon: ClassVar[int]
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
