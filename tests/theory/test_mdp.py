"""Finite MDPs, operators and levels of heterogeneity: what must be true of any, and what is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from fedpohcs.core.errors import UserError
from fedpohcs.theory import operators, worlds
from fedpohcs.theory.levels import central_clients, closest_clients, distance_under, levels_of
from fedpohcs.theory.mdp import Federation, SparseFederation, TabularMDP

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 4))


@st.composite
def federations(draw) -> Federation:
    N, S, A = draw(SIZES)
    return worlds.random_federation(
        N,
        S,
        A,
        heterogeneity=draw(st.floats(0, 1)),
        discount=draw(st.floats(0.01, 0.98)),
        concentration=draw(st.sampled_from([0.1, 1.0])),
        seed=draw(st.integers(0, 10**6)),
    )


@pytest.fixture
def federation() -> Federation:
    return worlds.random_federation(3, 5, 2, heterogeneity=0.8, seed=4)


def tables(N=2, S=3, A=2):
    return np.full((N, S, A, S), 1 / S), np.full((S, A), 0.5)


def test_rows_that_do_not_sum_to_one_are_named_by_client_state_and_action() -> None:
    P, R = tables()
    P[1, 2, 0] = [0.5, 0.2, 0.2]
    with pytest.raises(UserError, match=r"sum of transitions at client 1, state 2, action 0 \(=0\.8999.*must be 1"):
        Federation(P, R, 0.9)


def test_negative_transitions_are_named() -> None:
    P, R = tables()
    P[0, 1, 1] = [-0.5, 1, 0.5]
    with pytest.raises(UserError, match="transitions at client 0, state 1, action 1, next state 0"):
        Federation(P, R, 0.9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [[0, 0], [0, -1], [0, 0]]}, "rewards at state 1, action 1 .*must not be negative"),
        ({"rewards": np.zeros((2, 2))}, r"rewards .*must have the shape \[S, A\] = \[3, 2\]"),
        ({"rewards": [[0, 0], [0, np.nan], [0, 0]]}, "rewards .*finite"),
        ({"discount": 1.0}, "discount .*between 0 and 1"),
        ({"discount": 0.0}, "discount .*between 0 and 1"),
        ({"start": [0.5, 0.5, 0.5]}, "sum of start .*must be 1"),
        ({"start": [1.5, -0.5, 0]}, "start at state 1 .*negative"),
        ({"weights": [0.5, 0.6]}, "sum of weights .*must be 1"),
        ({"weights": [1.0]}, r"weights .*\[N\] = \[2\]"),
        ({"reward_bound": 0.1}, "rewards at state 0, action 0 .*must not exceed"),
        ({"transitions": np.ones((2, 3, 2))}, "transitions .*shape"),
        ({"transitions": "nonsense"}, "transitions must be an array of numbers"),
    ],
)
def test_bad_input_is_refused_with_its_name_and_value(change, message) -> None:
    P, R = tables()
    with pytest.raises(UserError, match=message):
        Federation(**({"transitions": P, "rewards": R, "discount": 0.9} | change))


def test_sparse_rows_that_do_not_sum_to_one_are_named() -> None:
    good, R = csr_array(np.full((6, 3), 1 / 3)), np.zeros((3, 2))
    bad = good.toarray()
    bad[5] = [0.5, 0, 0]
    with pytest.raises(UserError, match=r"client 1, state 2, action 1 \(=0\.5\) must be 1"):
        SparseFederation([good, csr_array(bad)], R, 0.9)
    bad[5] = [1.5, -0.5, 0]
    with pytest.raises(UserError, match="client 1, state 2, action 1 must not be negative"):
        SparseFederation([good, csr_array(bad)], R, 0.9)


def test_mdps_of_different_rewards_do_not_make_a_federation() -> None:
    P, R = tables(1)
    with pytest.raises(UserError, match="rewards of client 1"):
        Federation.of([TabularMDP(P[0], R, 0.9), TabularMDP(P[0], R / 2, 0.9)])


def test_a_federation_of_its_own_clients_is_the_same(federation: Federation) -> None:
    mdps = [
        TabularMDP(P, federation.rewards, federation.discount, federation.start, federation.reward_bound)
        for P in federation.transitions
    ]
    assert np.array_equal(Federation.of(mdps).transitions, federation.transitions)


@settings(max_examples=40, deadline=None)
@given(federations(), st.integers(0, 10**6))
def test_bellman_operators_contract_and_are_monotone(federation: Federation, seed: int) -> None:
    generator = np.random.default_rng(seed)
    S, A = federation.num_states, federation.num_actions
    V, W = generator.normal(size=(2, 1, S))
    policy = generator.dirichlet(np.ones(A), S)
    clients, gamma = federation.clients, float(federation.discount)
    for T in (lambda x: operators.bellman(clients, x), lambda x: operators.bellman_policy(clients, policy, x)):
        assert np.all(np.abs(T(V) - T(W)) <= gamma * np.abs(V - W).max() + 1e-12)
        assert np.all(T(np.minimum(V, W)) <= T(np.maximum(V, W)) + 1e-12)


@settings(max_examples=40, deadline=None)
@given(federations())
def test_exact_values_are_fixed_points(federation: Federation) -> None:
    clients = federation.clients
    policy = operators.uniform_policy(federation.num_states, federation.num_actions)
    V = operators.evaluate(clients, policy)
    assert np.allclose(operators.bellman_policy(clients, policy, V), V, atol=1e-9)
    best = operators.optimal_values(clients)
    assert np.allclose(operators.bellman(clients, best), best, atol=1e-9)
    assert np.all(best >= V - 1e-9)


def test_optimal_values_are_those_of_the_best_of_all_deterministic_policies(federation: Federation) -> None:
    policies = operators.one_hot(np.array(list(itertools.product(range(2), repeat=5))), 2)
    every = operators.evaluate(federation.imaginary, policies)
    assert np.allclose(operators.optimal_values(federation.imaginary), every.max(0))


def test_a_value_is_the_discounted_sum_of_simulated_rewards(federation: Federation) -> None:
    policy = operators.uniform_policy(5, 2)
    chain = federation.clients.chain(policy[None])[0]
    reward = (policy * federation.rewards).sum(-1)
    total, reached = np.zeros(5), np.eye(5)
    for step in range(400):
        total += 0.9**step * reached @ reward
        reached = reached @ chain
    assert np.allclose(operators.evaluate(federation.clients, policy[None])[0], total)


def test_returns_from_values_and_from_visitation_agree(federation: Federation) -> None:
    policy = operators.uniform_policy(5, 2)
    visits = operators.discounted_visitation(federation.clients, policy[None])
    assert np.allclose(visits.sum(-1), 1 / (1 - 0.9))
    by_visits = (visits * (policy * federation.rewards).sum(-1)).sum(-1)
    assert np.allclose(by_visits, operators.expected_return(federation.clients, policy[None]))
    assert np.isclose(by_visits.mean(), operators.objective(federation, policy))


def test_the_stationary_distribution_does_not_move(federation: Federation) -> None:
    policy = operators.uniform_policy(5, 2)
    d = operators.stationary_distribution(federation.imaginary, policy)
    assert np.isclose(d.sum(), 1)
    assert np.allclose(d @ federation.imaginary.chain(policy), d)


def test_several_stationary_distributions_are_refused() -> None:
    apart = TabularMDP(np.eye(2)[:, None], np.zeros((2, 1)), 0.9)
    with pytest.raises(UserError, match="several stationary distributions"):
        operators.stationary_distribution(apart, np.ones((2, 1)))


def test_advantages_average_to_zero_under_their_policy(federation: Federation) -> None:
    policy = operators.uniform_policy(5, 2)
    assert np.allclose((policy * operators.advantages(federation.clients, policy[None])).sum(-1), 0)


def test_the_gradient_of_the_objective_is_that_of_finite_differences(federation: Federation) -> None:
    policy = operators.uniform_policy(5, 2)
    gradient = operators.objective_gradient(federation, policy)
    towards = operators.one_hot(np.array([0, 1, 1, 0, 1]), 2) - policy
    step = 1e-6
    change = operators.objective(federation, policy + step * towards) - operators.objective(federation, policy)
    assert np.isclose(change / step, (gradient * towards).sum(), rtol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_good_policy_is_never_worse_than_the_imaginary_optimum(seed: int) -> None:
    federation = worlds.random_federation(4, 4, 2, seed=seed, concentration=0.1)
    good, imaginary, best = (
        float(operators.objective(federation, policy))
        for policy in (
            operators.good_policy(federation),
            operators.optimal_policy(federation.imaginary),
            operators.best_deterministic_policy(federation),
        )
    )
    assert good >= imaginary - 1e-12
    assert good >= 0.99 * best


@settings(max_examples=40, deadline=None)
@given(federations(), st.integers(0, 10**6))
def test_kappa_is_the_largest_distance_over_policies(federation: Federation, seed: int) -> None:
    N, S, A = federation.num_clients, federation.num_states, federation.num_actions
    levels = levels_of(federation)
    stochastic = np.random.default_rng(seed).dirichlet(np.ones(A), (50, S))
    constant = operators.one_hot(np.repeat(np.arange(A)[:, None], S, 1), A)
    for i, j in itertools.product(range(N), repeat=2):
        assert np.all(distance_under(federation, stochastic, i, j) <= levels.pairwise[i, j] + 1e-12)
        # The same action everywhere: one of them reaches the maximum in some state.
        assert np.isclose(distance_under(federation, constant, i, j).max(), levels.pairwise[i, j])


@settings(max_examples=60, deadline=None)
@given(federations())
def test_kappa_1_is_at_most_kappa_2_and_at_least_half_of_it(federation: Federation) -> None:
    levels = levels_of(federation)
    assert levels.kappa_1 <= levels.kappa_2 + 1e-12
    assert levels.kappa_2 <= 2 * levels.kappa_1 + 1e-12
    assert np.allclose(levels.pairwise, levels.pairwise.T)


def test_identical_clients_have_no_heterogeneity() -> None:
    levels = levels_of(worlds.random_federation(4, 5, 3, heterogeneity=0.0))
    assert levels.kappa_2 == 0
    assert np.all(levels.to_imaginary < 1e-15)


def test_two_clients_have_equal_kappas() -> None:
    levels = levels_of(worlds.random_federation(2, 4, 2))
    assert np.isclose(levels.kappa_1, levels.kappa_2)


def test_the_knob_of_heterogeneity_scales_kappa() -> None:
    kappas = [float(levels_of(worlds.random_federation(3, 4, 2, heterogeneity=h)).kappa_1) for h in (0, 0.25, 0.5, 1)]
    assert np.allclose(np.array(kappas) / kappas[-1], [0, 0.25, 0.5, 1])


def test_the_nearest_clients_are_selected_and_ties_go_to_the_first() -> None:
    levels = levels_of(worlds.river_swim([0.5, 0.5, 0.0, 1.0]))
    assert closest_clients(levels, 1).tolist() == [True, False, False, False]
    assert central_clients(levels, np.full(4, 0.25), 2).tolist() == [True, True, False, False]
    with pytest.raises(UserError, match="count"):
        closest_clients(levels, 5)


def test_sparse_and_dense_federations_agree(federation: Federation) -> None:
    S, A = federation.num_states, federation.num_actions
    blocks = [csr_array(P.reshape(S * A, S)) for P in federation.transitions]
    sparse = SparseFederation(blocks, federation.rewards, 0.9, reward_bound=1.0)
    policy = np.random.default_rng(0).dirichlet(np.ones(A), S)
    policy[0] = [0, 1]
    for name in ("evaluate", "discounted_visitation", "advantages"):
        ours, theirs = (getattr(operators, name)(f.clients, policy[None]) for f in (sparse, federation))
        assert np.allclose(ours, theirs, atol=1e-10), name
    assert np.allclose(
        operators.optimal_values(sparse.imaginary), operators.optimal_values(federation.imaginary), atol=1e-10
    )
    assert np.allclose(sparse.clients.chain(policy), federation.clients.chain(policy[None]))
    for ours, theirs in zip(levels_of(sparse), levels_of(federation), strict=True):
        assert np.allclose(ours, theirs)


def test_a_stack_of_federations_gives_what_each_gives_alone() -> None:
    each = [worlds.random_federation(3, 4, 2, seed=seed, discount=0.5 + seed / 10) for seed in range(3)]
    stack = Federation(*(np.stack([getattr(f, name) for f in each]) for name in (
        "transitions", "rewards", "discount", "start", "weights", "reward_bound",
    )))  # fmt: skip
    together = operators.optimal_values(stack.imaginary), operators.good_policy(stack), levels_of(stack).kappa_2
    for index, one in enumerate(each):
        alone = operators.optimal_values(one.imaginary), operators.good_policy(one), levels_of(one).kappa_2
        assert all(np.allclose(a[index], b) for a, b in zip(together, alone, strict=True))


@pytest.mark.parametrize(
    ("name", "states", "actions"), [("FrozenLake", 16, 4), ("CliffWalking", 48, 4), ("Taxi", 500, 6)]
)
def test_toy_text_worlds_are_imported(name: str, states: int, actions: int) -> None:
    pytest.importorskip("gymnasium")
    federation = worlds.toy_text(name, [0.0, 0.3])
    assert federation.transitions.shape == (2, states, actions, states)
    assert federation.rewards.min() >= 0
    assert federation.rewards.max() == 1
    assert levels_of(federation).kappa_1 > 0


def test_the_frozen_lake_that_does_not_slip_is_walked_in_six_steps() -> None:
    pytest.importorskip("gymnasium")
    lake = worlds.toy_text("FrozenLake", [0.0], discount=0.5)
    assert np.isclose(operators.optimal_values(lake.imaginary)[0], 0.5**5)


def test_the_map_of_the_lake_can_be_chosen() -> None:
    pytest.importorskip("gymnasium")
    assert worlds.toy_text("FrozenLake", [0.1], map_name="8x8").num_states == 64


def test_stronger_wind_is_further_from_calm() -> None:
    levels = levels_of(worlds.windy_grid([0.0, 0.2, 0.4]))
    assert levels.to_imaginary.argmin() == 1
    assert np.allclose(levels.pairwise[0], [0, 0.4, 0.8])


def test_the_river_is_swum_up_unless_the_current_is_too_strong() -> None:
    calm, strong = (operators.optimal_policy(worlds.river_swim([c], 8).imaginary) for c in (0.0, 1.0))
    assert calm[:, 1].all()
    assert strong[0, 0] == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: worlds.random_federation(2, 3, 2, heterogeneity=1.5), "heterogeneity"),
        (lambda: worlds.windy_grid([0, 2]), "wind of client 1"),
        (lambda: worlds.river_swim([0.1, -1]), "current of client 1"),
        (lambda: worlds.toy_text("Chess", [0]), "FrozenLake, CliffWalking, Taxi"),
        (lambda: worlds.toy_text("Taxi", [0, 3]), "slip of client 1"),
    ],
)
def test_worlds_refuse_bad_settings(make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
