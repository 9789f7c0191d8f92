"""One local iteration, computed by hand.

The policy is a normal distribution of two actions. All observations and actions are 0, so that only log sigma changes.
Advantages are 0 or cancel, so that every minibatch has the gradient -c by both log sigmas, where c is the coefficient
of the entropy bonus. The value of the critic is its bias.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learners.reference import (
    CLIENT_AXIS,
    AgentParams,
    Batch,
    Dense,
    Gaussian,
    Optimised,
    PolicyParams,
    PPOConfig,
    Samples,
    Schedule,
    Surroundings,
    float32,
    init_optimisers,
    optimiser_value,
    optimisers_at,
    program_of,
    run_epochs,
    updated_alone,
    valid_first,
)

CONFIG = PPOConfig(
    epochs=1,
    critic_epochs=1,
    batch_size=4,
    momentum=0.5,
    max_gradient_norm=10,
    learning_rate=77.0,  # not used: the schedule gives the rates
    entropy_coefficient=77.0,
    critic_learning_rate=0.1,
    kl_target=0.01,
)
SHUFFLES = np.array([[7, 0, 3, 6, 1, 4, 5, 2], [1, 5, 0, 7, 2, 6, 4, 3]], np.int32)  # of the policy and of the critic


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape)


def params(beta: float) -> AgentParams:
    return AgentParams(
        PolicyParams((Dense(zeros(1, 2), zeros(2)),), zeros(2)), (Dense(zeros(1, 1), zeros(1)),), float32(beta)
    )


def batch(valid: int, advantage: float) -> Batch:
    """The first of 8 rows, with advantages of alternating sign; the padding has very large advantages and targets."""
    rows = jnp.arange(8)
    advantages = jnp.where(rows < valid, advantage * (-1.0) ** rows, 1e6)
    targets = jnp.where(rows < valid, 3.0, -1e6)
    samples = Samples(zeros(8, 1), zeros(8, 2), advantages, targets, Gaussian(zeros(8, 2), zeros(8, 2)))
    return Batch(samples, rows < valid)


def learn(
    valid: int = 5, bonus: float = 0.3, velocity: float = 0.0, advantage: float = 0.0, beta: float = 0.0
) -> Optimised:
    start = params(beta)
    moving = start.policy._replace(log_std=np.full(2, velocity, np.float32))
    optimisers = optimisers_at(init_optimisers(CONFIG, start), trace=moving)
    schedule = Schedule(float32(0.1), float32(bonus))
    return updated_alone(CONFIG, schedule, start, optimisers, batch(valid, advantage), SHUFFLES)


def test_the_last_minibatch_is_averaged_over_its_own_steps_and_momentum_adds_up() -> None:
    """Five steps in minibatches of 4 and 1: velocities -0.3 and -0.3 - 0.3/2, learning rate 0.1."""
    new, optimisers, _ = learn()
    np.testing.assert_allclose(new.policy.log_std, 0.1 * (0.3 + 0.45) * np.ones(2), rtol=1e-5)
    np.testing.assert_allclose(optimiser_value(optimisers, "trace").log_std, [-0.45, -0.45], rtol=1e-5)
    np.testing.assert_array_equal(new.policy.layers[0].bias, 0)


def test_an_iteration_starts_with_the_velocity_of_the_one_before() -> None:
    """Velocity 1: first 1/2 - 0.3 = 0.2, then 0.1 - 0.3 = -0.2, and both steps cancel."""
    new, optimisers, _ = learn(velocity=1.0)
    np.testing.assert_allclose(new.policy.log_std, 0, atol=1e-6)
    np.testing.assert_allclose(optimiser_value(optimisers, "trace").log_std, [-0.2, -0.2], rtol=1e-5)


def test_gradients_are_scaled_down_to_the_largest_norm_before_momentum() -> None:
    """The gradient (-40, -40) becomes 10 long: -10 / sqrt 2 each; velocities are 1 and 3/2 times that."""
    new, _, _ = learn(bonus=40.0)
    np.testing.assert_allclose(new.policy.log_std, 0.1 * 2.5 * 10 / math.sqrt(2) * np.ones(2), rtol=1e-5)


def test_adam_rescales_every_step_of_the_policy_and_keeps_its_moments() -> None:
    """Two minibatches, and two more with the moments that they left: every gradient is -0.3, so every step is 0.1."""
    config, start = replace(CONFIG, optimiser="adam"), params(0.0)
    optimisers = init_optimisers(config, start)
    schedule = Schedule(float32(0.1), float32(0.3))
    for steps in (2, 4):
        start, optimisers, _ = updated_alone(config, schedule, start, optimisers, batch(5, 0.0), SHUFFLES)
        np.testing.assert_allclose(start.policy.log_std, 0.1 * steps * np.ones(2), rtol=1e-5)
        moments = optimisers.policy[1]
        assert moments.count == steps
        np.testing.assert_allclose(moments.mu.log_std, -0.3 * (1 - 0.9**steps), rtol=1e-5)
        np.testing.assert_allclose(moments.nu.log_std, 0.09 * (1 - 0.999**steps), rtol=1e-4)


def test_adam_forgets_a_large_gradient_slowly() -> None:
    """Gradients -3, then -0.3: m = -(0.27 + 0.03) / 0.19 and v = (0.000999 * 9 + 0.001 * 0.09) / 0.001999."""
    config, start = replace(CONFIG, optimiser="adam"), params(0.0)
    optimisers = init_optimisers(config, start)
    for bonus in (3.0, 0.3):
        before = start.policy.log_std
        schedule = Schedule(float32(0.1), float32(bonus))
        start, optimisers, _ = updated_alone(config, schedule, start, optimisers, batch(4, 0.0), SHUFFLES)
    step = 0.1 * (0.30 / 0.19) / math.sqrt((0.000999 * 9 + 0.001 * 0.09) / 0.001999)
    np.testing.assert_allclose(start.policy.log_std - before, step * np.ones(2), rtol=1e-4)


def test_an_entropy_bonus_raises_the_entropy_that_is_reported() -> None:
    """Two actions of log sigma 0.075."""
    info = learn()[2]
    np.testing.assert_allclose(info.entropy, math.log(2 * math.pi * math.e) + 2 * 0.075, rtol=1e-5)


def test_the_critic_takes_adam_steps_towards_its_targets() -> None:
    """Targets 3 and minibatches of 4 and 1.

    First g = -6: the step is the learning rate, 0.1. Then g = 2 (0.1 - 3) = -5.8:
    m = (0.09 * -6 + 0.1 * -5.8) / (1 - 0.81) = -1.12 / 0.19, v = (0.000999 * 36 + 0.001 * 33.64) / (1 - 0.998001).
    """
    new, optimisers, info = learn()
    step = 0.1 * (1.12 / 0.19) / math.sqrt((0.000999 * 36 + 0.001 * 33.64) / 0.001999)
    np.testing.assert_allclose(new.critic[0].bias, [0.1 + step], rtol=1e-5)
    np.testing.assert_allclose(info.critic_loss, (3 - 0.1 - step) ** 2, rtol=1e-5)
    assert optimiser_value(optimisers, "count") == 2


@pytest.mark.parametrize(
    ("bonus", "beta", "adapted"),
    [(5.0, 1.0, 2.0), (5.0, 2.0, math.e), (5.0, 15.0, math.e), (0.0, 1.0, 0.5)],
    ids=["far: doubled", "far: up to the ceiling", "far: down to the ceiling", "not at all: halved"],
)
def test_beta_follows_the_divergence_and_the_largest_valid_advantage(bonus: float, beta: float, adapted: float) -> None:
    """Four steps, one minibatch, advantages 1, -1, 1, -1, whose gradients cancel: log sigma = 0.1 * bonus = 1/2.

    KL(old || new) = 2 (1/2 + (exp(-1) - 1) / 2) = 1/e, so beta may not exceed 1 / (1/e) = e. The other way round the
    divergence would be e - 2 and the ceiling 1.39.
    """
    new, _, info = learn(valid=4, bonus=bonus, advantage=1.0, beta=beta)
    np.testing.assert_allclose(info.kl, math.exp(-1) if bonus else 0, rtol=1e-5)
    np.testing.assert_allclose(new.kl_coefficient, adapted, rtol=1e-5)


def test_every_valid_step_is_in_the_minibatch_that_the_shuffle_gives_it() -> None:
    """Steps 0 1 2 4 5 7 are shuffled to 7 0 1 4 | 5 2; each notes the number of its minibatch."""
    valid = jnp.array([1, 1, 1, 0, 1, 1, 0, 1], bool)
    rows = Batch(batch(8, 0.0).samples._replace(observation=np.arange(8)), valid)

    def note(carry: tuple, samples: Samples, mask: jax.Array) -> tuple:
        number, seen = carry
        return number + 1, seen.at[jnp.where(mask, samples.observation, 8)].add(number, mode="drop")

    def one(rows: Batch, shuffle: jax.Array) -> jax.Array:
        order = valid_first(shuffle, rows.valid)[None]
        return run_epochs(note, (jnp.int32(1), jnp.zeros(8, jnp.int32)), rows, order, 4)[1]

    one_client = jax.tree.map(lambda x: jnp.asarray(x)[None], (rows, SHUFFLES[0]))
    seen = jax.vmap(one, axis_name=CLIENT_AXIS)(*one_client)[0]
    np.testing.assert_array_equal(seen, [1, 1, 2, 0, 1, 2, 0, 1])


def test_minibatches_are_drawn_anew_in_every_epoch_and_are_not_in_time_order() -> None:
    config = PPOConfig(local_iterations=3, steps_per_iteration=150, epochs=2, critic_epochs=2)
    shuffles = program_of(config, Surroundings()).learner.draws(np.random.default_rng(0))
    assert shuffles.shape == (3, 4, 200)
    orders = shuffles.reshape(12, 200)
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.broadcast_to(np.arange(200), (12, 200)))
    assert len(np.unique(orders, axis=0)) == 12
    # Neighbours in time order are 1 apart, and 200 / 3 on average where the order is random.
    np.testing.assert_allclose(np.abs(np.diff(orders)).mean(), 200 / 3, rtol=0.1)


def test_the_learning_rate_decays_to_its_floor_and_the_entropy_bonus_by_tenths() -> None:
    config = PPOConfig(
        learning_rate=0.8,
        learning_rate_decay=0.5,
        learning_rate_floor=0.15,
        entropy_coefficient=0.3,
        entropy_decay_rounds=2,
    )
    schedules = [program_of(config, Surroundings()).learner.schedule(number) for number in range(5)]
    np.testing.assert_allclose([x.learning_rate for x in schedules], [0.8, 0.4, 0.2, 0.15, 0.15], rtol=1e-6)
    np.testing.assert_allclose([x.entropy_coefficient for x in schedules], [0.3, 0.3, 0.03, 0.03, 0.003], rtol=1e-6)


def test_an_entropy_coefficient_of_0_stays_0() -> None:
    learner = program_of(PPOConfig(entropy_coefficient=0.0), Surroundings()).learner
    assert [float(learner.schedule(number).entropy_coefficient) for number in (0, 500)] == [0, 0]
