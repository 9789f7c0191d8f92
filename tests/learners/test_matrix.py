"""Value learners wherever clients may run: side by side, one by one, in worker processes, and after a restart.

`tests/deploy/test_learners.py` and `test_methods.py` have the same over Flower.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.core.algorithms import with_algorithm
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.learning import OffPolicyConfig, as_kind
from fedpohcs.core.presets import preset
from fedpohcs.runs.experiment import resume_experiment, run_experiment, start_training
from fedpohcs.worlds.control import ControlConfig

DISCRETE, CONTINUOUS = ("dqn", "dcpi", "qavg", "sarsa"), ("ddpg", "td3", "sac")
CHEAP = {"qavg"}  # the others take long to compile
REPLAY: dict[str, Any] = {"updates_per_iteration": 4, "batch_size": 8, "replay_size": 300, "hidden_sizes": (8,)}
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in CHEAP)) for kind in DISCRETE + CONTINUOUS]
)


def tiny(kind: str, **changes: Any) -> ExperimentConfig:
    """Three clients in a traced world, who all train, with filters that change."""
    if kind in DISCRETE:
        config = preset("tabular", "high", selector="full")
    else:
        config = replace(preset("pendulums", "high", selector="full"), scenario=ControlConfig(horizon=20))
    return replace(shrunk(config, kind), **changes)


def shrunk(config: ExperimentConfig, kind: str) -> ExperimentConfig:
    few = replace(config.federation, num_clients=3, num_candidates=3, num_selected=3, evaluation_episodes=2)
    learner = as_kind(config.learner, kind)
    learner = replace(learner, **(REPLAY if isinstance(learner, OffPolicyConfig) else {}))
    short = {"local_iterations": 2, "steps_per_iteration": 20, "filter_warmup_steps": 0}
    return replace(config, rounds=2, federation=few, learner=replace(learner, **short))


def assert_same_files(one: Path, other: Path) -> None:
    for name in ("rounds.csv", "clients.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    mine, theirs = (np.load(folder / "policy.npz") for folder in (one, other))
    assert mine.files == theirs.files
    for name in mine.files:
        np.testing.assert_array_equal(mine[name], theirs[name])


def goes_on(config: ExperimentConfig, folder: Path) -> None:
    """A run of two rounds and one that was taken up again after its first have the same files."""
    run_experiment(config, folder / "whole")
    run_experiment(replace(config, rounds=1), folder / "parts")
    resume_experiment(folder / "parts", rounds=2)
    assert_same_files(folder / "whole", folder / "parts")


@kinds
def test_clients_one_by_one_learn_what_they_learn_together(kind: str) -> None:
    config = tiny(kind)
    runs = [start_training(one) for one in (config, replace(config, executor="one-by-one"))]
    start = runs[0].state.params
    for one, other in zip(*(run.remaining_rounds() for run in runs), strict=True):
        np.testing.assert_array_equal(one.train_steps, other.train_steps)
        np.testing.assert_allclose(one.evaluation.mean_return, other.evaluation.mean_return, rtol=1e-3)
    ends = [run.state.params for run in runs]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-2, atol=1e-4), *ends)
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (start, ends[0])), strict=True))


@kinds
def test_a_run_that_goes_on_writes_the_bytes_of_one_that_never_stopped(kind: str, tmp_path: Path) -> None:
    """In the second round clients learn from buffers, target networks and moments that were stored."""
    goes_on(tiny(kind), tmp_path)


@pytest.mark.slow
def test_memories_that_are_reset_do_not_survive_a_restart_either(tmp_path: Path) -> None:
    config = with_algorithm(tiny("dqn"), "dqnavg")
    goes_on(shrunk(config, "dqn"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DISCRETE + CONTINUOUS)
def test_in_worker_processes_a_run_that_goes_on_writes_the_same_bytes(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    env = "CartPole-v1" if kind in DISCRETE else "Pendulum-v1"
    goes_on(shrunk(preset(f"gym/{env}", selector="full"), kind), tmp_path)
