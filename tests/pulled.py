"""A learner whose loss is its distance to what the server sends, and a server optimiser that sends it: both exact."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.learning import DQNConfig
from fedpohcs.core.registries import LEARNERS, OPTIMISERS
from fedpohcs.core.trajectory import Trajectory
from fedpohcs.core.types import Params
from fedpohcs.learners.base import Broadcast, Learned, Progress
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
    """Plays like DQN, and follows the gradient of half the squared distance to the bias that the server sends."""

    info = Info._fields

    def learn(self, sent: Broadcast, now: Progress, trajectory: Trajectory, draws: Any) -> Learned:
        def loss(params: QParams) -> Any:
            return ((params.policy.layers[-1].bias - sent.extra["goal"]) ** 2).sum() / 2

        value, gradient = jax.value_and_grad(loss)(now.params)
        params = jax.tree.map(lambda x, slope: x - RATE * slope, now.params, gradient)
        return Learned(now._replace(params=params), trajectory.valid.sum(), Info(value))


def pulling(settings: Any) -> ServerOptimiser:
    """Takes every proposal; its goal is one farther in each round."""

    def init(params: Params) -> dict[str, np.ndarray]:
        return {"goal": np.arange(len(bias_of(params)), dtype=np.float32)}

    def apply(state: dict[str, np.ndarray], previous: Params, proposal: Proposal) -> tuple[Params, Any]:
        return proposal.params, {"goal": state["goal"] + 1}

    return IDENTITY._replace(init=init, apply=apply, sends=lambda state: state)


def bias_of(params: Params) -> np.ndarray:
    return np.asarray(params.policy.layers[-1].bias)


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
    goal, bias = training.state.optimiser["goal"], bias_of(training.state.params)
    kept = (1 - RATE) ** (ITERATIONS - 1)
    rounds = training.remaining_rounds()
    next(rounds)
    for record in rounds:
        loss = ((bias - goal) * kept) @ ((bias - goal) * kept) / 2
        assert len(record.selection.client) > 1
        np.testing.assert_allclose(record.updates_info["loss"], loss, rtol=1e-5)
        bias = goal + (bias - goal) * kept * (1 - RATE)
        np.testing.assert_allclose(bias_of(training.state.params), bias, rtol=1e-5)
        goal = goal + 1
    assert training.state.round == 2
