"""Mountain Cars beside Gymnasium's MountainCarContinuous-v0."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.worlds.mountain_car import CarParams, MountainCars, action_shifts

WORLD = MountainCars("medium", 60)
STEP = jax.jit(lambda state, action, shift: WORLD.step(state, action, jnp.zeros(0), CarParams(shift)))


@pytest.mark.parametrize("shift", np.linspace(-2, 2, 21))
def test_a_thousand_steps_equal_gymnasium_at_every_shift(shift: float) -> None:
    """Energy-pumping actions with noise, so that the goal is reached and the left wall is hit on the way."""
    generator = np.random.default_rng(int(1000 * (shift + 2)))
    peer = gymnasium.make("MountainCarContinuous-v0").unwrapped
    observation, _ = peer.reset(seed=0)
    state, endings = jnp.asarray(observation), 0
    for _ in range(1000):
        action = np.float32(2 * np.sign(observation[1]) - shift + generator.normal())
        moved = STEP(state, jnp.array([action]), jnp.float32(shift))
        observation, reward, terminated, _, _ = peer.step(np.array([action + np.float32(shift)]))
        np.testing.assert_allclose(moved.observation, observation, atol=1e-5)
        np.testing.assert_allclose(moved.reward, reward, atol=1e-5)
        assert bool(moved.terminated) == terminated
        state = moved.state
        if terminated:
            endings += 1
            observation, _ = peer.reset(seed=endings)
            state = jnp.asarray(observation)
    assert endings > 0


def test_the_force_is_clipped_but_the_raw_action_is_charged() -> None:
    start = jnp.array([-0.5, 0.0])
    strong, at_limit = STEP(start, jnp.array([3.0]), 0.0), STEP(start, jnp.array([1.0]), 0.0)
    np.testing.assert_array_equal(strong.observation, at_limit.observation)
    np.testing.assert_allclose([strong.reward, at_limit.reward], [-0.9, -0.1], rtol=1e-6)


def test_medium_shifts_are_those_of_the_paper() -> None:
    np.testing.assert_allclose(action_shifts("medium", 60), [-1.5 + n / 20 for n in range(1, 61)])


@pytest.mark.parametrize(("level", "low", "high"), [("low", -1, 1), ("high", -2, 2), ("high-authors", -2, 3)])
def test_levels_span_their_interval(level: str, low: float, high: float) -> None:
    shifts = action_shifts(level, 60)
    assert low <= shifts.min() <= low + 0.09
    assert high - 0.09 <= shifts.max() <= high
    assert len(np.unique(shifts)) == 60


def test_fedkl_shifts_are_normal_with_deviation_0_8_and_clipped_at_1() -> None:
    shifts = action_shifts("fedkl", 1000)
    assert (np.diff(shifts) >= 0).all()
    np.testing.assert_allclose(shifts, -shifts[::-1], atol=1e-12)
    assert np.abs(shifts).max() == 1
    np.testing.assert_allclose((np.abs(shifts) == 1).mean(), 0.2113, atol=0.002)  # 2 Phi(-1 / 0.8)
    np.testing.assert_allclose((np.abs(shifts) < 0.8).mean(), 0.6827, atol=0.002)


def test_start_states_fill_the_valley() -> None:
    states = [WORLD.reset(jnp.array([u]), None)[1] for u in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(states, [[-0.6, 0], [-0.5, 0], [-0.4, 0]], atol=1e-6)
