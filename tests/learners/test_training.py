"""Whole rounds of local training on the tabular preset, through the executor."""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from learners import numpy_ppo
from learners.numpy_client import NumpyClient
from learners.reference import InProcessExecutor, assert_same, preset

CLIENTS = np.array([1, 4])
RATE, BONUS = 0.1, 0.05


def executor_with(**changes: Any) -> InProcessExecutor:
    config = preset("tabular")
    learner = replace(config.learner, hidden_sizes=(5,), learning_rate=RATE, entropy_coefficient=BONUS, **changes)
    return InProcessExecutor(replace(config, learner=learner), record=False)


def policy_weights(params: Any) -> np.ndarray:
    """[C, ...] as one row per client."""
    return np.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(params.policy)], axis=1)


def test_the_first_step_of_a_round_uses_the_velocity_of_the_round_before() -> None:
    """With one step of the policy per round, all from the same weights: no minibatch is larger than the batch.

    In round 0 the velocity is g_0, in round 1 it is g_1 + 0.9 g_0, and for a client that never trained before g_1. The
    rates are a and a / 2. So the weights with and without an earlier round differ by -0.9 (a / 2) g_0, which is 0.45
    times the step -a g_0 of round 0.
    """
    changes = {"local_iterations": 1, "batch_size": 1000, "filter_rewards": False, "learning_rate_decay": 0.5}
    executor, newcomer = executor_with(**changes), executor_with(**changes)
    start = executor.initial_params()
    first = policy_weights(executor.train(start, 0, CLIENTS).params)
    kept = policy_weights(executor.train(start, 1, CLIENTS).params)
    forgotten = policy_weights(newcomer.train(start, 1, CLIENTS).params)
    step = first - policy_weights(jax.tree.map(lambda x: x[None], start))
    assert np.abs(step).max() > 1e-3
    np.testing.assert_allclose(kept - forgotten, 0.45 * step, atol=1e-6)


# Two rounds of two local iterations, compared with NumPy


class Rounds(NamedTuple):
    """Two rounds of an executor. The second starts from the weights of the first client."""

    executor: InProcessExecutor
    start: Any
    updates: list[Any]

    def sent(self, number: int) -> Any:
        return jax.tree.map(lambda x: x[0], self.updates[number - 1].params) if number else self.start


@cache
def two_rounds() -> Rounds:
    """With active filters, and with schedules that change in the second round."""
    executor = executor_with(
        filter_observations=True,
        observation_clip=2.0,  # a state that is one in six is 2.2 deviations off
        reward_clip=3.0,  # of a largest reward of about 3.4 deviations
        learning_rate_decay=0.7,
        entropy_decay_rounds=1,
        critic_learning_rate=0.01,
    )
    rounds = Rounds(executor, executor.initial_params(), [])
    for number in range(2):
        rounds.updates.append(executor.train(rounds.sent(number), number, CLIENTS))
    return rounds


def train_in_numpy(client: NumpyClient, number: int, forget: bool = False) -> numpy_ppo.Report:
    rate, bonus = RATE * 0.7**number, BONUS * 0.1**number
    return client.train(two_rounds().sent(number), number, rate, bonus, forget)


def own_params(number: int, index: int) -> Any:
    return jax.tree.map(lambda x: x[index], two_rounds().updates[number].params)


@pytest.mark.parametrize("index", range(len(CLIENTS)))
def test_two_rounds_of_training_equal_numpy(index: int) -> None:
    """That needs the right rollouts, filters, optimisers, shuffles, schedules and client states."""
    client = NumpyClient(two_rounds().executor, int(CLIENTS[index]))
    for number, update in enumerate(two_rounds().updates):
        report = train_in_numpy(client, number)
        assert_same(own_params(number, index), [client.agent.policy, client.agent.critic, client.agent.beta])
        assert_same([update.info[name][index] for name in report._fields], report, tolerance=1e-4)
        assert update.steps[index] == 600
    filters = jax.tree.map(lambda x: x[CLIENTS[index]], two_rounds().executor.state.filters)
    assert_same(filters, [client.observed, client.rewarded])


def test_a_client_that_forgets_its_momentum_between_rounds_or_iterations_learns_other_weights() -> None:
    """The difference is far larger than the tolerance of the comparison above."""
    client = NumpyClient(two_rounds().executor, int(CLIENTS[0]))
    train_in_numpy(client, 0)
    client.forget_momentum()
    train_in_numpy(client, 1)
    forgetful = NumpyClient(two_rounds().executor, int(CLIENTS[0]))
    train_in_numpy(forgetful, 0, forget=True)
    for number, other in [(1, client), (0, forgetful)]:
        ours = jax.tree.leaves(own_params(number, 0).policy)
        assert max(np.abs(x - y).max(initial=0) for x, y in zip(ours, other.agent.policy, strict=True)) > 1e-2


def test_filters_of_clients_that_do_not_train_stay_as_they_are() -> None:
    seen = two_rounds().executor.state.filters.observation.seen
    np.testing.assert_array_equal(np.delete(seen, CLIENTS), 0)
