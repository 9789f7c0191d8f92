"""Learners with a replay buffer in every executor: together as alone, resumed as unbroken, by steps or episodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.learning import as_kind
from fedpohcs.core.presets import preset
from fedpohcs.execution import make_executor
from fedpohcs.execution.devices import configure_jax
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.worlds.tabular import TabularWorlds

TINY: dict[str, Any] = {
    **{"hidden_sizes": (8,), "local_iterations": 2, "steps_per_iteration": 20, "updates_per_iteration": 4},
    **{"batch_size": 8, "replay_size": 300, "filter_warmup_steps": 0},
}
FEW = FederationConfig(num_clients=3, num_candidates=2, num_selected=2, evaluation_episodes=2)
WORLDS = {"dqn": "tabular", "dcpi": "tabular"}  # all others: continuous actions
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("dqn", "ddpg", "td3", "dcpi")]


def tiny(kind: str, world: str | None = None, **changes: Any) -> ExperimentConfig:
    config = preset(world or WORLDS.get(kind, "mountain-cars"), selector="fedavg")
    learner = replace(as_kind(config.learner, kind), **(TINY | changes))
    return replace(config, federation=FEW, learner=learner, rounds=2)


def assert_close(one: Any, other: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), one, other)


def trained(config: ExperimentConfig, clients: list[int]) -> Any:
    """Parameters and memory of some clients after two rounds that start from the same weights."""
    configure_jax(config.groups)
    executor = make_executor(config)
    params = executor.initial_params()
    updates = [executor.train(params, number, np.array(clients)) for number in range(2)][-1]
    memory = jax.tree.map(lambda x: x[clients], executor.state.memory)
    executor.close()
    return updates.params, memory


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sac", "td3", "ddpg", "dcpi"])
def test_clients_learn_together_as_one_by_one_and_whoever_else_learns(kind: str) -> None:
    config = tiny(kind)
    together, apart = (trained(replace(config, executor=way), [0, 2]) for way in ("vectorised", "one-by-one"))
    assert_close(together, apart)
    assert_close(jax.tree.map(lambda x: x[1:], together), trained(config, [2]))


@pytest.mark.parametrize("kind", ["sac", *SLOW])
def test_a_resumed_run_equals_an_unbroken_one_to_the_byte(kind: str, tmp_path: Path) -> None:
    config = tiny(kind)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=1), tmp_path / "parts")
    resume_experiment(tmp_path / "parts", rounds=2)
    for name in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_number_of_episodes_may_decide_when_clients_merge() -> None:
    """Episodes of this world last to the time limit. By steps there would be one per local iteration, of two rounds."""
    for episodes, played in ((None, 1), (3, 3)):
        _, memory = trained(tiny("dqn", episodes_per_iteration=episodes), [1])
        assert memory.written.tolist() == [2 * 2 * played * TabularWorlds.horizon]


@pytest.mark.parametrize("episodes", [2, pytest.param(None, marks=pytest.mark.slow)])
def test_clients_of_a_world_outside_jax_learn_the_same_whoever_else_learns(episodes: int | None) -> None:
    pytest.importorskip("mujoco")
    config = tiny("td3", "hoppers", noise_kind="ou", episodes_per_iteration=episodes)
    together, alone = trained(config, [0, 2]), trained(config, [2])
    assert_close(jax.tree.map(lambda x: x[1:], together), alone)
    actions = alone[1].replay.action[0, : int(alone[1].written[0])]
    assert np.abs(actions).max() <= 1
    assert np.abs(actions).std() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "env"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_clients_in_worker_processes_learn_the_same_whoever_else_learns(kind: str, env: str) -> None:
    pytest.importorskip("gymnasium")
    config = tiny(kind, f"gym/{env}")
    together, alone = trained(config, [0, 2]), trained(config, [2])
    assert_close(jax.tree.map(lambda x: x[1:], together), alone)
    assert alone[1].written[0] > 0
