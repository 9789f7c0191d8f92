"""Traced classic control beside Gymnasium's own environments, for the usual physics and for every context."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import WORLDS
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.worlds.control import Acrobots, CartPoles, Context, ControlConfig, DiscreteMountainCars, Pendulums

gymnasium: Any = pytest.importorskip("gymnasium")

IDS = {
    CartPoles: "CartPole-v1",
    Acrobots: "Acrobot-v1",
    Pendulums: "Pendulum-v1",
    DiscreteMountainCars: "MountainCar-v0",
}
ATTRIBUTES = {
    "CartPole-v1": {"length": "length", "pole_mass": "masspole", "cart_mass": "masscart", "push": "force_mag"},
    "Acrobot-v1": {"length_1": "LINK_LENGTH_1", "mass_1": "LINK_MASS_1", "mass_2": "LINK_MASS_2"},
    "Pendulum-v1": {"gravity": "g", "mass": "m", "length": "l"},
    "MountainCar-v0": {"force": "force", "gravity": "gravity"},
}
CASES = [(kind, context) for kind in IDS for context in kind.contexts]
SPREAD = {"CartPole-v1": (1.0, 1.0, 0.2, 1.0), "Acrobot-v1": (3.0, 3.0, 6.0, 12.0), "Pendulum-v1": (6.0, 8.0)}


def peer(name: str, context: str, value: float) -> Any:
    """Gymnasium's environment with another value of one quantity, and what it derives from it."""
    env = gymnasium.make(name).unwrapped
    env.reset(seed=0)
    setattr(env, ATTRIBUTES[name].get(context, context), value)
    if name == "CartPole-v1":  # it keeps these two beside the quantities that they depend on
        env.total_mass, env.polemass_length = env.masspole + env.masscart, env.masspole * env.length
    return env


