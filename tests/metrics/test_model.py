"""The tabular model of one client and its options, each by a fact."""

import numpy as np
import pytest

from fedpohcs.core.config import ModellingConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import Steps
from fedpohcs.learners.distributions import Gaussian
from fedpohcs.metrics import weighted_advantage_table
from fedpohcs.metrics.advantage import sampled_advantages, standardised
from fedpohcs.metrics.episodes import first_steps
from fedpohcs.metrics.model import (
    NOWHERE,
    action_probabilities,
    build_model,
    mean_by_pair,
    merge_actions,
)
from fedpohcs.metrics.recursion import visitation

CONFIG = ModellingConfig()


def walk(seed: int = 0, *, episodes: int = 6, length: int = 40) -> Steps:
    generator = np.random.default_rng(seed)
    count = episodes * length
    return Steps(
        observation=np.cumsum(generator.normal(size=(count, 2)) * 0.1, axis=0).clip(-1, 1).astype(np.float32),
        action=generator.normal(size=(count, 1)).astype(np.float32),
        reward=generator.normal(size=count).astype(np.float32),
        last=np.arange(count) % length == length - 1,
        advantage=generator.normal(size=count).astype(np.float32),
    )


def standard_normal(centres):
    return Gaussian(np.zeros((len(centres), 1), np.float32), np.zeros((len(centres), 1), np.float32))


def row_sums(transitions):
    return np.add.reduceat(np.append(transitions.value, 0), transitions.begin[:-1]) * (np.diff(transitions.begin) > 0)


def merged(steps: Steps, config: ModellingConfig):
    model = build_model(steps, config)
    probability = action_probabilities(model, standard_normal, config.action_support)
    return model, probability, *merge_actions(model, probability)


def test_probabilities_over_the_actions_of_a_state_sum_to_one():
    model, probability, _, _ = merged(walk(), CONFIG)
    np.testing.assert_allclose(np.bincount(model.pair_state, probability), 1)


def test_probabilities_over_all_actions_of_the_client_lose_mass():
    model, probability, transitions, _ = merged(walk(), ModellingConfig(action_support="client", episode_end="restart"))
    kept = np.bincount(model.pair_state, probability)
    assert kept.max() < 1
    np.testing.assert_allclose(row_sums(transitions), kept)


def test_probabilities_keep_the_ratio_of_the_densities():
    model, probability, _, _ = merged(walk(), CONFIG)
    state = np.bincount(model.pair_state).argmax()
    chosen = model.pair_state == state
    density = np.exp(-0.5 * model.pair_action[chosen, 0].astype(float) ** 2)
    np.testing.assert_allclose(probability[chosen], density / density.sum(), rtol=1e-5)


def test_last_steps_lead_nowhere_when_absorbing_and_to_the_next_start_on_restart():
    steps = walk()
    absorbing = build_model(steps, CONFIG)
    restart = build_model(steps, ModellingConfig(episode_end="restart"))
    assert (absorbing.successor[steps.last] == NOWHERE).all()
    starts = restart.step_state[np.roll(steps.last, 1)]
    assert restart.successor[steps.last].tolist() == [*starts[1:], starts[0]]
    np.testing.assert_array_equal(absorbing.successor[~steps.last], restart.successor[~steps.last])


def test_restart_keeps_all_mass():
    _, _, transitions, _ = merged(walk(), ModellingConfig(episode_end="restart"))
    np.testing.assert_allclose(row_sums(transitions), 1)


def test_start_distribution_is_that_of_first_states():
    steps = walk()
    model = build_model(steps, CONFIG)
    opening = np.roll(steps.last, 1)
    np.testing.assert_allclose(model.start, np.bincount(model.step_state[opening], minlength=len(model.start)) / 6)


def test_mean_reward_of_a_pair_is_the_mean_over_its_steps():
    steps = walk()
    model = build_model(steps, ModellingConfig(observation_cell=50.0, action_cell=50.0))
    assert len(model.pair_key) == 1
    np.testing.assert_allclose(mean_by_pair(model, model.reward), steps.reward.mean(), rtol=1e-5)


