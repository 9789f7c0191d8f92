"""QAvg and SARSA beside cases worked by hand, a NumPy twin, and the exact methods of the theory."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import QAvgConfig, SarsaConfig, as_kind
from fedpohcs.core.presets import preset
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.base import Broadcast, Progress, make_learner
from fedpohcs.learners.dqn import QParams
from fedpohcs.learners.networks import Dense, PolicyParams
from fedpohcs.worlds.mountain_car import MountainCars
from fedpohcs.worlds.tables import PerturbedKernels, RandomMDPs

RUNNING, CUT, ENDED, PADDING = Status.RUNNING, Status.TRUNCATED, Status.TERMINATED, Status.PADDING
QAVG = QAvgConfig(discount=0.5, learning_rate=0.25, epsilon=0.4, epsilon_decay=0.5, epsilon_floor=0.06)
SARSA = SarsaConfig(discount=0.5, learning_rate=0.25, inverse_temperature=2.0)
WORLD = RandomMDPs("none", 1)
ONE_HOT = np.eye(5, dtype=np.float32)


def table(**rows: tuple[float, ...]) -> QParams:
    """`s2=(1, 2, 3, 4, 5)` are the values of the actions in state 2, others are 0."""
    kernel = np.zeros((5, 5), np.float32)
    for name, values in rows.items():
        kernel[int(name[1:])] = values
    return QParams(PolicyParams((Dense(kernel, np.zeros(5, np.float32)),), np.zeros(0)))


def trajectory(states: list[int], actions: list[int], rewards: list[float], status: list[Status], end: int = 4) -> Any:
    steps = Trajectory(
        ONE_HOT[states],
        np.array(actions, np.int32),
        np.array(rewards, np.float32),
        np.array(status, np.int8),
        ONE_HOT[[*states[1:], end]],
    )
    return jax.tree.map(lambda x: jnp.asarray(x)[:, None], steps)


def learned(config: Any, steps: Any, params: QParams, world: Any = WORLD) -> Any:
    learner = make_learner(config, world)
    now = Progress(params, learner.init_filters(), learner.init_memory(params))
    sent = Broadcast(params, jax.random.key(0), learner.schedule(0))
    return jax.jit(learner.learn)(sent, now, steps, np.zeros(0, np.float32))


def kernel_of(result: Any) -> np.ndarray:
    (layer,) = result.now.params.policy.layers
    np.testing.assert_array_equal(layer.bias, 0)
    return np.asarray(layer.kernel)


def test_q_learning_goes_through_the_episode_in_the_order_of_time() -> None:
    """Twice the same pair: the second step reads what the first one learned."""
    start = table(s1=(0, 0, 8, 0, 0))
    steps = trajectory([0, 0, 1], [3, 3, 2], [1, 1, 0], [RUNNING, RUNNING, ENDED])
    first = 0.25 * (1 + 0.5 * 0)  # from state 0 to itself, where all values are 0
    second = first + 0.25 * (1 + 0.5 * 8 - first)  # to state 1, whose best value is 8
    found = learned(QAVG, steps, start)
    expected = np.zeros((5, 5))
    expected[0, 3], expected[1, 2] = second, 8 + 0.25 * (0 - 8)  # nothing follows an end
    np.testing.assert_allclose(kernel_of(found), expected, rtol=1e-6)
    assert int(found.steps) == 3
    np.testing.assert_allclose(found.info.value, (0 + first + 8) / 3, rtol=1e-6)


def test_a_cut_step_goes_on_to_its_next_observation_and_padding_teaches_nothing() -> None:
    start = table(s4=(0, 6, 0, 0, 0))
    found = learned(QAVG, trajectory([2, 3], [1, 1], [1, 99], [CUT, PADDING], end=0), start)
    # The trajectory's next observation of the cut step is state 3, whose values are 0.
    np.testing.assert_allclose(kernel_of(found)[2], [0, 0.25, 0, 0, 0])
    found = learned(QAVG, trajectory([2], [1], [1], [CUT], end=4), start)
    np.testing.assert_allclose(kernel_of(found)[2], [0, 0.25 * (1 + 0.5 * 6), 0, 0, 0])
    np.testing.assert_array_equal(kernel_of(found)[3], 0)


def test_sarsa_reads_the_action_that_was_taken_and_at_a_cut_the_mean_of_the_policy() -> None:
    start = table(s1=(0, 1, 0, 0, 0), s4=(1, 0, 0, 0, 0))
    found = learned(SARSA, trajectory([0, 1], [3, 1], [1, 0], [RUNNING, CUT], end=4), start)
    weights = np.exp(2.0 * np.array([1, 0, 0, 0, 0]))
    mean = weights[0] / weights.sum()
    expected = np.zeros((5, 5))
    expected[4, 0] = 1
    expected[0, 3] = 0.25 * (1 + 0.5 * 1)  # Q(1, 1), not the mean over actions
    expected[1, 1] = 1 + 0.25 * (0.5 * mean - 1)
    np.testing.assert_allclose(kernel_of(found), expected, rtol=1e-6)


def test_lanes_share_a_step() -> None:
    """Two lanes, of which one has ended: the mean is over the lanes that still play."""
    one = trajectory([0, 1], [0, 0], [1, 1], [RUNNING, CUT])
    other = trajectory([2, 0], [0, 0], [3, 9], [CUT, PADDING])
    both = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), one, other)
    found = kernel_of(learned(replace(QAVG, discount=1e-9), both, table()))
    np.testing.assert_allclose(found[:3, 0], [0.125, 0.25, 0.375], rtol=1e-6)


@pytest.mark.parametrize("config", [QAVG, SARSA], ids=["qavg", "sarsa"])
def test_random_episodes_agree_with_numpy(config: Any) -> None:
    generator = np.random.default_rng(0)
    status = np.array(([RUNNING] * 9 + [CUT]) * 4)
    states, actions = generator.integers(5, size=(2, len(status)))
    rewards = generator.normal(size=len(status))
    steps = trajectory(states.tolist(), actions.tolist(), rewards.tolist(), status.tolist(), end=0)
    found = kernel_of(learned(config, steps, table()))
    q, following = np.zeros((5, 5)), [*states[1:], 0]
    for t in range(len(status)):
        ahead = q[following[t]]
        policy = np.exp(2.0 * ahead) / np.exp(2.0 * ahead).sum()
        mean_or_best = ahead.max() if config is QAVG else policy @ ahead
        value = ahead[actions[t + 1]] if config is SARSA and status[t] == RUNNING else mean_or_best
        q[states[t], actions[t]] += 0.25 * (rewards[t] + 0.5 * value - q[states[t], actions[t]])
    np.testing.assert_allclose(found, q, rtol=1e-4, atol=1e-6)


def test_tables_start_at_zero_and_networks_at_random() -> None:
    plain = make_learner(QAVG, WORLD).init_params(jax.random.key(1))
    assert not np.asarray(plain.policy.layers[0].kernel).any()
    deep = make_learner(replace(QAVG, hidden_sizes=(3,)), WORLD).init_params(jax.random.key(1))
    assert np.asarray(deep.policy.layers[0].kernel).any()


def test_rates_and_exploration_decay_by_round() -> None:
    learner = make_learner(replace(QAVG, learning_rate_decay=0.5), WORLD)
    np.testing.assert_allclose([learner.schedule(n).rate for n in range(3)], [0.25, 0.125, 0.0625])
    np.testing.assert_allclose([learner.schedule(n).epsilon for n in range(4)], [0.4, 0.2, 0.1, 0.06])


def test_classes_of_actions_share_values_and_the_policy_draws_by_them() -> None:
    world = PerturbedKernels("none", 1)
    learner = make_learner(replace(SARSA, action_classes=5), world)
    params = table(s2=(0.5, 0, 0, 0, 0))
    logits = np.asarray(learner.distribution(params, ONE_HOT[2:3]).logits)[0]
    shares = np.exp(logits)
    np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(shares[0::5], np.e / 20 / (np.e + 4), rtol=1e-5)  # softmax of L Q = 1 against 0
    noise = learner.noise.draw(np.random.default_rng(0), 20_000)
    actor = learner.actor(params, learner.init_filters(), learner.schedule(0), training=True)
    drawn = actor.act(np.repeat(ONE_HOT[2:3], len(noise), axis=0), noise)
    np.testing.assert_allclose((drawn % 5 == 0).mean(), np.e / (np.e + 4), atol=0.01)
    steps = trajectory([2], [15], [1], [CUT], end=0)
    found = kernel_of(learned(replace(SARSA, action_classes=5), steps, table(), world))
    assert found[2].tolist() == [0.25, 0, 0, 0, 0]  # 15 has the class 0


def test_without_temperature_the_policy_is_uniform_whatever_the_values() -> None:
    learner = make_learner(replace(SARSA, inverse_temperature=0.0), WORLD)
    shares = np.exp(learner.distribution(table(s0=(9, 0, 0, 0, 0)), ONE_HOT[:1]).logits)
    np.testing.assert_allclose(shares, 0.2, rtol=1e-5)


def test_advantages_and_values_of_sarsa_are_relative_to_its_policy() -> None:
    learner = make_learner(SARSA, WORLD)
    params = table(s0=(1, 0, 0, 0, 0))
    mean = np.exp(2) / (np.exp(2) + 4)
    np.testing.assert_allclose(learner.values(params, ONE_HOT[:1]), [mean], rtol=1e-5)
    steps = trajectory([0, 0], [0, 1], [0, 0], [RUNNING, CUT])
    found = learner.step_advantages(params, learner.init_filters(), steps)
    np.testing.assert_allclose(found[:, 0], [1 - mean, -mean], rtol=1e-5)


@pytest.mark.parametrize("config", [QAVG, SARSA])
def test_continuous_actions_are_refused(config: Any) -> None:
    with pytest.raises(UserError, match="needs a world with discrete actions"):
        make_learner(config, MountainCars("low", 2))


def test_a_preset_of_another_learner_changes_to_a_table() -> None:
    changed = as_kind(preset("tabular").learner, "qavg")
    assert (changed.kind, changed.hidden_sizes, changed.filter_observations) == ("qavg", (), False)
