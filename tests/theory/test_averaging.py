"""QAvg, SoftPAvg, ProjPAvg: hand-worked steps, reductions to known methods, and equality of stacks and single runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpohcs.core.errors import UserError
from fedpohcs.theory import worlds
from fedpohcs.theory.averaging import ProjPAvg, QAvg, Rate, SoftPAvg, projected, run_averaging
from fedpohcs.theory.mdp import Federation
from fedpohcs.theory.networks import softmax
from fedpohcs.theory.operators import (
    action_values,
    bellman,
    discounted_visitation,
    expected_return,
    objective,
    objective_gradient,
    optimal_policy,
    optimal_values,
    single,
    uniform_policy,
)

METHODS = {"published": QAvg(), "released": QAvg("released"), "soft": SoftPAvg(), "proj": ProjPAvg()}


def federation(clients: int = 4, seed: int = 0, **options) -> Federation:
    return worlds.random_mdps(clients, seed=seed, **options)


def start_of(method, S: int = 5, A: int = 5, seed: int = 1):
    table = np.random.default_rng(seed).random((S, A))
    return table / table.sum(-1, keepdims=True) if isinstance(method, ProjPAvg) else table


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.floats(0.01, 1), st.integers(0, 10**6))
def test_published_qavg_with_one_local_step_is_damped_value_iteration_on_the_imaginary_mdp(N, rate, seed) -> None:
    made = federation(N, seed)
    q = start_of(None, seed=seed)
    run = run_averaging(made, QAvg(), 5, start=q, rate=Rate(rate))
    for _ in range(5):
        q = (1 - rate) * q + rate * action_values(made.imaginary, q.max(-1))
    np.testing.assert_allclose(run.table, q, rtol=1e-13)


def test_undamped_qavg_is_the_optimality_operator_of_the_imaginary_mdp_in_both_forms() -> None:
    made, q = federation(), start_of(None)
    published = run_averaging(made, QAvg(), 1, start=q, rate=Rate(1.0)).table
    np.testing.assert_allclose(published.max(-1), bellman(made.imaginary, q.max(-1)), rtol=1e-13)
    long = run_averaging(made, QAvg(), 300, start=q, rate=Rate(1.0))
    np.testing.assert_allclose(long.table.max(-1), optimal_values(made.imaginary), rtol=1e-10)
    assert (long.policy == optimal_policy(made.imaginary)).all()


def test_the_released_form_takes_a_full_bellman_step_after_its_damped_ones() -> None:
    made, q, rate = federation(2), start_of(None), 0.3
    found = run_averaging(made, QAvg("released"), 1, start=q, rate=Rate(rate), local_steps=2)
    for client in range(2):
        P, values = made.transitions[client], q.max(-1)
        for _ in range(2):
            values = (1 - rate) * values + rate * (made.rewards + 0.9 * P @ values).max(-1)
        np.testing.assert_allclose(found.clients[client], made.rewards + 0.9 * P @ values, rtol=1e-13)
    np.testing.assert_allclose(found.table, found.clients.mean(0))


def test_soft_steps_follow_the_natural_gradient_of_each_client() -> None:
    """By finite differences: the gradient of eta_n by the logits, divided by visits and probabilities, up to a shift.

    d eta / d logits(s,a) = d(s) pi(a|s) A(s,a), and the Fisher matrix of a softmax makes A of it.
    """
    made, logits, tiny = federation(1), start_of(None), 1e-6
    moved = run_averaging(made, SoftPAvg(), 1, start=logits, rate=Rate(0.2)).table
    policy = softmax(logits)
    visits = discounted_visitation(made.clients, policy[None])[0]
    for place in np.ndindex(5, 5):
        up, down = logits.copy(), logits.copy()
        up[place] += tiny
        down[place] -= tiny
        slope = (objective(made, softmax(up)) - objective(made, softmax(down))) / (2 * tiny)
        wanted = slope / (visits[place[0]] * policy[place])
        np.testing.assert_allclose((moved - logits)[place], 0.2 / 0.1 * wanted, rtol=1e-4, atol=1e-6)


def test_projected_steps_follow_the_gradient_of_the_objective_with_one_local_step() -> None:
    made, policy = federation(4), uniform_policy(5, 5)
    rate = 1e-3  # so short that no client's step leaves the simplex, and the projections only subtract means
    found = run_averaging(made, ProjPAvg(), 1, start=policy, rate=Rate(rate)).table
    np.testing.assert_allclose(found, projected(policy + rate * objective_gradient(made, policy)), rtol=1e-12)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("steps", [1, 3])
def test_with_one_client_the_federated_method_is_the_centralised_one(name: str, steps: int) -> None:
    method, alone = METHODS[name], federation(1)
    start, rate = start_of(method), Rate(0.05)
    merged, apart = (
        run_averaging(alone, method, 4, start=start, rate=rate, local_steps=steps, merge=merge)
        for merge in (True, False)
    )
    np.testing.assert_array_equal(merged.table, apart.table)
    if name != "released":  # whose full Bellman steps depend on where rounds end
        once = run_averaging(alone, method, 1, start=start, rate=rate, local_steps=4 * steps)
        np.testing.assert_allclose(merged.table, once.table, rtol=1e-13)


@pytest.mark.parametrize("name", METHODS)
def test_identical_clients_learn_what_one_of_them_learns(name: str) -> None:
    method, made = METHODS[name], federation(3, heterogeneity=0.0)
    many, one = (
        run_averaging(world, method, 5, start=start_of(method), rate=Rate(0.05), local_steps=2)
        for world in (made, single(made))
    )
    np.testing.assert_allclose(many.table, one.table, rtol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_a_stack_gives_what_its_federations_give_one_by_one(name: str) -> None:
    method = METHODS[name]
    stack = worlds.random_mdps(3, stack=(4,), seed=2)
    start = np.stack([start_of(method, seed=seed) for seed in range(4)])
    options = {"rate": Rate(0.1, 0.5), "local_steps": 2}
    together = run_averaging(stack, method, 8, start=start, **options)
    for row in range(4):
        own = Federation(stack.transitions[row], stack.rewards[row], 0.9)
        alone = run_averaging(own, method, 8, start=start[row], **options)
        np.testing.assert_allclose(together.table[row], alone.table, rtol=1e-12)
        np.testing.assert_allclose(np.array(together.objectives)[:, row], alone.objectives, rtol=1e-12)


@pytest.mark.parametrize("name", ["soft", "proj"])
def test_policy_gradients_reach_the_optimum_of_a_single_mdp(name: str) -> None:
    method, made = METHODS[name], federation(1, seed=3)
    run = run_averaging(made, method, 400, start=start_of(method), rate=Rate(0.5))
    best = float(expected_return(made.imaginary, optimal_policy(made.imaginary)))
    np.testing.assert_allclose(run.objectives[-1], best, rtol=1e-3)
    assert (np.diff(run.objectives) > -1e-9).all()


def test_clients_that_never_merge_go_on_from_their_own_tables() -> None:
    made, start = federation(2), start_of(None)
    run = run_averaging(made, SoftPAvg(), 2, start=start, rate=Rate(0.1), merge=False)
    for client in range(2):
        own = Federation(made.transitions[client : client + 1], made.rewards, 0.9)
        alone = run_averaging(own, SoftPAvg(), 2, start=start, rate=Rate(0.1))
        np.testing.assert_allclose(run.clients[client], alone.table, rtol=1e-13)
    np.testing.assert_allclose(run.table, run.clients.mean(0))


def test_weights_of_clients_count_in_the_mean() -> None:
    made = federation(2)
    uneven = Federation(made.transitions, made.rewards, 0.9, weights=[0.75, 0.25])
    run = run_averaging(uneven, QAvg(), 1, start=start_of(None), rate=Rate(0.5))
    np.testing.assert_allclose(run.table, 0.75 * run.clients[0] + 0.25 * run.clients[1])


def test_the_rate_shrinks_after_rounds_without_growth_but_not_in_the_first_ones() -> None:
    """At the optimum nothing grows. QAvg moves a table of zeros by rate times the rewards if the discount is tiny."""
    one = Federation(np.ones((1, 1, 1, 1)), np.ones((1, 1)), 1e-12)
    run = run_averaging(one, QAvg(), 5, start=np.zeros((1, 1)), rate=Rate(0.5, 0.1))
    left = 0.5**3 * (1 - 0.05) * (1 - 0.005)
    np.testing.assert_allclose(run.table, 1 - left, rtol=1e-9)


def test_a_shift_of_rewards_changes_nothing_but_values_if_the_rate_knows_of_it() -> None:
    made, policy = worlds.windy_cliffs([0.2, 0.9]), np.full((16, 4), 0.25)
    higher = Federation(made.transitions, made.rewards + 50, 0.95, made.start)
    plain, shifted, blind = (
        run_averaging(world, SoftPAvg(), 25, start=np.log(policy), rate=Rate(1e-4, 0.5, baseline))
        for world, baseline in ((made, 0.0), (higher, 50 / 0.05), (higher, 0.0))
    )
    np.testing.assert_allclose(plain.policy, shifted.policy, rtol=1e-9)
    assert (np.abs(plain.policy - blind.policy) > 1e-6).any()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_projections_are_distributions_and_no_other_is_nearer(point) -> None:
    found = projected(np.array(point))
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(), 1)
    for corner in np.eye(len(point)):  # the angle to every corner is right or obtuse
        assert (np.array(point) - found) @ (corner - found) <= 1e-9


def test_projections_agree_with_a_general_solver() -> None:
    point = np.array([0.8, 0.5, -0.2, 0.6])
    constraint = {"type": "eq", "fun": lambda x: x.sum() - 1}
    solved = minimize(lambda x: ((x - point) ** 2).sum(), np.full(4, 0.25), bounds=[(0, 1)] * 4, constraints=constraint)
    np.testing.assert_allclose(projected(point), solved.x, atol=1e-4)


def test_windy_cliffs_are_shifted_and_their_values_too() -> None:
    made = worlds.windy_cliffs([0.0, 0.5, 1.0])
    calm = Federation(made.transitions[:1], made.rewards, 0.95, made.start)
    # Up, three times right, down: five steps of -1, then 100 at the goal and again from the start.
    lap = -(1 - 0.95**5) / 0.05 + 100 * 0.95**5
    best = expected_return(calm.imaginary, optimal_policy(calm.imaginary)) - worlds.CLIFF_SHIFT / 0.05
    np.testing.assert_allclose(best, lap / (1 - 0.95**6), rtol=1e-9)


def test_split_separates_the_clients_that_train_from_the_others() -> None:
    made = federation(5)
    first, others = worlds.split(made, 2)
    np.testing.assert_array_equal(first.transitions, made.transitions[:2])
    np.testing.assert_array_equal(others.transitions, made.transitions[2:])
    np.testing.assert_allclose(others.weights, 1 / 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QAvg("mine"), "form .*mine.* must be one of published, released"),
        (lambda: run_averaging(federation(), QAvg(), 0, start=np.zeros((5, 5)), rate=Rate(1.0)), "rounds"),
        (lambda: run_averaging(federation(), QAvg(), 1, start=np.zeros((5, 5)), rate=Rate(0.0)), "rate"),
        (lambda: run_averaging(federation(), QAvg(), 1, start=np.zeros((5, 5)), rate=Rate(1.0, 2.0)), "factor"),
        (lambda: worlds.split(federation(3), 3), "count .*3.* must leave at least one"),
    ],
)
def test_bad_input_is_refused(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
