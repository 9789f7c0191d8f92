"""The losses of the policy and of the critic, computed by hand."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from learners.reference import (
    Categorical,
    Dense,
    Gaussian,
    PolicyParams,
    PPOConfig,
    Samples,
    categorical,
    clipped_surrogate,
    critic_loss_of,
    float32,
    kl_penalty_surrogate,
    policy_loss_of,
)

CONFIG = PPOConfig(importance_cap=1.25, clip_range=0.2)
NO_BETA = NO_BONUS = np.float32(0)

# The old policy tosses a fair coin; the new one takes action 0 with probability 3/4. So w = 3/2 or 1/2, and
# KL(old || new) = (log 2/3 + log 2) / 2 = log(4/3) / 2. The other way round it would be 3/4 log 3/2 - 1/4 log 2.
ACTION = np.array([0, 0, 1, 1], np.int32)
ADVANTAGE = np.array([2, -1, 4, -2], np.float32)
KL = math.log(4 / 3) / 2
OTHER_KL = 0.75 * math.log(1.5) - 0.25 * math.log(2)
ENTROPY = math.log(4) - 0.75 * math.log(3)
PENALISED = np.array([1.25 * 2, 1.25 * -1, 0.5 * 4, 0.5 * -2])  # w A, but no weight above the cap
CLIPPED = np.array([1.2 * 2, 1.5 * -1, 0.5 * 4, 0.8 * -2])  # the smaller of w A and clip(w) A

# All inputs are 0, so the bias alone gives the logits.
COIN = PolicyParams((Dense(np.zeros((1, 2), np.float32), np.log([3, 1]).astype(np.float32)),), np.zeros(0, np.float32))


def tosses(rows: int = 4) -> Samples:
    """The four tosses, then padding with advantages that would dominate every mean."""
    more = rows - 4
    return Samples(
        jnp.zeros((rows, 1)),
        jnp.append(ACTION, jnp.zeros(more, int)),
        jnp.append(ADVANTAGE, jnp.full(more, 1e6)),
        jnp.zeros(rows),
        categorical(jnp.zeros((rows, 2))),
    )


def new_coin() -> Categorical:
    return categorical(jnp.broadcast_to(jnp.log(jnp.array([3.0, 1.0])), (4, 2)))


def test_weights_are_capped_and_the_penalty_is_the_divergence_from_the_old_policy() -> None:
    assert abs(KL - OTHER_KL) > 0.01
    gain = kl_penalty_surrogate(CONFIG, tosses(), new_coin(), jnp.float32(3))
    np.testing.assert_allclose(gain, PENALISED - 3 * KL, rtol=1e-5)


def test_weights_are_clipped_on_both_sides_where_clipping_lowers_the_gain() -> None:
    np.testing.assert_allclose(clipped_surrogate(CONFIG, tosses(), new_coin(), jnp.float32(3)), CLIPPED, rtol=1e-5)


def test_without_bounds_clipping_and_penalty_are_the_same_gain() -> None:
    free = replace(CONFIG, importance_cap=1e9, clip_range=1e9)
    penalised = kl_penalty_surrogate(free, tosses(), new_coin(), jnp.float32(0))
    np.testing.assert_array_equal(clipped_surrogate(free, tosses(), new_coin(), jnp.float32(0)), penalised)


@pytest.mark.parametrize(("loss", "gain"), [("kl-penalty", PENALISED.mean() - 3 * KL), ("clip", CLIPPED.mean())])
def test_the_loss_is_the_negated_mean_gain_with_an_entropy_bonus_and_padding_never_counts(
    loss: str, gain: float
) -> None:
    config, mask = replace(CONFIG, loss=loss), np.arange(6) < 4
    value, _ = policy_loss_of(COIN, config, tosses(6), mask, np.float32(3), np.float32(0.5))
    np.testing.assert_allclose(value, -(gain + 0.5 * ENTROPY), rtol=1e-5)


def test_capped_and_clipped_weights_have_no_gradient() -> None:
    """By the logit of action 0: dw = w / 4 for action 0 and -3 w / 4 for action 1, w = 3/2 or 1/2.

    The cap lets the third and the fourth toss through: -4 (1/2) 3/4 + 2 (1/2) 3/4 = -3/4. Clipping lets the second and
    the third through: -1 (3/2) / 4 - 4 (1/2) 3/4 = -15/8. The loss is the negated mean of four.
    """
    for loss, slope in [("kl-penalty", 3 / 16), ("clip", 15 / 32)]:
        _, gradient = policy_loss_of(COIN, replace(CONFIG, loss=loss), tosses(6), np.arange(6) < 4, NO_BETA, NO_BONUS)
        np.testing.assert_allclose(gradient.layers[0].bias, [slope, -slope], rtol=1e-5)


def test_the_entropy_bonus_raises_the_standard_deviation() -> None:
    """Without advantages the loss is -0.5 H, and H grows by 1 with every log sigma."""
    policy = PolicyParams((Dense(np.zeros((1, 2), np.float32), np.zeros(2, np.float32)),), np.zeros(2, np.float32))
    rows = jnp.zeros((3, 2))
    samples = Samples(rows[:, :1], rows, rows[:, 0], rows[:, 0], Gaussian(rows, rows))
    _, gradient = policy_loss_of(policy, CONFIG, samples, np.ones(3, bool), NO_BETA, np.float32(0.5))
    np.testing.assert_allclose(gradient.log_std, [-0.5, -0.5], rtol=1e-6)


def test_the_critic_loss_is_the_mean_squared_error_of_valid_steps() -> None:
    """V = 2 s + 1 is 3 and 5 where 1 and 8 are wanted: errors 2 and -3, loss 13/2.

    Slopes: by the kernel (2 * 2 * 1 - 2 * 3 * 2) / 2 = -4, by the bias (4 - 6) / 2 = -1. The third row is padding.
    """
    critic = (Dense(float32([[2]]), float32([1])),)
    target, states = float32([1, 8, 1e6]), float32([[1], [2], [3]])
    samples = tosses()._replace(observation=states, value_target=target)
    loss, gradient = critic_loss_of(critic, samples, np.array([True, True, False]))
    np.testing.assert_allclose(loss, 6.5, rtol=1e-6)
    np.testing.assert_allclose(gradient[0].kernel, [[-4]], rtol=1e-6)
    np.testing.assert_allclose(gradient[0].bias, [-1], rtol=1e-6)
