"""The learner beside an independent PPO in float64 NumPy, on one stored batch.

JAX computes in float32, as in a run. That is precise enough for a tolerance of 1e-5 times the largest entry of each
array: the largest difference measured is 3e-6, in Adam's moments. `stored_batch` describes the batch.
"""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.metrics.gradients import mean_norms
from learners import numpy_ppo
from learners.reference import (
    Batch,
    Broadcast,
    ClientInputs,
    Optimised,
    PPOConfig,
    Surroundings,
    advantages,
    assert_same,
    critic_loss_of,
    make_batch,
    optimiser_value,
    policy_loss,
    program_of,
    updated,
)
from learners.stored_batch import KINDS, SCHEDULE, SETTINGS, case, twin

LOSSES = ("kl-penalty", "clip")
RATE, BONUS = (float(x) for x in SCHEDULE)

kinds = pytest.mark.parametrize("kind", KINDS)
losses = pytest.mark.parametrize("loss", LOSSES)
bootstraps = pytest.mark.parametrize("bootstrap", [False, True])


def settings(loss: str = "kl-penalty", bootstrap: bool = True) -> PPOConfig:
    return replace(SETTINGS, loss=loss, bootstrap_at_time_limit=bootstrap)


@cache
def our_batches(kind: str) -> list[tuple[Any, Batch]]:
    """Advantages, values and batch, without bootstrapping and with it.

    All from one program: compiling takes most of the time of these tests.
    """
    given, configs = case(kind), [settings(bootstrap=bootstrap) for bootstrap in (False, True)]
    both = jax.jit(lambda *own: [(advantages(config, *own), make_batch(config, *own)) for config in configs])
    return both(given.params, given.filters, given.trajectory)


def our_batch(kind: str, bootstrap: bool = True) -> Batch:
    return our_batches(kind)[int(bootstrap)][1]


@cache
def our_policy_losses(kind: str) -> dict[str, Any]:
    """Both losses with their gradients, for a policy that differs from the one that acted."""
    batch = our_batch(kind)
    arguments = (batch.samples, batch.valid, jnp.float32(0.7), jnp.float32(0.02))
    both = jax.jit(
        lambda policy: {loss: jax.value_and_grad(policy_loss)(policy, settings(loss), *arguments) for loss in LOSSES}
    )
    return both(case(kind).moved)


@cache
def numpy_batch(kind: str, bootstrap: bool) -> numpy_ppo.Batch:
    given = twin(kind)
    agent = given.agent
    return numpy_ppo.make_batch(
        settings(bootstrap=bootstrap), agent.policy, agent.critic, given.observed, given.rewarded, given.trajectory
    )


def played(kind: str, bootstrap: bool = True) -> numpy_ppo.Samples:
    """The valid rows of the NumPy batch."""
    batch = numpy_batch(kind, bootstrap)
    return numpy_ppo.rows_of(batch.samples, batch.valid)


@kinds
@bootstraps
def test_advantages_and_values_equal_numpy(kind: str, bootstrap: bool) -> None:
    given, valid = twin(kind), case(kind).trajectory.valid
    ours, _ = our_batches(kind)[int(bootstrap)]
    theirs = numpy_ppo.advantages(
        settings(bootstrap=bootstrap), given.agent.critic, given.observed, given.rewarded, given.trajectory
    )
    assert_same([x[valid] for x in ours], [x[valid] for x in theirs])


@kinds
@bootstraps
def test_a_batch_equals_numpy(kind: str, bootstrap: bool) -> None:
    ours, theirs = our_batch(kind, bootstrap), numpy_batch(kind, bootstrap)
    np.testing.assert_array_equal(ours.valid, theirs.valid)
    samples, valid = ours.samples, theirs.valid
    exact = played(kind, bootstrap)
    assert_same(
        [samples.observation[valid], samples.advantage[valid], samples.value_target[valid]],
        [exact.observation, exact.advantage, exact.target],
    )
    assert_same(samples.old.log_prob(samples.action)[valid], exact.old.log_prob(exact.action))


@kinds
@losses
def test_the_policy_loss_and_its_gradient_equal_numpy_and_finite_differences(kind: str, loss: str) -> None:
    config, policy, ours = settings(loss), twin(kind).moved, our_policy_losses(kind)[loss]

    def loss_of(policy: numpy_ppo.Network) -> float:
        return numpy_ppo.policy_loss(config, policy, played(kind), 0.7, 0.02)[0]

    by_hand = numpy_ppo.policy_loss(config, policy, played(kind), 0.7, 0.02)
    exact = numpy_ppo.finite_differences(loss_of, policy)
    assert_same(ours, by_hand)
    assert_same(ours[1], exact)
    assert_same(by_hand[1], exact, tolerance=1e-7)


def test_the_critic_loss_and_its_gradient_equal_numpy_and_finite_differences() -> None:
    batch, critic = our_batch("gaussian"), twin("gaussian").agent.critic
    ours = critic_loss_of(case("gaussian").params.critic, batch.samples, batch.valid)

    def loss_of(critic: numpy_ppo.Network) -> float:
        return numpy_ppo.critic_loss(critic, played("gaussian"))[0]

    by_hand, exact = numpy_ppo.critic_loss(critic, played("gaussian")), numpy_ppo.finite_differences(loss_of, critic)
    assert_same(ours, by_hand)
    assert_same(ours[1], exact)
    assert_same(by_hand[1], exact, tolerance=1e-7)


