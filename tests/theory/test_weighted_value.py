"""The weighted value problem: WSU beside exhaustive search and dynamic programming."""

import itertools

import numpy as np
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.theory import worlds
from fedpohcs.theory.mdp import Federation
from fedpohcs.theory.operators import best_deterministic_policy, objective, one_hot, optimal_policy, single
from fedpohcs.theory.weighted_value import weighted_select_update


def backward(P: np.ndarray, rewards: np.ndarray, gamma: float, horizon: int) -> np.ndarray:
    values = np.zeros(len(rewards))
    for _ in range(horizon):
        values = (rewards + gamma * P @ values).max(-1)
    return values


def test_one_client_gets_the_exact_values_of_its_horizon() -> None:
    made = worlds.random_mdps(1, seed=3)
    plan = weighted_select_update(made, 7)
    np.testing.assert_allclose(plan.values[0], backward(made.transitions[0], made.rewards, 0.9, 7))


def test_values_are_those_of_the_plan_played_forwards() -> None:
    made = worlds.random_mdps(3, seed=5)
    plan = weighted_select_update(made, 4)
    for client in range(3):
        place, total = np.eye(5), np.zeros(5)
        for time, policy in enumerate(plan.policies):
            total += 0.9**time * place @ (policy * made.rewards).sum(-1)
            place = place @ (policy[:, None, :] @ made.transitions[client])[:, 0]
        np.testing.assert_allclose(plan.values[client], total)


def test_no_plan_of_two_steps_is_better_by_more_than_search_finds_and_wsu_is_among_them() -> None:
    """All pairs of deterministic policies of two states and two actions, with weights that differ."""
    below = 0
    for seed in range(40):
        drawn = worlds.random_mdps(2, num_states=2, num_actions=2, density=0.7, seed=seed)
        made = Federation(drawn.transitions, drawn.rewards, 0.9, weights=[0.3, 0.7])
        found = float(np.einsum("n,s,ns->", made.weights, made.start, weighted_select_update(made, 3).values))
        best = max(_return(made, plan) for plan in itertools.product(itertools.product((0, 1), repeat=2), repeat=3))
        assert found <= best + 1e-12
        below += found < best - 1e-9
    assert 0 < below < 20  # a heuristic: mostly right, not always


def _return(made: Federation, plan) -> float:
    values = np.zeros((2, 2))
    for actions in reversed(plan):
        q = made.rewards + 0.9 * np.einsum("nsat,nt->nsa", made.transitions, values)
        values = (one_hot(np.array(actions), 2) * q).sum(-1)
    return float(np.einsum("n,s,ns->", made.weights, made.start, values))


def test_identical_clients_get_the_optimal_policy() -> None:
    made = worlds.random_mdps(3, heterogeneity=0.0, seed=1)
    np.testing.assert_array_equal(weighted_select_update(made, 200).first, optimal_policy(single(made).imaginary))


def test_the_first_policy_is_near_the_best_stationary_one() -> None:
    for seed in range(5):
        made = worlds.random_mdps(3, num_states=3, num_actions=3, heterogeneity=0.4, seed=seed)
        best = objective(made, best_deterministic_policy(made))
        assert 0.97 * best <= objective(made, weighted_select_update(made, 200).first) <= best + 1e-9


def test_a_stack_is_planned_in_one_call() -> None:
    stack = worlds.random_mdps(2, stack=(3,), seed=8)
    plan = weighted_select_update(stack, 5)
    alone = weighted_select_update(Federation(stack.transitions[2], stack.rewards[2], 0.9), 5)
    np.testing.assert_allclose(plan.values[2], alone.values)
    np.testing.assert_array_equal(plan.policies[:, 2], alone.policies)


def test_a_horizon_of_0_is_refused() -> None:
    with pytest.raises(UserError, match=r"horizon \(=0\) must be at least 1"):
        weighted_select_update(worlds.random_mdps(1), 0)
