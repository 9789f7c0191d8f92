"""Running statistics beside NumPy's own."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs import preset
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.base import make_learner
from fedpohcs.learners.filters import discounted_returns, init_filters
from fedpohcs.worlds.tabular import TabularWorlds
from learners.reference import Filters, filter_observation, filter_reward, no_moments, update_moments


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 1000))
def test_moments_of_batches_equal_moments_of_all_valid_entries(sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    moments, seen = no_moments((2,)), []
    for size in sizes:
        values = generator.normal(3, 2, size=(8, 3, 2)).astype(np.float32)
        valid = np.zeros((8, 3), bool)
        valid[:size] = True
        moments = update_moments(moments, jnp.asarray(values), jnp.asarray(valid))
        seen.append(values[valid])
    everything = np.concatenate(seen)
    np.testing.assert_allclose(moments.seen, len(everything))
    np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(moments.squares / moments.seen, everything.var(axis=0), rtol=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 1000))
def test_a_weight_counts_what_is_seen_so_many_times(weight: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    before = update_moments(no_moments((2,)), generator.normal(3, 2, (9, 2)), np.ones(9, bool))
    values, valid = generator.normal(-1, 1, (6, 2)), np.arange(6) < 4
    at_once = update_moments(before, values, valid, weight)
    repeated = update_moments(before, np.tile(values, (weight, 1)), np.tile(valid, weight))
    for own, other in zip(at_once, repeated, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9)


def test_filters_centre_observations_but_only_scale_rewards() -> None:
    values = np.array([[1.0], [3.0]], np.float32)
    moments = update_moments(no_moments((1,)), jnp.asarray(values), jnp.ones(2, bool))
    rewards = update_moments(no_moments(()), jnp.asarray(values[:, 0]), jnp.ones(2, bool))
    filters = Filters(moments, rewards)
    np.testing.assert_allclose(filter_observation(filters, values, 5.0), [[-1], [1]], rtol=1e-6)
    np.testing.assert_allclose(filter_reward(filters, values[:, 0], 5.0), [1, 3], rtol=1e-6)


def test_filters_clip_and_leave_constants_alone() -> None:
    filters = Filters(no_moments((1,)), no_moments(()))
    np.testing.assert_array_equal(filter_observation(filters, np.array([[7.0], [-9.0]]), 5.0), [[5], [-5]])
    np.testing.assert_array_equal(filter_reward(filters, np.array([0.5, 99.0, -99.0]), 10.0), [0.5, 10, -10])


def recorded(rewards: Any, status: Any) -> Trajectory:
    return Trajectory(np.zeros((*rewards.shape, 1), np.float32), rewards, rewards, status, None)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 7, 20]), st.floats(0, 1), st.integers(0, 1000))
def test_discounted_returns_are_those_of_a_loop_from_the_end(length: int, discount: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rewards = generator.normal(size=(length, 2))
    status = generator.choice([Status.RUNNING, Status.TERMINATED, Status.TRUNCATED], (length, 2), p=[0.8, 0.1, 0.1])
    expected, following = np.zeros_like(rewards), np.zeros(2)
    for time in reversed(range(length)):
        following = rewards[time] + discount * following * (status[time] == Status.RUNNING) * (time + 1 < length)
        expected[time] = following
    np.testing.assert_allclose(discounted_returns(recorded(rewards, status), discount), expected, atol=1e-9)
    traced = discounted_returns(recorded(jnp.asarray(rewards), jnp.asarray(status)), discount)
    np.testing.assert_allclose(traced, expected, atol=1e-4)


def test_rewards_that_never_vary_are_scaled_by_how_returns_do() -> None:
    """-1 per step for 3 steps, discount 1/2: returns -1.75, -1.5 and -1; padding does not count."""
    rewards = np.array([[-1.0], [-1.0], [-1.0], [0.0]])
    status = np.array([[Status.RUNNING], [Status.RUNNING], [Status.TERMINATED], [Status.PADDING]])
    config = replace(preset("tabular").learner, reward_statistic="return", discount=0.5)
    world = TabularWorlds("low", 2)
    by_return, by_reward = (make_learner(x, world) for x in (config, replace(config, reward_statistic="reward")))
    filters = by_return.observe(init_filters(1), recorded(rewards, status))
    assert filters.reward.seen == 3
    np.testing.assert_allclose(by_return.reward_scale(filters), np.std([-1.75, -1.5, -1]), rtol=1e-6)
    assert by_reward.reward_scale(by_reward.observe(init_filters(1), recorded(rewards, status))) == 1
