"""A learner whose loss is its distance to what the server sends, and a server optimiser that sends it: both exact."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.learning import DQNConfig
from fedpohcs.core.registries import LEARNERS, OPTIMISERS
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.trees import named_arrays, tree_like
from fedpohcs.core.types import Params
from fedpohcs.learners.base import Broadcast, IterationResult, Progress
from fedpohcs.learners.dqn import DQN, QParams
from fedpohcs.runs.experiment import Training
from fedpohcs.server.optimisers import IDENTITY, Proposal, ServerOptimiser

RATE, ITERATIONS = 0.25, 3


@dataclass(frozen=True)
class PulledConfig(DQNConfig):
    algorithm: ClassVar[str] = f"{__name__}:Pulled"

    kind: str = "pulled"


class Info(NamedTuple):
    loss: Any


class Pulled(DQN):
    """Plays like DQN, and follows the gradient of half the squared distance to the weights that the server sends."""

    info = Info._fields

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> IterationResult:
        goal = tree_like(now.params, sent.extra, "goal/")

        def loss(params: QParams) -> Any:
            return sum(((x - y) ** 2).sum() / 2 for x, y in zip(*map(jax.tree.leaves, (params, goal)), strict=True))

        value, gradient = jax.value_and_grad(loss)(now.params)
        params = jax.tree.map(lambda x, slope: x - RATE * slope, now.params, gradient)
        return IterationResult(now._replace(params=params), trajectory.valid.sum(), Info(value))


def pulling(settings: Any) -> ServerOptimiser:
    """Takes every proposal; each weight of its goal is one larger in each round."""

    def init(params: Params) -> dict[str, np.ndarray]:
        arrays = named_arrays(params).items()
        return {name: np.arange(x.size, dtype=np.float32).reshape(x.shape) for name, x in arrays}

    def apply(state: dict[str, np.ndarray], previous: Params, proposal: Proposal) -> tuple[Params, Any]:
        return proposal.params, {name: array + 1 for name, array in state.items()}

    def sends(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {f"goal/{name}": array for name, array in state.items()}

    return IDENTITY._replace(init=init, apply=apply, sends=sends)


def vector_of(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays.values()])


def pulled_config(config: ExperimentConfig, monkeypatch: Any) -> ExperimentConfig:
    """The experiment with both, which are registered until the test ends."""
    monkeypatch.setitem(LEARNERS.entries, "pulled", PulledConfig)
    monkeypatch.setitem(OPTIMISERS.entries, "pulling", pulling)
    learner = PulledConfig(
        hidden_sizes=(),
        local_iterations=ITERATIONS,
        steps_per_iteration=64,
        filter_observations=False,
        filter_warmup_steps=0,
        replay_size=64,
        batch_size=8,
    )
    federation = replace(config.federation, server_optimiser="pulling", evaluation_episodes=1)
    return replace(config, learner=learner, federation=federation, selector="fedavg", rounds=2)


def assert_goal_reached_the_loss(training: Training) -> None:
    """Each local iteration goes a quarter of the way to the goal of its round, and reports the distance."""
    goal, weights = vector_of(training.state.optimiser), vector_of(named_arrays(training.state.params))
    kept = (1 - RATE) ** (ITERATIONS - 1)
    rounds = training.remaining_rounds()
    next(rounds)
    for record in rounds:
        loss = kept**2 * (weights - goal) @ (weights - goal) / 2
        assert len(record.selection.client) > 1
        np.testing.assert_allclose(record.updates_info["loss"], loss, rtol=1e-5)
        weights = goal + (weights - goal) * kept * (1 - RATE)
        np.testing.assert_allclose(vector_of(named_arrays(training.state.params)), weights, rtol=1e-4, atol=1e-5)
        goal = goal + 1
    assert training.state.round == 2