@cache
def learnt(kind: str, loss: str, backwards: bool = False) -> Optimised:
    """One local iteration of two clients side by side; the second bootstraps at the time limit."""
    given = case(kind)
    batches = jax.tree.map(lambda *x: jnp.stack(x), our_batch(kind, bootstrap=False), our_batch(kind))
    shuffles = given.shuffles[:, ::-1] if backwards else given.shuffles
    params, optimisers, shuffles = jax.tree.map(lambda x: np.stack([x, x]), (given.params, given.optimisers, shuffles))
    return updated(settings(loss), SCHEDULE, params, optimisers, batches, shuffles)


@kinds
@losses
@bootstraps
def test_one_local_iteration_equals_numpy(kind: str, loss: str, bootstrap: bool) -> None:
    """Weights, velocity, Adam's moments, beta and the reported numbers, after 6 policy and 9 critic minibatches."""
    ours: Optimised = jax.tree.map(lambda x: np.asarray(x)[int(bootstrap)], learnt(kind, loss))
    params, optimisers, info = ours
    given = twin(kind)
    agent, report = numpy_ppo.local_iteration(
        settings(loss, bootstrap), RATE, BONUS, given.agent, numpy_batch(kind, bootstrap), given.shuffles
    )
    assert_same(params, [agent.policy, agent.critic, agent.beta])
    assert_same(optimiser_value(optimisers, "trace"), agent.velocity)
    assert_same([optimiser_value(optimisers, name) for name in ("count", "mu", "nu")], agent.adam)
    assert_same(info, report)


@kinds
@losses
def test_other_shuffles_give_other_weights(kind: str, loss: str) -> None:
    """The difference is far larger than the rounding errors of float32."""
    forwards, backwards = learnt(kind, loss)[0], learnt(kind, loss, backwards=True)[0]
    for one, other in [(forwards.policy, backwards.policy), (forwards.critic, backwards.critic)]:
        gap = max(np.abs(x - y).max(initial=0.0) for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True))
        assert gap > 1e-3


def test_the_gradient_norm_of_a_client_is_the_mean_over_its_minibatches() -> None:
    """80 rows in 4 minibatches, valid steps first: three of 20 and one of 7, without an entropy bonus."""
    given, exact, key = case("gaussian"), twin("gaussian"), jax.random.key(3)
    learner = program_of(settings(), Surroundings())
    own = ClientInputs(np.array([5]), None, *jax.tree.map(lambda x: x[None], (given.filters,)))
    trajectory = jax.tree.map(lambda x: x[None], given.trajectory)
    shuffle = np.asarray(jax.random.permutation(jax.random.fold_in(key, 5), 80))
    sent = Broadcast(given.params, key, SCHEDULE)
    ours = jax.jit(partial(mean_norms, learner))(sent, own, trajectory, shuffle[None])
    batch, policy, beta = numpy_batch("gaussian", True), exact.agent.policy, exact.agent.beta
    norms = [
        numpy_ppo.norm(numpy_ppo.policy_loss(settings(), policy, numpy_ppo.rows_of(batch.samples, rows), beta, 0.0)[1])
        for rows in numpy_ppo.minibatches(shuffle, batch.valid, 20)
    ]
    assert len(norms) == 4
    assert_same(ours, np.array([np.mean(norms)]))


@kinds
def test_every_limit_is_active_for_some_steps_of_the_stored_batch_and_inactive_for_others(kind: str) -> None:
    """Otherwise the comparison would not test the limit."""
    given, samples = twin(kind), played(kind)
    valid, limit = given.trajectory.status > 0, SETTINGS.observation_clip
    rewards = np.abs(given.trajectory.reward[valid] / numpy_ppo.std_of(given.rewarded))
    new = numpy_ppo.distribution(given.moved, samples.observation)
    weight = np.exp(new.log_prob(samples.action) - samples.old.log_prob(samples.action))
    up, low, high = samples.advantage > 0, 1 - SETTINGS.clip_range, 1 + SETTINGS.clip_range
    limits = {
        "observation_clip": np.abs(samples.observation) == limit,
        "reward_clip": rewards > SETTINGS.reward_clip,
        "importance_cap": weight > SETTINGS.importance_cap,
        "clip_range, above": up & (weight > high),
        "clip_range, below": ~up & (weight < low),
        "clip_range, where the advantage has the other sign": (up & (weight < low)) | (~up & (weight > high)),
        "max_gradient_norm": gradient_norms(kind) > SETTINGS.max_gradient_norm,
    }
    assert {name for name, active in limits.items() if active.all() or not active.any()} == set()
    assert set(np.unique(given.trajectory.status)) == set(range(4))


def gradient_norms(kind: str) -> np.ndarray:
    """Of the minibatches of the first epoch, at the initial weights."""
    given, batch = twin(kind), numpy_batch(kind, True)
    return np.array(
        [
            numpy_ppo.norm(
                numpy_ppo.policy_loss(
                    SETTINGS, given.agent.policy, numpy_ppo.rows_of(batch.samples, rows), given.agent.beta, BONUS
                )[1]
            )
            for rows in numpy_ppo.minibatches(given.shuffles[0], batch.valid, SETTINGS.batch_size)
        ]
    )
