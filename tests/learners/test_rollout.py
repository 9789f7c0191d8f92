"""Collecting episodes in a predictable world, and updating the filters afterwards."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learners import numpy_ppo
from learners.reference import (
    CHUNK,
    AgentParams,
    Broadcast,
    ClientInputs,
    ClientProgram,
    ContinuousActions,
    Dense,
    Filters,
    Moments,
    Noise,
    PolicyParams,
    PPOConfig,
    TracedWorld,
    Trajectory,
    Transition,
    assert_same,
    collect_episodes,
    draw_noise,
    float32,
    program_of,
)


class Line(TracedWorld):
    """A point moves along a line by its action and some noise. An episode ends at the goal, which is a parameter."""

    observation_size, actions, horizon = 1, ContinuousActions(1, -9, 9), 4
    reset_noise = step_noise = 1

    def reset(self, noise: jax.Array, params: jax.Array) -> tuple[jax.Array, jax.Array]:
        return noise[0], noise

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: jax.Array) -> Transition:
        moved = state + action[0] + noise[0]
        return Transition(moved, moved[None], 10 * state + action[0], moved >= params)


GOALS = float32([2, 9, 4])
"""A lane that reaches its goal in two steps of 1, one that never does, and one that does in its last step."""


def noise(length: int = CHUNK) -> Noise:
    """Starts at 0; every action is 1; the world adds 1/8 at time 1; episodes that follow time t start at t / 16."""
    time = np.arange(length, dtype=np.float32)[:, None, None] * np.ones((1, 3, 1), np.float32)
    return Noise(np.zeros((3, 1), np.float32), np.ones_like(time), np.where(time == 1, 0.125, 0), time / 16)


def played(min_steps: int, record_next: bool = True) -> Trajectory:
    trajectory = collect_episodes(
        noise(),
        Line(),
        GOALS,
        lambda observation, noise: noise,
        min_steps,
        record_next=record_next,
        largest=lambda x: x,
    )
    return jax.tree.map(np.asarray, trajectory)


def test_lanes_play_whole_episodes_until_they_have_more_than_the_minimum_of_steps() -> None:
    """The minimum is 4, so an episode of 4 steps is not enough. The goal counts even in the last step."""
    trajectory = played(4)
    np.testing.assert_array_equal(trajectory.status[:9, 0], [1, 2, 1, 2, 1, 2, 0, 0, 0])
    np.testing.assert_array_equal(trajectory.status[:9, 1], [1, 1, 1, 3, 1, 1, 1, 3, 0])
    np.testing.assert_array_equal(trajectory.status[:9, 2], [1, 1, 1, 2, 1, 1, 1, 2, 0])
    np.testing.assert_array_equal(trajectory.valid.sum(axis=0), [6, 8, 8])


def test_a_row_holds_observation_action_reward_and_the_next_observation_before_any_reset() -> None:
    """The first lane starts at 0, then after times 1 and 3 at 1/16 and 3/16; the world adds 1/8 at time 1."""
    lane = jax.tree.map(lambda x: x[:6, 0].reshape(-1), played(4))
    starts = [0, 1, 1 / 16, 1 + 1 / 16, 3 / 16, 1 + 3 / 16]
    np.testing.assert_array_equal(lane.observation, starts)
    np.testing.assert_array_equal(lane.action, np.ones(6))
    np.testing.assert_array_equal(lane.reward, 10 * np.array(starts) + 1)
    np.testing.assert_array_equal(lane.next_observation, [1, 2.125, 1 + 1 / 16, 2 + 1 / 16, 1 + 3 / 16, 2 + 3 / 16])


def test_without_a_minimum_of_steps_every_lane_plays_one_episode() -> None:
    trajectory = played(0, record_next=False)
    np.testing.assert_array_equal(trajectory.status[:5], [[1, 1, 1], [2, 1, 1], [0, 1, 1], [0, 3, 2], [0, 0, 0]])
    assert trajectory.next_observation is None


# Filters


CLIENTS = np.array([3, 8])
FILTERS = Filters(
    Moments(float32([10, 20]), float32([[1], [2]]), float32([[40], [5]])),
    Moments(float32([10, 20]), float32([3, 1]), float32([90, 80])),
)
CONFIG = PPOConfig(hidden_sizes=(), observation_clip=0.4, bootstrap_at_time_limit=False)
EPISODES, WEIGHT = 3, 2.5


def learner() -> ClientProgram:
    return program_of(CONFIG, Line(), EPISODES, WEIGHT)


def shared() -> Broadcast:
    """A policy with mean -2 s, so that filtered observations matter."""
    layers = (Dense(float32([[-2]]), float32([0])),)
    params = AgentParams(PolicyParams(layers, float32([0])), layers, float32(1))
    return Broadcast(params, jax.random.key(1), learner().learner.schedule(0))


def evaluated() -> Any:
    own = ClientInputs(CLIENTS, float32([2, 9]), FILTERS)
    return jax.tree.map(np.asarray, jax.jit(learner().evaluate)(shared(), own))


def test_filters_are_frozen_during_an_evaluation_and_updated_after_it() -> None:
    result = evaluated()
    trajectory = result.trajectory  # [T, C, E]
    for index, client in enumerate(CLIENTS):
        drawn = draw_noise(
            jax.random.fold_in(shared().key, client), Line(), learner().learner.noise, EPISODES, min_steps=0
        ).action
        own = jax.tree.map(lambda x: x[:, index], trajectory)  # noqa: B023
        before = jax.tree.map(lambda x: x[index].astype(float), FILTERS)  # noqa: B023
        seen = numpy_ppo.seen_observation(CONFIG, before.observation, own.observation)
        assert 0 < (np.abs(seen[own.valid]) == CONFIG.observation_clip).mean() < 1
        np.testing.assert_allclose(own.action[own.valid], (drawn - 2 * seen)[own.valid], rtol=1e-4, atol=1e-5)
        after = jax.tree.map(lambda x: x[index], result.filters)  # noqa: B023
        assert_same(after.observation, numpy_ppo.with_entries(before.observation, own.observation[own.valid], WEIGHT))
        assert_same(after.reward, numpy_ppo.with_entries(before.reward, own.reward[own.valid], WEIGHT))


def test_an_evaluation_reports_unfiltered_returns_and_counts_no_padding() -> None:
    result = evaluated()
    for index in range(2):
        own = jax.tree.map(lambda x: x[:, index], result.trajectory)  # noqa: B023
        assert result.steps[index] == own.valid.sum()
        np.testing.assert_allclose(result.mean_return[index], own.reward[own.valid].sum() / EPISODES, rtol=1e-5)


def test_a_filter_that_is_switched_off_is_never_updated_and_never_clips() -> None:
    off = replace(CONFIG, filter_observations=False, filter_rewards=False)
    trajectory = jax.tree.map(jnp.asarray, played(4))
    before = jax.tree.map(lambda x: x[0], FILTERS)
    after = replace(learner().learner, config=off).observe(before, trajectory)
    assert_same(after, before, tolerance=0.0)
    assert off.observation_limit == off.reward_limit == np.inf
