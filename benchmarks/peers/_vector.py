"""The work of the other libraries' clients, for fedpohcs: move a vector of 4 numbers by one step towards one's own.

An episode has one step, and its observation is the client's number, 4 times.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs import LEARNERS, WORLDS, ExperimentConfig, FederationConfig, Learner, LearningConfig
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.distributions import Categorical
from fedpohcs.worlds.base import DiscreteActions, TracedWorld, Transition

STEP = 0.1


class Numbers(TracedWorld):
    """Client n sees the number n."""

    levels: ClassVar[tuple[str, ...]] = ("all",)
    thresholds = (0.0, 1.0)
    observation_size = 4
    actions = DiscreteActions(1)
    horizon = 1
    reset_noise = step_noise = 0

    def __init__(self, level: str, num_clients: int) -> None:
        self.population = jnp.repeat(jnp.arange(num_clients, dtype=jnp.float32)[:, None], 4, axis=1)

    def reset(self, noise: jax.Array, params: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The client's number."""
        return params, params

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: jax.Array) -> Transition:
        """The only step of an episode."""
        return Transition(state, state, jnp.float32(0), terminated=jnp.ones((), bool))


class Weights(NamedTuple):
    """What is federated."""

    vector: jax.Array


class Nothing(NamedTuple):
    """What a local iteration reports."""


@dataclass(frozen=True)
class VectorConfig(LearningConfig):
    """One step, without filters."""

    algorithm: ClassVar[str] = f"{__name__}:Vector"

    kind: str = "vector"
    local_iterations: int = 1
    steps_per_iteration: int = 1
    filter_observations: bool = False
    filter_rewards: bool = False
    filter_warmup_steps: int = 0


class OnlyAction(NamedTuple):
    """An actor without a choice."""

    def act(self, observation: jax.Array, noise: jax.Array) -> jax.Array:
        """Action 0."""
        return jnp.zeros(observation.shape[:-1], jnp.int32)


class Vector(Learner):
    """A gradient step on half the mean square distance to the observation."""

    info = Nothing._fields
    records_next = False

    def init_params(self, key: jax.Array) -> Weights:
        """Zeros, as those of the other libraries."""
        return Weights(jnp.zeros(4))

    def init_memory(self, params: Weights) -> Any:
        """None."""
        return ()

    def actor(self, params: Weights, filters: Any, schedule: Any, *, training: bool) -> Any:
        """The only action."""
        return OnlyAction()

    def distribution(self, params: Weights, observation: jax.Array) -> Categorical:
        """The only action."""
        return Categorical(observation[..., :1])

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        """The step."""
        gradient = (now.params.vector - trajectory.observation[0, 0]) / 4
        after = now._replace(params=Weights(now.params.vector - STEP * gradient))
        return IterationResult(after, trajectory.valid.sum(), Nothing())


LEARNERS["vector"] = VectorConfig
WORLDS["numbers"] = f"{__name__}:Numbers"


def vector_config(clients: int, selected: int, rounds: int) -> ExperimentConfig:
    """K of N clients train in every round; only round 0 is evaluated. One group: so little work needs one core."""
    federation = FederationConfig(clients, selected, selected, evaluation_episodes=1, evaluation_every=rounds)
    return ExperimentConfig(
        world="numbers",
        level="all",
        selector="fedavg",
        rounds=rounds,
        groups=1,
        federation=federation,
        learner=VectorConfig(),
    )


def expected(clients: int, drawn: list[np.ndarray]) -> np.ndarray:
    """The vector after rounds in which these clients trained, for a check of the driver."""
    vector = np.zeros(4)
    for some in drawn:
        vector = np.mean([vector - STEP * (vector - client) / 4 for client in some], axis=0)
    return vector
