"""FedSARSA and FedTD: exact fixed points, hand-worked steps, and the effects of clients and perturbations."""

import numpy as np
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.theory.linear_td import Problem, fixed_point, run_linear_td, squared_errors
from fedpohcs.worlds.kernels import PerturbedChains, perturbed_chains


def small(clients: int = 3, noise: float = 0.0, **options) -> PerturbedChains:
    return perturbed_chains(clients, transition_noise=noise, num_states=4, num_actions=4, **options)


def test_with_one_class_per_pair_the_fixed_point_is_the_value_of_the_policy() -> None:
    """TD(0) on a table: Q = R + gamma P pi Q, from a linear system that knows nothing of features."""
    chains = small(2, 0.5, seed=2)
    problem = Problem(chains, classes=4, discount=0.7, inverse_temperature=0.3)
    for client in range(2):
        theta = fixed_point(problem, client)
        pi, P, R = problem.policy(theta), chains.transitions[client], chains.rewards[client]
        following = np.einsum("sat,tb->satb", P, pi).reshape(16, 16)
        np.testing.assert_allclose(theta.ravel(), np.linalg.solve(np.eye(16) - 0.7 * following, R.ravel()), rtol=1e-9)


def test_with_one_class_the_fixed_point_is_the_mean_reward() -> None:
    chains = perturbed_chains(1, num_states=4, num_actions=1, seed=3)  # several actions would visit all states alike
    P, R = chains.chains[0], chains.rewards[0, :, 0]
    visits = np.linalg.matrix_power(P, 200)[0]
    assert np.ptp(visits) > 0.05
    theta = fixed_point(Problem(chains, classes=1, discount=0.5))
    np.testing.assert_allclose(theta, [[visits @ R / (1 - 0.5)]], rtol=1e-10)


def test_steps_worked_by_hand() -> None:
    """One state, one action, reward 2, gamma 1/2, rate 1/4: theta moves by (2 - theta / 2) / 4."""
    one = PerturbedChains(np.ones((2, 1, 1)), np.zeros(1, int), np.array([[[2.0]], [[4.0]]]))
    found = run_linear_td(Problem(one, 1, 0.5), 2, repetitions=1, rate=0.25, local_steps=1)
    np.testing.assert_allclose(found.ravel(), [0.75, 0.75 + (3 - 0.75 / 2) / 4])
    later = run_linear_td(Problem(one, 1, 0.5), 2, repetitions=1, rate=0.25, local_steps=2)
    each = [r / 4 + (r - r / 8) / 4 for r in (2, 4)]
    np.testing.assert_allclose(later.ravel(), [np.mean(each)])


def test_after_a_merge_clients_know_what_others_have_seen() -> None:
    """Client 0 is always in state 0, client 1 always in state 1, and each pays 1: all of theta becomes 1 / (1 - 1/2).

    Without merges each client learns half of the table, and the mean is half of that.
    """
    stay = np.zeros((2, 2, 2))
    stay[0, :, 0] = stay[1, :, 1] = 1
    apart = PerturbedChains(stay, np.zeros(2, int), np.ones((2, 2, 2)))
    found = run_linear_td(Problem(apart, 2, 0.5), 800, repetitions=3, rate=0.2, local_steps=4)
    np.testing.assert_allclose(found[-1], 2.0, rtol=0.02)


@pytest.mark.parametrize("temperature", [0.0, 0.2])
def test_long_runs_stay_near_the_fixed_point(temperature: float) -> None:
    problem = Problem(small(4), classes=2, discount=0.5, inverse_temperature=temperature)
    found = run_linear_td(problem, 4_000, repetitions=20, rate=0.02)
    np.testing.assert_allclose(found[200:].mean((0, 1)), fixed_point(problem), rtol=0.03)


def test_the_policy_follows_the_estimates() -> None:
    """With a low temperature, actions of larger value are played more: the fixed point is larger than at random."""
    chains = small(1, seed=5)
    near, greedy = (fixed_point(Problem(chains, 2, 0.5, L)).mean() for L in (0.0, 0.5))
    assert greedy > near


def test_errors_fall_with_the_number_of_clients_and_perturbations_leave_a_floor() -> None:
    def error(clients: int, noise: float) -> float:
        chains = perturbed_chains(clients, transition_noise=noise, reward_noise=noise, num_states=20, num_actions=20)
        problem = Problem(chains)
        return float(squared_errors(problem, run_linear_td(problem, 4_000, rate=0.05)).mean())

    alone, many, apart = error(1, 0.0), error(16, 0.0), error(16, 0.5)
    assert 8 < alone / many < 32
    assert apart > 2 * many


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    problem = Problem(small(), classes=2)
    first, again, other = (run_linear_td(problem, 20, repetitions=2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"local_steps \(=0\) must be at least 1"):
        run_linear_td(Problem(small(), 2), 10, local_steps=0)
    with pytest.raises(UserError, match=r"rate \(=0\) must be positive"):
        run_linear_td(Problem(small(), 2), 10, rate=0)
