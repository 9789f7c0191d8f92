"""The world `gymnax` beside the package itself: the same numbers for every client, and refusals in one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import as_kind
from fedpohcs.core.presets import preset
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.testing import check_world
from fedpohcs.worlds.gymnax import GymnaxConfig, GymnaxWorld, context_of, key_from

NOISE = jnp.array([0.25, 0.75])


def settings(**changes: Any) -> ExperimentConfig:
    config = preset("gymnax")
    few = replace(config.federation, num_clients=3, num_candidates=2, num_selected=1, evaluation_episodes=2)
    learner = replace(config.learner, local_iterations=1, steps_per_iteration=8, filter_warmup_steps=0)
    return replace(config, rounds=1, federation=few, learner=learner, scenario=GymnaxConfig(**changes))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fedpohcs.worlds.gymnax.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^this world needs the package gymnax\. .*'fedpohcs\[gymnax\]'$"):
        run_experiment(settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_package_that_cannot_be_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ModuleNotFoundError("No module named 'six'")

    monkeypatch.setattr("fedpohcs.worlds.gymnax.find_spec", lambda name: name)
    monkeypatch.setattr("fedpohcs.worlds.gymnax.import_module", fails)
    with pytest.raises(UserError, match="cannot be imported: No module named 'six'"):
        GymnaxWorld("low", 2)


def test_ranges_are_around_the_usual_value_or_as_set() -> None:
    assert context_of(GymnaxConfig(), 0.5) == (0.5, 0.25, 0.75)
    assert context_of(GymnaxConfig(), -1.2) == pytest.approx((-1.2, -1.8, -0.6))
    assert context_of(GymnaxConfig(low=0.1, high=0.9), 0.5) == (0.5, 0.1, 0.9)
    with pytest.raises(UserError, match=r"scenario\.low \(=0\.8\) must be below scenario\.high \(=0\.75\)"):
        context_of(GymnaxConfig(low=0.8), 0.5)
    with pytest.raises(UserError, match=r"scenario\.low \(=0\.0\) must be below"):  # no range around 0
        context_of(GymnaxConfig(context="goal_velocity"), 0.0)
    with pytest.raises(UserError, match=r"scenario\.high \(=nan\)"):
        GymnaxConfig(high=float("nan"))


def test_keys_follow_from_uniform_numbers() -> None:
    keys = jax.vmap(key_from)(jnp.array([[0.25, 0.75], [0.25, 0.5], [0.5, 0.75]]))
    drawn = jax.vmap(lambda key: jax.random.uniform(key))(keys)
    assert len(set(drawn.tolist())) == 3


@pytest.fixture
def package() -> Any:
    """The tests that need it are skipped without it: it goes with an older Gymnasium than the pinned one."""
    return pytest.importorskip("gymnax")


installed = pytest.mark.usefixtures("package")


@pytest.mark.parametrize(
    ("env", "context", "also"),
    [
        ("CartPole-v1", "length", {"polemass_length": 0.075}),
        ("CartPole-v1", "masspole", {"polemass_length": 0.075, "total_mass": 1.15}),
        ("Pendulum-v1", "max_torque", {}),
        ("Acrobot-v1", "link_length_1", {}),
        ("MountainCarContinuous-v0", "power", {}),
        ("FourRooms-misc", "fail_prob", {}),
    ],
)
def test_episodes_are_those_of_gymnax_with_the_parameters_of_the_client(
    package: Any, env: str, context: str, also: dict[str, float]
) -> None:
    world = GymnaxWorld("high", 3, settings=GymnaxConfig(env, context))
    peer, usual = package.make(env)
    value = getattr(usual, context)
    np.testing.assert_allclose(world.population[context], [value / 2, value, 1.5 * value], rtol=1e-6)
    params = usual.replace(**{context: 1.5 * value, **also})
    own = jax.tree.map(lambda x: x[2], world.population)
    (seen, theirs), (state, ours) = peer.reset_env(key_from(NOISE), params), world.reset(NOISE, own)
    np.testing.assert_array_equal(np.ravel(seen), ours)
    step, peer_step = jax.jit(world.step), jax.jit(peer.step_env)
    generator = np.random.default_rng(0)
    for _ in range(20):
        noise = jnp.asarray(generator.random(2), jnp.float32)
        if hasattr(world.actions, "num_choices"):
            action = bounded = jnp.int32(generator.integers(peer.num_actions))
        else:
            action, space = jnp.asarray(generator.uniform(-1.5, 1.5, 1), jnp.float32), peer.action_space(params)
            bounded = space.low + (jnp.clip(action, -1, 1) + 1) / 2 * (space.high - space.low)
        seen, theirs, reward, terminated, _ = peer_step(key_from(noise), theirs, bounded, params)
        state, ours, gained, ended = step(state, action, noise, own)
        np.testing.assert_allclose(ours, np.ravel(seen), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose([gained, ended], [np.squeeze(reward), terminated], rtol=1e-5, atol=1e-6)


@installed
def test_the_time_limit_does_not_terminate() -> None:
    world = GymnaxWorld("none", 1, settings=GymnaxConfig("Pendulum-v1", "g"))
    own = jax.tree.map(lambda x: x[0], world.population)
    state, _ = world.reset(NOISE, own)
    assert world.horizon == 200
    for _ in range(201):
        state, _, _, ended = world.step(state, jnp.zeros(1), NOISE, own)
    assert not ended


@installed
def test_the_world_keeps_the_contract() -> None:
    for config in (
        settings(),
        settings(env="Pendulum-v1", context="g"),
        settings(env="FourRooms-misc", context="fail_prob"),
    ):
        check_world(config)


@installed
def test_environments_with_other_physics_share_no_programs() -> None:
    one, other = GymnaxWorld("low", 2), GymnaxWorld("low", 2, settings=GymnaxConfig("Pendulum-v1", "g"))
    third = GymnaxWorld("low", 2, settings=GymnaxConfig(context="gravity"))
    assert len({one, other, third, GymnaxWorld("high", 2)}) == 3


@installed
def test_a_federation_trains() -> None:
    history = run_experiment(settings(low=0.1, high=0.9))
    assert np.isfinite(history.mean_returns).all()


@installed
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"env": "CartPole"}, r"scenario\.env \(='CartPole'\) is not known\. Did you mean 'CartPole-v1'"),
        ({"context": "lenght"}, r"scenario\.context \(='lenght'\) is not known\. Did you mean 'length'"),
        ({"context": "total_mass"}, r"scenario\.context \(='total_mass'\) is not known"),
        ({"context": "max_steps_in_episode"}, r"is not known"),
        ({"env": "Catch-bsuite"}, r"scenario\.env \(='Catch-bsuite'\) has no parameter"),
    ],
)
def test_what_gymnax_does_not_have_is_refused_before_anything_is_written(
    changes: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rule):
        run_experiment(settings(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@installed
def test_a_learner_for_other_actions_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = settings()
    with pytest.raises(UserError, match="needs a world with continuous actions"):
        run_experiment(replace(config, learner=as_kind(config.learner, "sac")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
