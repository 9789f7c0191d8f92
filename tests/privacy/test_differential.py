import math

import numpy as np
import pytest

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.privacy.differential import discrete_laplace, num_levels, privacy_loss, protected_level, score_of_level
from fedpohcs.privacy.errors import RefusedError


@pytest.mark.parametrize("bits", [2, 8, 24])
def test_a_score_comes_back_up_to_its_rounding(bits: int) -> None:
    config = ProtectionConfig(score_bits=bits)
    for score in np.linspace(-1, 1, 41):
        level = protected_level(float(score), config)
        assert abs(level) <= num_levels(config)
        assert abs(score_of_level(level, config) - score) <= 0.5 / num_levels(config) + 1e-12


def test_a_score_out_of_range_is_clipped_by_the_client_and_refused_by_the_server() -> None:
    config = ProtectionConfig(score_bits=8)
    assert protected_level(7.0, config) == 127
    with pytest.raises(RefusedError, match="range"):
        score_of_level(128, config)
    with pytest.raises(RefusedError, match="finite"):
        protected_level(math.nan, config)


def test_noise_has_the_distribution_that_gives_epsilon() -> None:
    """P(z) is proportional to exp(-|z| / scale)."""
    generator, scale = np.random.default_rng(0), 3.0
    draws = np.array([discrete_laplace(scale, generator.random) for _ in range(200_000)])
    decay = math.exp(-1 / scale)
    for z in range(-6, 7):
        chance = (1 - decay) / (1 + decay) * decay ** abs(z)
        assert np.mean(draws == z) == pytest.approx(chance, abs=4 * math.sqrt(chance / len(draws)))


def test_epsilon_bounds_what_one_score_can_tell() -> None:
    """The two most different scores, with noise: no set of outcomes is more than e**epsilon times as likely."""
    config, generator = ProtectionConfig(score_bits=4, epsilon=1.0), np.random.default_rng(1)
    low, high = ([protected_level(s, config, generator.random) for _ in range(100_000)] for s in (-1.0, 1.0))
    for threshold in range(-30, 31, 5):
        above = [np.mean(np.array(levels) > threshold) for levels in (low, high)]
        assert above[1] <= math.e * above[0] * 1.05 + 0.005
    assert np.mean(high) > np.mean(low) + 10  # and yet the noise has not eaten the score


def test_losses_add_up_and_less_than_that_over_many_answers() -> None:
    assert privacy_loss(1.0, 0) == 0
    assert privacy_loss(1.0, 1) == 1.0
    losses = [privacy_loss(0.1, answers) for answers in (1, 10, 100, 1000, 10_000)]
    assert losses == sorted(losses)
    assert losses[1] == pytest.approx(1.0)
    # Advanced composition (Dwork et al., 2010) gives 0.1 sqrt(2 * 1000 ln 1e6) + 1000 * 0.1 * (e**0.1 - 1) = 27.1.
    assert losses[3] < 27.1
    assert losses[3] > 0.1 * math.sqrt(1000)


def test_a_large_epsilon_does_not_overflow() -> None:
    assert privacy_loss(300.0, 500) == 150_000.0
