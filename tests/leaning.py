"""A learner with a loss that can be worked by hand: half the squared distance to a number of the client's own.

The number is the mean reward of the first episodes that the client trains on, so clients differ; every local iteration
is one gradient step.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.learning import DQNConfig
from fedpohcs.core.registries import LEARNERS
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.dqn import DQN, QParams

RATE, ITERATIONS = 0.25, 3


@dataclass(frozen=True)
class LeaningConfig(DQNConfig):
    algorithm: ClassVar[str] = f"{__name__}:Leaning"

    kind: str = "leaning"


class Info(NamedTuple):
    goal: Any


class Leaning(DQN):
    """Plays like DQN, and steps a quarter of the way from its weights to the client's number."""

    info = Info._fields

    def init_memory(self, params: QParams) -> dict[str, Any]:
        return {"goal": jnp.float32(0), "known": jnp.float32(0)}

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        steps = trajectory.valid.sum()
        seen = jnp.where(trajectory.valid, trajectory.reward, 0).sum() / steps
        goal = jnp.where(now.memory["known"] > 0, now.memory["goal"], seen)
        params = jax.tree.map(lambda x: x + RATE * (goal - x), now.params)
        memory = {"goal": goal, "known": jnp.float32(1)}
        return IterationResult(now._replace(params=params, memory=memory), steps, Info(goal))


def leaning_config(config: ExperimentConfig, monkeypatch: Any, **federation: Any) -> ExperimentConfig:
    """The experiment with this learner, which is registered until the test ends."""
    monkeypatch.setitem(LEARNERS.entries, "leaning", LeaningConfig)
    learner = LeaningConfig(
        hidden_sizes=(),
        local_iterations=ITERATIONS,
        steps_per_iteration=64,
        filter_observations=False,
        filter_warmup_steps=0,
        replay_size=8,
        batch_size=8,
    )
    changed = replace(config.federation, evaluation_episodes=1, update_weights="clients", **federation)
    return replace(config, learner=learner, federation=changed, selector="fedavg", rounds=4)