def states(name: str, count: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    if name == "MountainCar-v0":
        return generator.uniform([-1.2, -0.07], [0.6, 0.07], (count, 2)).astype(np.float32)
    spread = np.array(SPREAD[name])
    return generator.uniform(-spread, spread, (count, len(spread))).astype(np.float32)


@pytest.mark.parametrize(("kind", "context"), CASES)
def test_steps_are_those_of_gymnasium(kind: Any, context: str) -> None:
    world, name = kind("high", 2, settings=ControlConfig(context=context)), IDS[kind]
    value = float(world.population[context][1])
    assert value != kind.contexts[context].usual
    own = jax.tree.map(lambda x: x[1], world.population)
    env, begin = peer(name, context, value), states(name, 200)
    generator = np.random.default_rng(1)
    continuous = kind is Pendulums
    actions = (
        generator.uniform(-1.5, 1.5, (200, 1))
        if continuous
        else generator.integers(world.actions.num_choices, size=200)
    )
    moved = jax.vmap(lambda s, a: world.step(s, a, jnp.zeros(0), own))(begin, jnp.asarray(actions))
    for row in range(200):
        env.state = begin[row].astype(np.float64)
        if name == "CartPole-v1":
            env.steps_beyond_terminated = None
        action = 2 * np.clip(actions[row], -1, 1).astype(np.float32) if continuous else int(actions[row])
        seen, reward, terminated, _, _ = env.step(action)
        near_end = name in ("CartPole-v1", "MountainCar-v0") and bool(moved.terminated[row]) != terminated
        assert not near_end or np.abs(seen).min() < 1e-5
        np.testing.assert_allclose(moved.observation[row], seen, rtol=2e-4, atol=2e-5)
        if bool(moved.terminated[row]) == terminated:
            np.testing.assert_allclose(moved.reward[row], reward, rtol=1e-4, atol=1e-5)
    ended = np.asarray(moved.terminated)
    assert continuous or 0 < ended.sum() < 200


@pytest.mark.parametrize("kind", IDS)
def test_starts_lie_in_the_range_of_gymnasium(kind: Any) -> None:
    world = kind("none", 1)
    own = jax.tree.map(lambda x: x[0], world.population)
    low, high = (world.reset(jnp.full(world.reset_noise, end), own)[1] for end in (0.0, 1.0))
    env = gymnasium.make(IDS[kind])
    starts = np.array([env.reset(seed=seed)[0] for seed in range(200)])
    if kind is Pendulums:
        np.testing.assert_allclose([low[0], high[0], low[2], high[2]], [-1, -1, -1, 1], atol=1e-5)
        return
    low, high = np.minimum(low, high), np.maximum(low, high)
    angles = [0, 2] if kind is Acrobots else []  # cosines are largest in the middle
    high[angles] = 1.0
    assert (starts >= low - 1e-6).all()
    assert (starts <= high + 1e-6).all()
    assert (np.ptp(starts, axis=0) >= 0.9 * (high - low)).all()


def test_levels_cover_shares_of_the_range_around_the_usual_value() -> None:
    context = Context(0.5, 0.1, 0.9)
    assert context.values("none", 3).tolist() == [0.5, 0.5, 0.5]
    np.testing.assert_allclose(context.values("low", 3), [0.4, 0.5, 0.6])
    np.testing.assert_allclose(context.values("high", 3), [0.1, 0.5, 0.9])
    uneven = Context(1.0, 0.4, 2.0)
    np.testing.assert_allclose(uneven.values("medium", 2), [0.7, 1.5])


def test_one_quantity_differs_and_held_out_clients_are_placed_by_it() -> None:
    world = CartPoles("high", 3, 2, settings=ControlConfig(context="gravity"))
    np.testing.assert_allclose(world.population["gravity"], [4, 10, 16, 7, 13])
    np.testing.assert_allclose(world.population["length"], 0.5)
    far = CartPoles("high", 2, 2, placement="beyond")
    np.testing.assert_allclose(far.population["length"][:2], [0.1, 0.9])
    beyond = np.asarray(far.population["length"][2:])
    assert ((beyond < 0.1) | (beyond > 0.9)).all()
    assert (beyond > 0).all()


def test_a_shorter_horizon_cuts_episodes_and_shares_no_programs_with_the_usual_one() -> None:
    short = Pendulums("low", 2, settings=ControlConfig(horizon=30))
    assert (Pendulums("low", 2).horizon, short.horizon) == (200, 30)
    assert len({Pendulums("low", 2), Pendulums("high", 3), short, CartPoles("low", 2)}) == 3
    assert Pendulums("low", 2) == Pendulums("high", 3) != short
    config = preset("pendulums", selector="full")
    few = replace(config.federation, num_clients=2, num_candidates=2, num_selected=2, evaluation_episodes=3)
    learner = replace(config.learner, local_iterations=1, steps_per_iteration=10, filter_warmup_steps=0)
    config = replace(config, rounds=1, federation=few, learner=learner, scenario=ControlConfig(horizon=30))
    records = run_experiment(config).records
    assert records[0].evaluation.steps.tolist() == [90, 90]
    assert records[1].train_steps.tolist() == [30, 30]


@pytest.mark.parametrize("steps", [0, -3])
def test_a_horizon_without_steps_is_refused(steps: int) -> None:
    with pytest.raises(UserError, match=rf"scenario\.horizon \(={steps}\)"):
        ControlConfig(horizon=steps)


def test_an_unknown_context_is_refused_and_the_nearest_suggested() -> None:
    with pytest.raises(UserError, match=r"scenario\.context.*lenght.*length"):
        CartPoles("low", 2, settings=ControlConfig(context="lenght"))


def test_all_worlds_of_control_are_registered() -> None:
    registered = {WORLDS[name] for name in ("cartpoles", "acrobots", "pendulums", "discrete-mountain-cars")}
    assert registered == set(IDS)


def test_an_unknown_context_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = replace(preset("cartpoles"), scenario=ControlConfig(context="colour"))
    with pytest.raises(UserError, match=r"scenario\.context \(='colour'\) is not known\. Known: .*length"):
        run_experiment(config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