def test_only_the_first_steps_of_an_episode_are_kept_and_the_cut_step_is_last():
    steps = walk(episodes=3, length=5)
    cut = first_steps(steps, 2)
    np.testing.assert_array_equal(cut.reward, steps.reward.reshape(3, 5)[:, :2].ravel())
    assert cut.last.tolist() == [False, True] * 3
    assert cut.advantage is not None and len(cut.advantage) == 6


def test_limit_beyond_the_episodes_changes_nothing():
    steps = walk(episodes=3, length=5)
    for kept, field in zip(first_steps(steps, 9), steps, strict=True):
        np.testing.assert_array_equal(kept, field)


def test_steps_that_stop_in_mid_episode_end_there():
    assert first_steps(walk()._replace(last=np.zeros(240, bool)), None).last.tolist() == [False] * 239 + [True]


def test_gae_advantages_are_means_of_the_samples():
    steps = walk()
    model = build_model(steps, ModellingConfig(observation_cell=50.0, action_cell=50.0))
    np.testing.assert_allclose(sampled_advantages(model, steps), steps.advantage.mean(), rtol=1e-4)


def test_gae_without_samples_is_refused():
    with pytest.raises(UserError, match="GAE samples"):
        steps = walk()._replace(advantage=None)
        weighted_advantage_table(steps, standard_normal, ModellingConfig(advantages="gae"), 0.99)


def test_standardised_table_is_visitation_times_scores_of_mean_zero_and_deviation_one():
    config = ModellingConfig(standardise=True)
    steps = walk()
    table = weighted_advantage_table(steps, standard_normal, config, 0.99)
    model, _, transitions, _ = merged(steps, config)
    advantage = table.value / visitation(transitions, model.start, config.horizon)[model.pair_state]
    assert abs(advantage.mean()) < 1e-9
    assert abs(advantage.std() - 1) < 1e-9


def test_standardising_equal_advantages_gives_zero():
    np.testing.assert_array_equal(standardised(np.full(3, 0.1)), 0)


def test_scaling_rewards_scales_the_table_unless_standardised():
    steps = walk()
    doubled = steps._replace(reward=2 * steps.reward)
    for standardise, factor in ((False, 2), (True, 1)):
        config = ModellingConfig(standardise=standardise)
        one = weighted_advantage_table(steps, standard_normal, config, 0.99).value
        two = weighted_advantage_table(doubled, standard_normal, config, 0.99).value
        np.testing.assert_allclose(two, factor * one, atol=1e-5 * abs(one).max())


def test_numbers_that_are_not_finite_are_refused():
    steps = walk()
    steps.reward[3] = np.nan
    with pytest.raises(UserError, match=r"steps\.reward"):
        weighted_advantage_table(steps, standard_normal, CONFIG, 0.99)


def test_client_without_steps_has_an_empty_table():
    empty = Steps(*(None if field is None else field[:0] for field in walk()))
    table = weighted_advantage_table(empty, standard_normal, ModellingConfig(missing="predicted"), 0.99)
    assert len(table.pair) == len(table.value) == 0
    assert table.fill is None


def test_cells_of_ones_own_replace_those_of_the_observation_and_lie_where_it_was_seen() -> None:
    observation = np.array([[0.0, 9.0], [1.0, 5.0], [0.2, 7.0], [5.0, 5.0]], np.float32)
    steps = Steps(observation, np.zeros(4, np.int64), np.ones(4), np.zeros(4, bool), cell=np.array([3, 8, 3, 8]))
    model = build_model(first_steps(steps, None), ModellingConfig(observation_cell=0.1))
    assert model.step_state.tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(model.state_centre, [[0.1, 8.0], [3.0, 5.0]], rtol=1e-6)
    assert len(build_model(first_steps(steps, 2), ModellingConfig()).step_state) == 2
