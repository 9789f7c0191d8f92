"""The learner's parts, each beside a NumPy or SciPy one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learners.reference import (
    CLIENT_AXIS,
    Batch,
    Gaussian,
    PPOConfig,
    Samples,
    adapt_kl_coefficient,
    categorical,
    clipped_surrogate,
    generalised_advantage,
    kl_penalty_surrogate,
    run_epochs,
    valid_first,
)

CONFIG = PPOConfig()


def loop_advantage(delta: np.ndarray, continues: np.ndarray, decay: float) -> np.ndarray:
    """The recursion of Schulman et al. (2016), step by step."""
    result = np.zeros_like(delta)
    for t in reversed(range(len(delta))):
        later = result[t + 1] if t + 1 < len(delta) else 0.0
        result[t] = delta[t] + decay * continues[t] * later
    return result


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1, 7, 40]), st.integers(0, 1000))
def test_gae_matches_the_loop(length: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    delta = generator.normal(size=(length, 3)).astype(np.float32)
    continues = generator.uniform(size=(length, 3)) < 0.8
    fast = generalised_advantage(jnp.asarray(delta), jnp.asarray(continues), 0.99, 0.95)
    np.testing.assert_allclose(fast, loop_advantage(delta, continues, 0.99 * 0.95), rtol=1e-4, atol=1e-5)


def test_surrogates_match_numpy_by_hand() -> None:
    """Two samples: the weight of the first is capped, the second's is inside the clip range."""
    old = Gaussian(jnp.zeros((2, 1)), jnp.zeros((2, 1)))
    new = Gaussian(jnp.array([[3.0], [0.1]]), jnp.zeros((2, 1)))
    action = jnp.array([[3.0], [1.0]])
    samples = Samples(jnp.zeros((2, 1)), action, jnp.array([2.0, -1.0]), jnp.zeros(2), old)
    # log w = (a^2 - (a - mu)^2) / 2 = 4.5 and (1 - 0.81) / 2; KL = mu^2 / 2.
    weight = np.exp([4.5, 0.095])
    kl = np.array([4.5, 0.005])
    capped = np.minimum(weight, 10) * [2, -1] - 0.5 * kl
    np.testing.assert_allclose(kl_penalty_surrogate(CONFIG, samples, new, jnp.float32(0.5)), capped, rtol=1e-4)
    clipped = np.minimum(weight * [2, -1], np.clip(weight, 0.8, 1.2) * [2, -1])
    np.testing.assert_allclose(clipped_surrogate(CONFIG, samples, new, jnp.float32(0.5)), clipped, rtol=1e-4)


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.004, 2.0), (0.002, 0.5), (0.003, 1.0), (0.00325, 1.0), (3.0, 1 / 3)],
)
def test_beta_doubles_halves_stays_or_meets_its_ceiling(kl: float, expected: float) -> None:
    """Target .003; the largest advantage is 1, so beta may not exceed 1 / KL."""
    adapted = adapt_kl_coefficient(jnp.float32(1), jnp.float32(kl), 0.003, jnp.float32(1))
    np.testing.assert_allclose(adapted, expected, rtol=1e-6)


def test_beta_stays_within_its_bounds() -> None:
    up = adapt_kl_coefficient(jnp.float32(15), jnp.float32(0.01), 0.003, jnp.float32(9))
    down = adapt_kl_coefficient(jnp.float32(1e-8), jnp.float32(0), 0.003, jnp.float32(9))
    np.testing.assert_allclose([up, down], [20, 1e-8])


def test_distributions_match_scipy() -> None:
    from scipy import stats

    mean, log_std, action = np.array([[0.3, -1.0]]), np.array([[0.2, -0.5]]), np.array([[1.0, 0.0]])
    ours = Gaussian(mean, log_std)
    scale = np.exp(log_std)
    np.testing.assert_allclose(ours.log_prob(action), stats.norm.logpdf(action, mean, scale).sum(-1))
    np.testing.assert_allclose(ours.entropy(), stats.norm(mean, scale).entropy().sum(-1))
    logits = jnp.log(jnp.array([[0.2, 0.3, 0.5]]))
    np.testing.assert_allclose(categorical(logits).entropy(), stats.entropy([0.2, 0.3, 0.5]), rtol=1e-5)
    np.testing.assert_allclose(categorical(logits).log_prob(jnp.array([1])), np.log([0.3]), rtol=1e-5)


def test_kl_matches_sampling() -> None:
    one, other = Gaussian(jnp.array([0.5]), jnp.array([0.1])), Gaussian(jnp.array([0.0]), jnp.array([-0.2]))
    draws = one.sample(jax.random.normal(jax.random.key(0), (200_000, 1)))
    np.testing.assert_allclose(one.kl_to(other), (one.log_prob(draws) - other.log_prob(draws)).mean(), rtol=0.02)
    first, second = categorical(jnp.array([0.0, 1.0, 2.0])), categorical(jnp.array([1.0, 1.0, 0.0]))
    p = np.exp(first.logits)
    np.testing.assert_allclose(first.kl_to(second), (p * (first.logits - second.logits)).sum(), rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 13, 50]), st.integers(0, 1000))
def test_shuffled_valid_steps_come_first_each_once(size: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    shuffle, valid = generator.permutation(size), generator.uniform(size=size) < 0.6
    order = np.asarray(valid_first(jnp.asarray(shuffle), jnp.asarray(valid)))
    np.testing.assert_array_equal(order[: valid.sum()], shuffle[valid[shuffle]])


def test_an_epoch_visits_every_valid_step_once_and_padding_never() -> None:
    """Two clients mapped together, with 5 and 11 valid steps of 13, in minibatches of 4."""
    valid = np.zeros((2, 13), bool)
    valid[0, :5], valid[1, 2:] = True, True
    numbered = jnp.broadcast_to(jnp.arange(13.0), (2, 13))
    samples = Samples(numbered, numbered, numbered, numbered, categorical(jnp.zeros((2, 13, 2))))
    shuffles = jnp.asarray([np.random.default_rng(s).permutation(13) for s in (0, 1)])
    orders = jax.vmap(valid_first)(shuffles, jnp.asarray(valid))

    def count(seen: jax.Array, samples: Samples, mask: jax.Array) -> jax.Array:
        return seen.at[samples.observation.astype(int)].add(mask)

    seen = jax.vmap(
        lambda batch, order: run_epochs(count, jnp.zeros(13), batch, order[None], 4), axis_name=CLIENT_AXIS
    )(Batch(samples, jnp.asarray(valid)), orders)
    np.testing.assert_array_equal(seen, valid.astype(float))


def test_a_learner_config_is_a_key_for_compiled_programs() -> None:
    assert hash(CONFIG) == hash(PPOConfig())
    assert replace(CONFIG, epochs=2) != CONFIG
