"""Advantages and batches of a short trajectory, computed by hand.

The critic is V(s) = s and the filters have seen nothing, so observations are values; gamma = lambda = 1/2, so that
gamma lambda = 1/4.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learners.reference import (
    AgentParams,
    Batch,
    Dense,
    Filters,
    Moments,
    PolicyParams,
    PPOConfig,
    Status,
    Trajectory,
    advantages_of,
    batch_of,
    generalised_advantage,
    init_filters,
)

CONFIG = PPOConfig(discount=0.5, gae_discount=0.5, observation_clip=1e6, reward_clip=1e6)
LAYER = (Dense(np.ones((1, 1), np.float32), np.zeros(1, np.float32)),)
PARAMS = AgentParams(PolicyParams(LAYER, np.zeros(1, np.float32)), LAYER, np.float32(1))
_, RUNNING, ENDED, CUT = Status
STATUS = [RUNNING, RUNNING, ENDED, RUNNING, CUT, Status.PADDING]

# First lane: an episode of three steps that terminates, one of two steps that the time limit cuts at a state of
# value 6, then padding. Padding, and the observation after the terminal step, are 100.
OBSERVATION = [1, 2, 3, 4, 2, 100]
REWARD = [1, 1, 2, 1, 3, 100]
FOLLOWING = [2, 3, 100, 2, 6, 100]

# delta_0 = 1 + 2/2 - 1 = 1     A_0 = 1 + A_1 / 4 = 1.0625
# delta_1 = 1 + 3/2 - 2 = 0.5   A_1 = 0.5 + A_2 / 4 = 0.25
# delta_2 = 2 + 0 - 3 = -1      A_2 = -1
# delta_3 = 1 + 2/2 - 4 = -2    A_3 = -2 + A_4 / 4
# delta_4 = 3 + 0 - 2 = 1, or with bootstrapping 3 + 6/2 - 2 = 4, and A_4 = delta_4
ADVANTAGE = {False: [1.0625, 0.25, -1, -1.75, 1], True: [1.0625, 0.25, -1, -1, 4]}

# Second lane: an episode of one step that terminates, A = 5 - 7 = -2, then padding.
SHORT = {"observation": [7], "reward": [5], "status": [ENDED], "following": [100]}


def column(lane: list[float], padding: float) -> np.ndarray:
    return np.array([*lane, *[padding] * (6 - len(lane))], np.float32)


def trajectory(observation: list, reward: list, status: list, following: list) -> Trajectory:
    """One lane, [6, 1]."""
    return Trajectory(
        column(observation, 100)[:, None, None],
        np.zeros((6, 1, 1), np.float32),
        column(reward, 100)[:, None],
        column(status, Status.PADDING).astype(np.int8)[:, None],
        column(following, 100)[:, None, None],
    )


def both_lanes() -> Trajectory:
    lanes = trajectory(OBSERVATION, REWARD, STATUS, FOLLOWING), trajectory(**SHORT)
    return jax.tree.map(lambda *x: np.concatenate(x, axis=1), *lanes)


def one_step_each(rewards: list[float], filters: Filters | None = None) -> Batch:
    """Episodes of one step at states of value 0: their advantages are their rewards."""
    states, ends = [0.0] * len(rewards), [ENDED] * len(rewards)
    return batch_of(CONFIG, PARAMS, filters or init_filters(1), trajectory(states, rewards, ends, states))


def moments(seen: float, mean: list[float] | float, squares: list[float] | float) -> Moments:
    return Moments(*(np.asarray(x, np.float32) for x in (seen, mean, squares)))


@pytest.mark.parametrize("bootstrap", [False, True])
def test_advantages_stop_at_terminal_steps_and_bootstrap_at_time_limits_only_if_configured(bootstrap: bool) -> None:
    config = replace(CONFIG, bootstrap_at_time_limit=bootstrap)
    advantage, value = advantages_of(config, PARAMS, init_filters(1), both_lanes())
    np.testing.assert_allclose(advantage[:5, 0], ADVANTAGE[bootstrap], rtol=1e-6)
    np.testing.assert_allclose(advantage[0, 1], -2, rtol=1e-6)
    np.testing.assert_array_equal(value[:5, 0], OBSERVATION[:5])
    np.testing.assert_array_equal(advantage[both_lanes().status == Status.PADDING], 0)


def test_without_bootstrapping_the_next_observations_are_not_needed() -> None:
    config = replace(CONFIG, bootstrap_at_time_limit=False)
    without = both_lanes()._replace(next_observation=None)
    advantage, _ = advantages_of(config, PARAMS, init_filters(1), without)
    np.testing.assert_allclose(advantage[:5, 0], ADVANTAGE[False], rtol=1e-6)


def test_lambda_0_gives_the_temporal_difference_and_lambda_1_the_discounted_sum() -> None:
    """delta = 1, 2, 4 in one episode with gamma = 1/2, and 8 in the next."""
    delta, continues = jnp.array([1.0, 2.0, 4.0, 8.0]), jnp.array([True, True, False, False])
    for lambda_, expected in [
        (0.0, [1, 2, 4, 8]),
        (1.0, [1 + 1 + 1, 2 + 2, 4, 8]),
        (0.5, [1 + 0.5 + 0.25, 2 + 1, 4, 8]),
    ]:
        np.testing.assert_allclose(jax.jit(generalised_advantage)(delta, continues, 0.5, lambda_), expected)


def test_the_target_of_the_critic_is_advantage_plus_value() -> None:
    """The lambda-return; with lambda = 1 it would be the discounted return."""
    batch = batch_of(CONFIG, PARAMS, init_filters(1), both_lanes())
    target = np.asarray(batch.samples.value_target).reshape(6, 2)
    np.testing.assert_allclose(target[:5, 0], np.add(ADVANTAGE[True], OBSERVATION[:5]), rtol=1e-6)
    np.testing.assert_allclose(target[0, 1], 5, rtol=1e-6)  # -2 + 7: nothing follows, so it is the reward


def test_advantages_are_standardised_over_valid_steps_only() -> None:
    """Advantages 1, 2, 6 have mean 3 and variance (4 + 1 + 9) / 3; three rows of padding do not count."""
    batch = one_step_each([1, 2, 6])
    np.testing.assert_array_equal(batch.valid, [True] * 3 + [False] * 3)
    np.testing.assert_allclose(batch.samples.advantage[:3], np.array([-2, -1, 3]) / np.sqrt(14 / 3), rtol=1e-6)
    np.testing.assert_allclose(batch.samples.value_target[:3], [1, 2, 6], rtol=1e-6)  # not standardised


def test_equal_advantages_become_0_and_stay_finite() -> None:
    np.testing.assert_array_equal(one_step_each([4, 4, 4]).samples.advantage[:3], 0)


def test_a_batch_interleaves_the_lanes() -> None:
    """Step t of a lane is row 2 t + lane of every field."""
    batch = batch_of(CONFIG, PARAMS, init_filters(1), both_lanes())
    np.testing.assert_array_equal(batch.valid, [1, 1, *[1, 0] * 4, 0, 0])
    np.testing.assert_array_equal(batch.samples.observation[:5, 0], [1, 7, 2, 100, 3])
    np.testing.assert_array_equal(batch.samples.old.mean, batch.samples.observation)


def test_rewards_are_divided_by_their_deviation_and_not_centred() -> None:
    """Ten rewards of mean 9 and standard deviation 2 were seen: 1, 2, 6 count as 1/2, 1, 3."""
    filters = init_filters(1)._replace(reward=moments(10, 9, 40))
    np.testing.assert_allclose(one_step_each([1, 2, 6], filters).samples.value_target[:3], [0.5, 1, 3], rtol=1e-6)


def test_the_critic_values_filtered_observations_within_episodes_and_at_the_time_limit() -> None:
    """Mean 2, deviation 2: the cut episode 4, 2 -> 6 is seen as 1, 0 -> 2. A_4 = 3 + 2/2 - 0, A_3 = 1 + 0 - 1 + 1."""
    filters = init_filters(1)._replace(observation=moments(10, [2], [40]))
    advantage, value = advantages_of(CONFIG, PARAMS, filters, both_lanes())
    np.testing.assert_allclose(value[3:5, 0], [1, 0], atol=1e-6)
    np.testing.assert_allclose(advantage[3:5, 0], [1, 4], rtol=1e-6)
