"""Tables of published tabular federations: hand-worked entries, and what holds for all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.core.errors import UserError
from fedpohcs.worlds.kernels import DOWN, LEFT, RIGHT, UP, perturbed_chains, random_mdps, windy_cliffs


def places(row: np.ndarray) -> dict[int, float]:
    return {int(place): round(float(row[place]), 12) for place in np.flatnonzero(row)}


def test_the_wind_blows_every_move_but_down() -> None:
    moves = windy_cliffs([0.6]).transitions[0]
    assert places(moves[0, UP]) == {4: 0.8, 0: 0.2}
    assert places(moves[0, LEFT]) == {0: 1.0}  # a wall and the bottom
    assert places(moves[0, RIGHT]) == {1: 0.8, 0: 0.2}
    assert places(moves[5, RIGHT]) == {6: 0.8, 1: 0.2}
    assert places(moves[5, DOWN]) == {1: 1.0}
    assert places(moves[15, UP]) == {15: 0.8, 11: 0.2}
    assert places(moves[8, LEFT]) == {8: 0.8, 4: 0.2}


@pytest.mark.parametrize("state", [1, 2, 3])
def test_cliff_and_goal_lead_to_the_start(state: int) -> None:
    for row in windy_cliffs([0.0, 1.0]).transitions[:, state].reshape(-1, 16):
        assert places(row) == {0: 1.0}


def test_rewards_of_the_cliffs_depend_on_the_state_alone() -> None:
    tables = windy_cliffs([0.5])
    assert tables.rewards[:, 0].tolist() == [-1, -100, -100, 100] + [-1] * 12
    assert (tables.rewards == tables.rewards[:, :1]).all()
    assert tables.start.tolist() == [1.0] + [0.0] * 15


def test_other_grids_have_other_cliffs() -> None:
    tables = windy_cliffs([0.0], columns=6, rows=3)
    assert tables.rewards[:6, 0].tolist() == [-1, -100, -100, -100, -100, 100]
    assert places(tables.transitions[0, 16, UP]) == {16: 1.0}
    assert places(tables.transitions[0, 11, RIGHT]) == {11: 1.0}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.integers(0, 10**6))
def test_rows_of_random_mdps_are_distributions(clients, states, share, density, orthogonal, seed) -> None:
    tables = random_mdps(
        clients, num_states=states, heterogeneity=share, density=density, orthogonal=orthogonal, seed=seed
    )
    np.testing.assert_allclose(tables.transitions.sum(-1), 1)
    assert tables.transitions.min() >= 0
    assert ((tables.rewards >= 0) & (tables.rewards < 1)).all()


def test_random_mdps_have_the_density_asked_for_and_no_empty_row() -> None:
    entries = random_mdps(3, stack=(200,), seed=3).transitions > 0
    counts = entries.sum(-1).ravel()
    assert counts.min() == 1
    # Binomial(5, 0.2), and rows without entries have one: P(1) = 0.8^5 + 5 * 0.2 * 0.8^4
    assert np.isclose((counts == 1).mean(), 0.8**5 + 0.8**4, atol=0.01)
    assert np.isclose(entries[..., 0].mean(), 0.2 + 0.8**5 / 5, atol=0.01)


def test_heterogeneity_mixes_a_shared_kernel_with_an_own_one() -> None:
    shared, own, half = (random_mdps(3, heterogeneity=share, seed=1).transitions for share in (0.0, 1.0, 0.5))
    assert (shared[0] == shared[1]).all()
    assert (own[0] != own[1]).any()
    np.testing.assert_allclose(half, (shared + own) / 2)


def test_orthogonal_kernels_share_no_entry_with_the_centre_and_fill_the_rest() -> None:
    settings = {"density": 0.5, "orthogonal": True, "stack": (50,), "seed": 2}
    centre = random_mdps(2, heterogeneity=0.0, **settings).transitions > 0
    own = random_mdps(2, heterogeneity=1.0, **settings).transitions > 0
    assert (centre != own).all()
    assert centre.any(-1).all()


def test_more_clients_leave_the_first_ones_as_they_are() -> None:
    np.testing.assert_array_equal(random_mdps(7, seed=5).transitions[:3], random_mdps(3, seed=5).transitions)
    few, many = (perturbed_chains(n, transition_noise=0.5, reward_noise=0.2, num_states=6) for n in (2, 4))
    np.testing.assert_array_equal(many.chains[:2], few.chains)
    np.testing.assert_array_equal(many.rewards[:2], few.rewards)


def test_actions_shift_the_next_state_round_the_end() -> None:
    made = perturbed_chains(2, transition_noise=0.3, num_states=6, num_actions=3, seed=4)
    assert made.shifts.tolist() == [0, 2, 4]
    for action, shift in enumerate(made.shifts):
        for following in range(6):
            np.testing.assert_array_equal(
                made.transitions[:, :, action, (following + shift) % 6], made.chains[:, :, following]
            )


def test_the_first_client_is_nominal_and_no_noise_makes_all_clients_nominal() -> None:
    plain = perturbed_chains(3, num_states=8, num_actions=4, seed=1)
    noisy = perturbed_chains(3, transition_noise=0.5, reward_noise=0.5, num_states=8, num_actions=4, seed=1)
    np.testing.assert_allclose(plain.chains, plain.chains[[0, 0, 0]])
    np.testing.assert_array_equal(plain.rewards, plain.rewards[[0, 0, 0]])
    np.testing.assert_array_equal(noisy.chains[0], plain.chains[0])
    assert plain.rewards.min() == 0
    assert plain.rewards.max() == 10


def test_perturbations_have_the_sizes_asked_for() -> None:
    made = perturbed_chains(2, transition_noise=0.2, reward_noise=0.25, num_states=30, num_actions=30)
    nominal, other = made.chains
    ratio = other / nominal
    ratio /= ratio.min(-1, keepdims=True)  # rows are normalised after the noise
    assert 1 < ratio.max() <= 1.2 * 1.2 / (0.8 * 0.8) + 1e-9
    nominal_rewards, other_rewards = made.rewards
    lower = other_rewards < nominal_rewards
    np.testing.assert_allclose(other_rewards[lower], 0.75 * nominal_rewards[lower])
    np.testing.assert_array_equal(other_rewards[~lower], nominal_rewards[~lower])  # what is above R is cut


def test_large_perturbations_leave_distributions() -> None:
    made = perturbed_chains(4, transition_noise=2.0, reward_noise=2.0, num_states=10, num_actions=5)
    np.testing.assert_allclose(made.chains.sum(-1), 1)
    assert made.chains.min() >= 0
    assert (np.abs(made.rewards) <= made.rewards[0]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windy_cliffs([0.5, 1.5]), r"wind of client 1 \(=1\.5\) must lie in \[0, 1\]"),
        (lambda: windy_cliffs([0.5], columns=2), "grid .* must have at least 3 columns and 2 rows"),
        (lambda: random_mdps(2, heterogeneity=2.0), r"heterogeneity \(=2\.0\) must lie in \[0, 1\]"),
        (lambda: random_mdps(2, density=-1.0), r"density \(=-1\.0\) must lie in \[0, 1\]"),
        (lambda: perturbed_chains(2, transition_noise=-0.1), r"transition_noise \(=-0\.1\) must not be negative"),
    ],
)
def test_bad_settings_are_refused(make, message) -> None:
    with pytest.raises(UserError, match=message):
        make()
