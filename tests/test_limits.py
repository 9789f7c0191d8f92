"""The hand-written loop with which the speed scripts compare: a limit that computes something else is no limit."""

import ctypes
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.core.presets import preset
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.execution.mapping import compiled
from fedpohcs.learners.base import Broadcast, Progress
from fedpohcs.learners.client import ClientProgram
from fedpohcs.learners.filters import Filters, Moments, filter_observation, filter_reward
from fedpohcs.learners.networks import apply_layers
from fedpohcs.learners.personal import client_learner
from fedpohcs.worlds import make_world

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FILTERS = Filters(
    Moments(
        np.full(8, 100, np.float32), np.tile(np.array([-0.5, 0.01], np.float32), (8, 1)), np.full((8, 2), 9, np.float32)
    ),
    Moments(np.full(8, 100, np.float32), np.zeros(8, np.float32), np.full(8, 4, np.float32)),
)


@pytest.fixture(scope="module")
def limits() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import _limits

        if not _limits.compiler():
            pytest.skip("needs a C compiler")
        yield _limits
    for name in ("_limits", "_common"):
        sys.modules.pop(name)


@pytest.fixture(scope="module")
def learner() -> Any:
    config = preset("mountain-cars")
    config = replace(config, federation=replace(config.federation, num_clients=8, num_candidates=4, num_selected=2))
    return client_learner(config, make_world(config))


@pytest.fixture(scope="module")
def params(learner: Any) -> Any:
    """Weights and biases at random."""
    initial, generator = learner.init_params(jax.random.key(0)), np.random.default_rng(0)
    return jax.tree.map(lambda x: np.float32(x + 0.1 * generator.standard_normal(np.shape(x))), initial)


def test_a_network_gives_what_it_gives_in_numpy(limits: ModuleType, params: Any) -> None:
    observation = np.random.default_rng(1).standard_normal((301, 2)).astype(np.float32)
    output, net = np.empty(len(observation), np.float32), limits.flat_net(*params.policy)
    addresses = map(limits.address, (observation, output))
    limits.car_loop().outputs(limits.address(net), len(observation), *addresses)
    np.testing.assert_allclose(output, apply_layers(params.policy.layers, observation)[:, 0], atol=1e-5)


def test_cars_drive_as_in_the_world_and_their_actions_are_draws_of_the_policy(
    limits: ModuleType, learner: Any, params: Any
) -> None:
    rows = limits.client_rows(learner.world, FILTERS)
    play = limits.Rollouts(learner, params, rows, episodes=10)
    steps, (observation, action, reward, status, _) = play(), play.trajectory
    valid, going = status != Status.PADDING, status == Status.RUNNING
    assert steps == valid.sum() and (status == Status.TERMINATED).any() and (status == Status.TRUNCATED).any()
    assert ((status >= Status.TERMINATED).sum(axis=0) == 1).all()

    shift = np.repeat(rows[:, 0], 10)
    step = jax.vmap(learner.world.step, in_axes=(0, 0, None, 0))
    cars = type(learner.world.population)(np.broadcast_to(shift, valid.shape)[valid])
    moved = step(observation[valid], action[valid][:, None], None, cars)
    np.testing.assert_allclose(moved.reward, reward[valid], atol=1e-4)
    after = np.roll(observation, -1, axis=0)[going]
    np.testing.assert_allclose(np.asarray(moved.observation)[going[valid]], after, atol=1e-6)

    one = jax.tree.map(lambda x: x[0], FILTERS)  # all are alike
    mean = apply_layers(params.policy.layers, filter_observation(one, observation[valid], 5.0))[:, 0]
    noise = (action[valid] - mean) / np.exp(params.policy.log_std)
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02


def test_a_local_iteration_learns_what_the_learner_learns(limits: ModuleType, learner: Any, params: Any) -> None:
    learner = replace(learner, config=replace(learner.config, learning_rate=0.2, max_gradient_norm=0.3))
    generator, steps = np.random.default_rng(2), 500
    filters = jax.tree.map(lambda x: x[0], FILTERS)
    trajectory = Trajectory(
        generator.uniform([-1, -0.05], [0.4, 0.05], (steps, 1, 2)).astype(np.float32),
        generator.standard_normal((steps, 1, 1), np.float32),
        generator.standard_normal((steps, 1), np.float32),
        np.where(np.arange(steps)[:, None] % 100 == 99, Status.TERMINATED, Status.RUNNING).astype(np.int8),
        None,
    )
    orders = generator.permuted(np.tile(np.arange(steps, dtype=np.int32), (4, 1)), axis=1)

    def of_one(tree: Any) -> Any:
        return jax.tree.map(lambda x: np.asarray(x)[None], tree)

    sent = Broadcast(params, jax.random.key(0), learner.schedule(0))
    now = Progress(params, filters, learner.init_memory(params))
    learn = compiled(ClientProgram.learn, ClientProgram(learner, evaluation_episodes=1))
    learned = jax.tree.map(lambda x: np.asarray(x)[0], learn(sent, *map(of_one, (now, trajectory, orders))).now.params)

    observation = filter_observation(filters, trajectory.observation[:, 0], 5.0).astype(np.float32)
    mean = np.ascontiguousarray(apply_layers(params.policy.layers, observation)[:, 0])
    reward = filter_reward(filters, trajectory.reward[:, 0], 10.0).astype(np.float32)
    columns = [observation, trajectory.action, reward, mean, trajectory.last.astype(np.int8), orders]
    policy, critic = limits.flat_net(*params.policy), limits.flat_net(params.critic)
    beta = np.array([params.kl_coefficient], np.float32)
    settings = ctypes.byref(limits.settings_of(learner))
    limits.car_loop().learn_from(settings, steps, *map(limits.address, [*columns, policy, critic, beta]))
    np.testing.assert_allclose(policy, limits.flat_net(*learned.policy), atol=1e-5)
    np.testing.assert_allclose(critic, limits.flat_net(learned.critic), atol=1e-5)
    np.testing.assert_allclose(beta, learned.kl_coefficient, rtol=1e-3)
    assert abs(policy - limits.flat_net(*params.policy)).max() > 0.02


def test_local_training_plays_whole_episodes_and_improves_the_networks(
    limits: ModuleType, learner: Any, params: Any
) -> None:
    train = limits.Training(learner, params, limits.client_rows(learner.world, FILTERS)[:2])
    steps, least = train(), 2 * learner.config.local_iterations * (learner.config.steps_per_iteration + 1)
    assert least <= steps < least + 2 * learner.config.local_iterations * learner.world.horizon
    for before, after in ((train.policy, train.policies), (train.critic, train.critics)):
        assert np.isfinite(after).all() and (abs(after - before).max(axis=1) > 1e-3).all()
