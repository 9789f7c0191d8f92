"""DQN beside cases worked by hand: targets, replay ring, exploration and one local iteration."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.learning import DQNConfig
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.base import Broadcast, Progress
from fedpohcs.learners.dqn import DQN, QParams
from fedpohcs.learners.networks import Dense, PolicyParams
from fedpohcs.learners.off_policy import Draws, Memory, Transitions
from fedpohcs.worlds.tabular import NUM_ACTIONS, NUM_STATES, TabularWorlds

CONFIG = DQNConfig(
    hidden_sizes=(),
    discount=0.5,
    filter_observations=False,
    filter_rewards=False,
    replay_size=4,
    learning_rate=0.1,
    target_rate=0.5,
    epsilon_floor=0.06,
)
WORLD = TabularWorlds("none", 1)
ONE_HOT = np.eye(NUM_STATES, dtype=np.float32)


def dqn(**changes: Any) -> DQN:
    return DQN(replace(CONFIG, **changes), WORLD)


def q_table(**rows: tuple[float, ...]) -> tuple[Dense, ...]:
    """A linear network on one-hot states: `s2=(1, 2, 3)` are the values of the actions in state 2, others are 0."""
    kernel = np.zeros((NUM_STATES, NUM_ACTIONS), np.float32)
    for name, values in rows.items():
        kernel[int(name[1:])] = values
    return (Dense(kernel, np.zeros(NUM_ACTIONS, np.float32)),)


def trajectory(states: list[int], statuses: list[Status], following: int = 5) -> Trajectory:
    """One lane in which step t has the action t mod 3 and the reward 10 t; the last step leads to state `following`."""
    time = np.arange(len(states))
    return jax.tree.map(
        lambda x: jnp.asarray(x)[:, None],
        Trajectory(
            observation=ONE_HOT[states],
            action=(time % NUM_ACTIONS).astype(np.int32),
            reward=(10.0 * time).astype(np.float32),
            status=np.array(statuses, np.int8),
            next_observation=ONE_HOT[[*states[1:], following]],
        ),
    )


@pytest.mark.parametrize(("double", "first"), [(True, 1 + 0.5 * 2), (False, 1 + 0.5 * 8)])
def test_the_online_network_chooses_what_the_target_network_values_only_if_double(double: bool, first: float) -> None:
    batch = Transitions(
        ONE_HOT[[3, 3]], np.zeros(2, np.int32), np.array([1, 7], np.float32), ONE_HOT[[0, 0]], np.array([False, True])
    )
    found = dqn(double=double).target_value(q_table(s0=(0, 5, 1)), q_table(s0=(8, 2, 4)), batch)
    np.testing.assert_allclose(found, [first, 7], err_msg="nothing follows a terminated step")


def test_only_a_terminated_step_ends_what_follows_and_a_cut_one_goes_on_to_its_next_observation() -> None:
    steps = trajectory([0, 1, 2, 3], [Status.RUNNING, Status.TERMINATED, Status.RUNNING, Status.TRUNCATED])
    filters = dqn().init_filters()
    found, valid = dqn().loss_samples(QParams(PolicyParams(q_table(), np.zeros(0))), filters, steps)
    np.testing.assert_array_equal(found.terminated, [False, True, False, False])
    np.testing.assert_array_equal(np.asarray(found.next_observation)[[0, 2, 3]], ONE_HOT[[1, 3, 5]])
    assert np.asarray(valid).all()


def remembered(rounds: list[Trajectory], **changes: Any) -> Memory:
    learner = dqn(**changes)
    memory = learner.init_memory(QParams(PolicyParams(q_table(), np.zeros(0))))
    for steps in rounds:
        memory = jax.jit(learner.remember)(memory, steps)
    return memory


def states_of(memory: Memory) -> list[int]:
    return np.argmax(memory.replay.observation, axis=-1).tolist()


RUNNING, CUT, PADDING = Status.RUNNING, Status.TRUNCATED, Status.PADDING


def test_the_ring_overwrites_the_oldest_and_never_takes_padding() -> None:
    first = trajectory([1, 2, 3], [RUNNING, RUNNING, CUT])
    second = trajectory([4, 0, 5, 2], [RUNNING, CUT, PADDING, PADDING])
    memory = remembered([first, second])
    assert states_of(memory) == [0, 2, 3, 4]  # places 3 and, around the end, 0
    assert int(memory.written) == 5
    np.testing.assert_array_equal(memory.replay.reward, [10, 10, 20, 0])
    np.testing.assert_array_equal(memory.replay.action, [1, 1, 2, 0])


def test_of_more_steps_than_the_ring_holds_the_newest_survive() -> None:
    memory = remembered([trajectory([1, 1, 2, 3, 4, 5], [RUNNING] * 5 + [CUT])])
    assert states_of(memory) == [4, 5, 2, 3]
    assert int(memory.written) == 6


def test_random_actions_have_the_probability_epsilon_in_training_and_its_floor_in_evaluations() -> None:
    learner = dqn(epsilon=0.6, epsilon_decay=0.5, epsilon_floor=0.06)
    params, schedule = QParams(PolicyParams(q_table(s0=(1, 0, 2)), np.zeros(0))), learner.schedule(1)
    noise = np.random.default_rng(0).random((100_000, 2), np.float32)
    for training, epsilon in ((True, 0.3), (False, 0.06)):
        actor = learner.actor(params, learner.init_filters(), schedule, training=training)
        chosen = actor.act(np.repeat(ONE_HOT[:1], len(noise), axis=0), noise)
        expected = np.array([epsilon / 3, epsilon / 3, 1 - 2 * epsilon / 3])
        np.testing.assert_allclose(np.bincount(chosen, minlength=3) / len(noise), expected, atol=0.005)
    np.testing.assert_allclose(np.exp(learner.distribution(params, ONE_HOT[:1]).logits), [expected], rtol=1e-5)


def test_epsilon_decays_by_round_to_its_floor() -> None:
    learner = dqn(epsilon=0.8, epsilon_decay=0.5, epsilon_floor=0.15)
    np.testing.assert_allclose([learner.schedule(n).epsilon for n in range(5)], [0.8, 0.4, 0.2, 0.15, 0.15])


def learned(steps: Trajectory, draws: list[list[float]], **changes: Any) -> Any:
    learner = dqn(**changes)
    params = QParams(PolicyParams(q_table(), np.zeros(0)))
    now = Progress(params, learner.init_filters(), learner.init_memory(params))
    sent = Broadcast(params, jax.random.key(0), learner.schedule(0))
    place = np.array(draws, np.float32)
    return jax.jit(learner.learn)(sent, now, steps, Draws(np.int32(0), place, np.zeros((*place.shape, 0), np.float32)))


def test_two_gradient_steps_follow_a_target_network_that_moves_half_the_way() -> None:
    """One step from state 0 to itself with reward 1.

    Adam first moves kernel and bias of the action by 0.1 each, so Q goes from 0 to 0.2 and the target to 0.1.
    """
    step = trajectory([0], [CUT], following=0)._replace(reward=jnp.ones((1, 1)))
    result = learned(step, [[0.5], [0.5]])
    np.testing.assert_allclose(result.info.loss, (0.5 * 1**2 + 0.5 * (1 + 0.5 * 0.1 - 0.2) ** 2) / 2, rtol=1e-4)
    np.testing.assert_allclose(result.info.value, (0 + 0.2) / 2, rtol=1e-4)
    assert int(result.steps) == 1


def test_minibatches_are_drawn_from_what_the_ring_holds() -> None:
    """Rewards 0 and 10: the Huber losses are 0 and 9.5, and half of the draws go to each. Two places are empty."""
    result = learned(trajectory([0, 1], [RUNNING, CUT]), [[0.2, 0.45, 0.99]])
    np.testing.assert_allclose(result.info.loss, 9.5 / 3, rtol=1e-5)


def test_large_differences_count_by_their_size_and_the_gradient_is_that_of_the_steps_marked() -> None:
    learner = dqn()
    params = QParams(PolicyParams(q_table(), np.zeros(0)))
    samples, _ = learner.loss_samples(params, learner.init_filters(), trajectory([0, 1], [RUNNING, CUT]))
    (gradient,) = learner.gradient(params, samples, jnp.array([False, True]))
    expected = np.zeros((NUM_STATES, NUM_ACTIONS))
    expected[1, 1] = -1  # state 1, action 1, wanted 10, found 0: a difference beyond 1 has the slope 1
    np.testing.assert_allclose(gradient.kernel, expected, atol=1e-6)


def test_advantage_samples_are_the_distance_to_the_best_action() -> None:
    params = QParams(PolicyParams(q_table(s0=(4, 1, 2), s1=(0, 1, 3)), np.zeros(0)))
    steps = trajectory([0, 1, 2], [RUNNING, CUT, PADDING])
    found = dqn().step_advantages(params, dqn().init_filters(), steps)
    np.testing.assert_allclose(found[:, 0], [0, -2, 0])
