"""Exported policies act as the code that trains does, in ONNX Runtime and in NumPy, for every world and learner."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import logsumexp

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.learning import DQNConfig, OffPolicyConfig, QAvgConfig, as_kind, learner_class
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import LEARNERS, WORLDS
from fedpohcs.execution import make_executor
from fedpohcs.execution.clients import LocalExecutor
from fedpohcs.learners.networks import apply_layers
from fedpohcs.runs.export import export_policy, load_run_policy
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.policy import load_policy
from fedpohcs.worlds.gym import GymConfig

onnxruntime: Any = pytest.importorskip("onnxruntime")


def small(name: str, **changes: Any) -> ExperimentConfig:
    config = preset(name)
    federation = replace(config.federation, num_clients=3, num_candidates=2, num_selected=1, evaluation_episodes=1)
    learner = replace(config.learner, filter_warmup_steps=500)
    return replace(config, federation=federation, **{"learner": learner, **changes})


def gym(env: str, **changes: Any) -> ExperimentConfig:
    return small("gym", **changes, scenario=GymConfig(env=env))


SQUASHED = ("ddpg", "td3", "sac")
TINY: dict[str, Any] = {"replay_size": 8, "hidden_sizes": (8,), "filter_warmup_steps": 500}
NOT_EXPORTED = {kind for kind in LEARNERS if not learner_class(kind).exportable}
CONFIGS = {
    "mountain-cars": small("mountain-cars"),
    "tabular": small("tabular"),
    "hoppers": small("hoppers"),
    "walkers": small("walkers"),
    "half-cheetahs": small("half-cheetahs"),
    "no hidden layer": small("mountain-cars", learner=replace(preset("mountain-cars").learner, hidden_sizes=())),
    "window": small("tabular", learner=replace(preset("tabular").learner, observation_window=3)),
    "dqn": small("tabular", learner=DQNConfig(hidden_sizes=(8,), filter_observations=True)),
    "gym, discrete": gym("CartPole-v1"),
    "gym, continuous": gym("Pendulum-v1"),
    "gym, dqn": gym("CartPole-v1", learner=DQNConfig(hidden_sizes=(8,), filter_warmup_steps=500)),
    "hongkong": small("hongkong"),
    **{
        kind: small("mountain-cars", learner=replace(as_kind(preset("mountain-cars").learner, kind), **TINY))
        for kind in SQUASHED
    },
    **{
        kind: small("tabular", learner=as_kind(preset("tabular").learner, kind))
        for kind in sorted({*LEARNERS} - {"ppo", "dqn", *SQUASHED, *NOT_EXPORTED})
    },
    "random-mdps": small("random-mdps"),
    "windy-cliffs": small("windy-cliffs"),
    **{name: small(name) for name in ("cartpoles", "acrobots", "pendulums", "discrete-mountain-cars")},
    "gymnax": small("gymnax"),
    "perturbed-kernels": small("perturbed-kernels", learner=as_kind(preset("tabular").learner, "ppo")),
}
NEEDS = {
    "hoppers": "mujoco",
    "walkers": "mujoco",
    "half-cheetahs": "mujoco",
    "hongkong": "libsumo",
    "gym": "gymnasium",
    "gymnax": "gymnax",
}


def test_no_world_and_no_learner_is_forgotten() -> None:
    assert {config.world for config in CONFIGS.values()} == set(WORLDS)
    assert {config.learner.kind for config in CONFIGS.values()} | NOT_EXPORTED == set(LEARNERS)
    assert sorted(NOT_EXPORTED) == ["sarsa"]


@pytest.fixture(scope="module", params=CONFIGS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalExecutor, Path]:
    """An executor and the run folder of its initial policy, with filters."""
    config = CONFIGS[request.param]
    pytest.importorskip(NEEDS.get(config.world, "numpy"))
    executor = make_executor(config)
    path = tmp_path_factory.mktemp("run") / "run"
    with RunFolder.create(path, config) as folder:
        folder.save_policy(executor.stored_policy(executor.initial_params()), 0)
    executor.close()
    return executor, path


def observations(executor: LocalExecutor, number: int = 40) -> np.ndarray:
    size = executor.learner.world.observation_size  # of a whole window
    return np.random.default_rng(0).normal(size=(number, size)).astype(np.float32)


def trained_output(executor: LocalExecutor, observation: np.ndarray, client: int) -> np.ndarray:
    """Mean actions, logarithms of probabilities, or action values by the code that trains."""
    filters = jax.tree.map(lambda x: x[client], executor.state.filters)
    learner, params = executor.learner, executor.initial_params()
    filtered = learner.filtered(filters, observation)
    if isinstance(executor.config.learner, OffPolicyConfig):
        return np.asarray(apply_layers(params.policy.layers, filtered))
    if isinstance(executor.config.learner, QAvgConfig):
        return np.asarray(learner.apply(params.policy.layers, filtered))  # pyright: ignore[reportAttributeAccessIssue]
    found = learner.distribution(params, filtered)
    return np.asarray(found.mean if hasattr(found, "mean") else found.logits)


@pytest.mark.parametrize("client", [0, 2])
def test_onnx_runtime_and_numpy_act_as_the_code_that_trains(
    stored: tuple[LocalExecutor, Path], client: int, tmp_path: Path
) -> None:
    executor, run = stored
    seen = observations(executor)
    export_policy(run, tmp_path / "policy.npz")
    export_policy(run, tmp_path / "policy.onnx", client)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    action, output, *_ = session.run(None, {"observation": seen})
    policy = load_policy(tmp_path / "policy.npz")
    expected = trained_output(executor, seen, client)
    for found in (output, policy.forward(policy.rescale(seen, client))):
        if policy.discrete and "epsilon" not in policy.about:
            found = found - logsumexp(found, axis=1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    if policy.discrete:
        assert action.tolist() == policy.act(seen, client).tolist() == expected.argmax(1).tolist()
    else:
        np.testing.assert_allclose(action, policy.act(seen, client), rtol=1e-6, atol=1e-6)
    if executor.config.learner.kind in SQUASHED:
        filters = jax.tree.map(lambda x: x[client], executor.state.filters)
        learner, params = executor.learner, executor.initial_params()
        actor = learner.actor(params, filters, learner.schedule(0), training=False)
        without_noise = actor.act(seen, np.zeros((len(seen), 1), np.float32))
        np.testing.assert_allclose(action, without_noise, rtol=1e-5, atol=1e-5)


def test_the_default_filter_is_the_same_in_numpy_and_onnx(stored: tuple[LocalExecutor, Path], tmp_path: Path) -> None:
    executor, run = stored
    seen = observations(executor)
    export_policy(run, tmp_path / "policy.onnx")
    output = onnxruntime.InferenceSession(tmp_path / "policy.onnx").run(None, {"observation": seen})[1]
    policy = load_run_policy(run)
    np.testing.assert_allclose(output, policy.forward(policy.rescale(seen)), rtol=1e-6, atol=1e-6)


def test_drawn_actions_are_distributed_as_in_numpy(stored: tuple[LocalExecutor, Path], tmp_path: Path) -> None:
    executor, run = stored
    export_policy(run, tmp_path / "policy.onnx", 1, sample=True)
    seen = np.repeat(observations(executor, 1), 20_000, axis=0)
    drawn = onnxruntime.InferenceSession(tmp_path / "policy.onnx").run(["action"], {"observation": seen})[0]
    policy = load_run_policy(run)
    expected = policy.act(seen, 1, np.random.default_rng(0))
    if policy.discrete:
        shares = [np.bincount(actions, minlength=5) / len(seen) for actions in (drawn, expected)]
        np.testing.assert_allclose(*shares, atol=0.02)
        assert (shares[0] > 0).sum() > 1
    else:
        np.testing.assert_allclose(drawn.mean(0), expected.mean(0), atol=0.04)
        np.testing.assert_allclose(drawn.std(0), expected.std(0), rtol=0.03)


def test_the_model_says_what_it_is(stored: tuple[LocalExecutor, Path], tmp_path: Path) -> None:
    executor, run = stored
    export_policy(run, tmp_path / "policy.onnx", 2)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    described = session.get_modelmeta().custom_metadata_map
    assert described["world"] == executor.config.world
    assert [json.loads(described[name]) for name in ("client", "sample", "round", "seed")] == [2, False, 0, 0]
    assert [one.name for one in session.get_inputs()] == ["observation"]
    assert session.get_outputs()[0].name == "action"
