"""Two rounds of two local iterations each on the tabular preset, through the executor, compared with NumPy."""

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
    config = preset("tabular")
    learner = replace(
        config.learner,
        hidden_sizes=(5,),
        learning_rate=RATE,
        entropy_coefficient=BONUS,
        filter_observations=True,
        observation_clip=2.0,  # a state that is one in six is 2.2 deviations off
        reward_clip=3.0,  # of a largest reward of about 3.4 deviations
        learning_rate_decay=0.7,
        entropy_decay_rounds=1,
        critic_learning_rate=0.01,
    )
    executor = InProcessExecutor(replace(config, learner=learner), record=False)
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
    """So the comparison above needs the velocity of the round, and of the iteration, before."""
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
