"""FAPI: exact runs, injected and emerging errors, participation, and the connection to centralised learning."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedpohcs.core.errors import UserError
from fedpohcs.theory import operators, worlds
from fedpohcs.theory.iteration import Faults, measured_errors, run_fapi, selected_weights
from fedpohcs.theory.levels import closest_clients, levels_of
from fedpohcs.theory.mdp import Federation, SparseFederation
from fedpohcs.theory.networks import (
    SoftmaxLinear,
    Tabular,
    TwoLayerReLU,
    fit_gradient,
    initial_weights,
    linearised,
    network,
    project,
)


@pytest.fixture
def federation() -> Federation:
    return worlds.random_federation(4, 5, 3, heterogeneity=0.7, discount=0.8, seed=3)


@pytest.fixture
def identical() -> Federation:
    return worlds.random_federation(4, 5, 3, heterogeneity=0.0, discount=0.8, seed=3)


@pytest.mark.parametrize("algorithm", [1, 2])
def test_exact_fapi_of_identical_clients_is_policy_iteration(identical: Federation, algorithm) -> None:
    run = run_fapi(identical, 15, algorithm=algorithm)
    assert np.allclose(run.average_values[-1], operators.optimal_values(identical.imaginary))
    assert measured_errors(run).policy_aggregation == 0


MODELS = [Tabular(), SoftmaxLinear(step=2.0)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_identical_clients_and_a_single_one_produce_the_same_iterates(identical: Federation, model) -> None:
    """Paper: Sec. 3.5, connection to centralised learning."""
    federated = run_fapi(identical, 12, model=model)
    central = run_fapi(operators.single(identical), 12, model=model)
    for ours, theirs in zip(federated.policies, central.policies, strict=True):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-10)
    for ours, theirs in zip(federated.values, central.values, strict=True):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-10)


def test_averaging_noisy_linear_values_is_evaluating_with_the_mean_noise(identical: Federation) -> None:
    """The same with evaluation errors: value functions linear in their parameters average without error."""
    noise = np.random.default_rng(0).uniform(-1, 1, (4, 4, 5))
    model = SoftmaxLinear()
    delta = 0.1
    federated = run_fapi(identical, 12, model=model, faults=Faults(delta=delta, noise=noise, clip=False))
    mean = noise.mean(1, keepdims=True)
    central = run_fapi(operators.single(identical), 12, model=model, faults=Faults(delta=delta, noise=mean, clip=False))
    assert max(federated.evaluation_errors[0]) > 0.05
    for ours, theirs in zip(federated.policies, central.policies, strict=True):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-10)
    assert measured_errors(federated).value_aggregation < 1e-12
    assert measured_errors(federated).policy_aggregation < 1e-12


def test_heterogeneous_clients_do_not_produce_the_centralised_iterates(federation: Federation) -> None:
    model = SoftmaxLinear()
    policies = [run_fapi(f, 3, algorithm=2, model=model).policy for f in (federation, operators.single(federation))]
    assert np.abs(policies[0] - policies[1]).max() > 1e-4


def test_injected_errors_have_the_size_asked_for(federation: Federation) -> None:
    delta, epsilon = np.array([0.1, 0.0, 0.3, 0.05]), np.array([0.0, 0.02, 0.01, 0.1])
    run = run_fapi(federation, 6, faults=Faults(delta=delta, epsilon=epsilon, clip=False))
    errors = measured_errors(run)
    assert np.allclose(errors.delta, delta)
    assert np.all(errors.epsilon <= epsilon + 1e-12)
    assert np.allclose(errors.epsilon, epsilon)


def test_injected_aggregation_errors_have_the_size_asked_for(federation: Federation) -> None:
    shift = np.array([[0.5, -1.0, 0.0, 0.25, 1.0], [0.0, 0.0, -0.5, 0.0, 0.0]])
    run = run_fapi(federation, 4, faults=Faults(value_aggregation=0.2, shift=shift, clip=False))
    assert np.allclose(run.value_aggregation, [0.2, 0.1, 0.2, 0.1])
    exact = [
        operators.client_mean(federation.weights, operators.evaluate(federation.clients, policy[None]), 1)
        for policy in run.policies[:4]
    ]
    assert np.allclose(np.array(run.values) - exact, 0.2 * np.concatenate([shift, shift]))


def test_an_aggregated_policy_is_mixed_with_the_target_of_the_round(federation: Federation) -> None:
    targets = np.eye(3)[[[0, 1, 2, 0, 1], [2, 2, 2, 2, 2]]]
    whole = run_fapi(federation, 3, faults=Faults(policy_aggregation=1.0, target=targets))
    assert np.array_equal(whole.policies[1:], targets[[0, 1, 0]])
    half = run_fapi(federation, 1, faults=Faults(policy_aggregation=0.5))
    exact = run_fapi(federation, 1).policy
    assert np.allclose(half.policy, exact / 2 + 1 / 6)
    assert np.isclose(half.policy_aggregation[0], np.linalg.norm(exact - 1 / 3, axis=-1).max() / 2)


def test_a_clipped_aggregate_stays_where_true_values_are(federation: Federation) -> None:
    run = run_fapi(federation, 3, faults=Faults(value_aggregation=50.0))
    assert (np.min(run.values), np.max(run.values)) == (0, 1 / (1 - 0.8))


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(value_aggregation=-0.1), "value_aggregation .* must not be negative"),
        (Faults(policy_aggregation=1.5), r"policy_aggregation .* must lie in \[0, 1\]"),
        (Faults(delta=[0.1, 0.2]), r"delta .* must be one number or have the shape \[N\] = \[4\]"),
    ],
)
def test_impossible_faults_are_refused(federation: Federation, faults: Faults, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_fapi(federation, 1, faults=faults)


def test_clipped_values_stay_where_true_values_are_and_are_no_worse(federation: Federation) -> None:
    run = run_fapi(federation, 4, faults=Faults(delta=50.0))
    assert np.min(run.values) >= 0
    assert np.max(run.values) <= 1 / (1 - 0.8)
    assert measured_errors(run).delta.max() <= 50


def test_algorithm_1_improves_on_the_shared_values_and_algorithm_2_on_its_own(federation: Federation) -> None:
    first = run_fapi(federation, 1, algorithm=1)
    shared = operators.action_values(federation.clients, first.values[0][None])
    expected = operators.client_mean(federation.weights, operators.greedy_policy(shared), 2)
    assert np.allclose(first.policy, expected)
    own_values = operators.evaluate(federation.clients, first.policies[0][None])
    own = operators.action_values(federation.clients, own_values)
    expected = operators.client_mean(federation.weights, operators.greedy_policy(own), 2)
    assert np.allclose(run_fapi(federation, 1, algorithm=2).policy, expected)


def test_only_selected_clients_shape_the_policy(federation: Federation) -> None:
    mask = np.array([False, True, False, False])
    run = run_fapi(federation, 30, algorithm=2, participation=mask)
    assert np.allclose(run.policy, operators.optimal_policy(federation.clients)[1])
    assert run.selected_weights[0].tolist() == [0, 1, 0, 0]


def test_participation_may_change_by_round(federation: Federation) -> None:
    run = run_fapi(federation, 4, participation=lambda t: np.arange(4) == t)
    assert [int(weights.argmax()) for weights in run.selected_weights] == [0, 1, 2, 3]


def test_a_set_without_weight_is_refused() -> None:
    with pytest.raises(UserError, match="participation"):
        selected_weights(np.array([1.0, 0.0]), np.array([False, True]))


def test_selecting_near_clients_beats_selecting_far_ones() -> None:
    federation = worlds.river_swim([0.3, 0.35, 0.4, 1.0, 1.0, 0.0], 8)
    levels = levels_of(federation)
    near = closest_clients(levels, 3)
    returns = [
        float(operators.objective(federation, run_fapi(federation, 20, algorithm=2, participation=mask).policy))
        for mask in (near, ~near)
    ]
    assert returns[0] > returns[1]


def test_sparse_and_dense_runs_agree(federation: Federation) -> None:
    S, A = federation.num_states, federation.num_actions
    blocks = [csr_array(P.reshape(S * A, S)) for P in federation.transitions]
    sparse = SparseFederation(blocks, federation.rewards, 0.8, reward_bound=1.0)
    for algorithm in (1, 2):
        ours, theirs = (run_fapi(f, 5, algorithm=algorithm) for f in (sparse, federation))
        assert np.allclose(ours.policy, theirs.policy)
        assert np.allclose(ours.imaginary_improvement, theirs.imaginary_improvement, atol=1e-9)


def test_a_large_sparse_world_improves_in_every_early_round() -> None:
    federation = worlds.random_sparse_federation(3, 200, 4)
    run = run_fapi(federation, 4, measure_imaginary=False)
    returns = [float((federation.start * V).sum()) for V in run.average_values]
    assert returns[0] < returns[1] < returns[2]


def test_log_linear_policies_have_an_aggregation_error_and_tables_have_none(federation: Federation) -> None:
    """Against Remark 13: the mean of logits is not the logit of the mean."""
    assert measured_errors(run_fapi(federation, 5, model=SoftmaxLinear())).policy_aggregation > 1e-4
    assert measured_errors(run_fapi(federation, 5, model=Tabular())).policy_aggregation < 1e-12


@pytest.mark.parametrize("algorithm", [1, 2])
def test_networks_learn_and_stay_in_their_ball(federation: Federation, algorithm) -> None:
    model = TwoLayerReLU(5, 3, 200, 8.0, step=3.0)
    run = run_fapi(federation, 10, algorithm=algorithm, model=model)
    start, end = (float(operators.objective(federation, policy)) for policy in (run.policies[0], run.policy))
    best = float(operators.objective(federation, operators.good_policy(federation)))
    assert end - start > 0.5 * (best - start)
    errors = measured_errors(run)
    assert errors.value_aggregation > 0
    assert errors.policy_aggregation > 0


def test_projection_moves_only_what_is_outside() -> None:
    start = np.zeros((4, 2))
    inside, outside = np.full((4, 2), 0.1), np.full((4, 2), 10.0)
    assert np.array_equal(project(inside, start, 1.0), inside)
    moved = project(np.stack([inside, outside]), start, 1.0)
    assert np.isclose(np.linalg.norm(moved[1]), 1)
    assert np.array_equal(moved[0], inside)


def test_the_initialisation_is_the_one_stated() -> None:
    weights = initial_weights(np.random.default_rng(0), 4000, 6)
    assert np.allclose(np.linalg.norm(weights, axis=1), 1 / np.sqrt(4000))
    assert np.allclose(weights.mean(0), 0, atol=1e-3)
    assert np.allclose((weights**2).mean(0), 1 / (6 * 4000), rtol=0.1)


def test_the_gradient_of_a_network_is_that_of_finite_differences() -> None:
    generator = np.random.default_rng(1)
    weights, signs = generator.normal(size=(7, 3)), generator.choice([-1.0, 1.0], 7)
    inputs, targets = generator.normal(size=(4, 3)), generator.normal(size=4)

    def loss(w):
        return 0.5 * ((network(w, signs, inputs) - targets) ** 2).sum()

    direction = generator.normal(size=(7, 3))
    numeric = (loss(weights + 1e-6 * direction) - loss(weights - 1e-6 * direction)) / 2e-6
    assert np.isclose(numeric, (fit_gradient(weights, signs, inputs, targets) * direction).sum(), rtol=1e-5)


def test_a_network_equals_its_linearisation_at_the_start() -> None:
    generator = np.random.default_rng(1)
    weights, signs, inputs = generator.normal(size=(9, 3)), np.ones(9), generator.normal(size=(5, 3))
    assert np.allclose(network(weights, signs, inputs), linearised(weights, weights, signs, inputs))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"algorithm": 3}, "algorithm"),
        ({"faults": Faults(delta=-1)}, "delta"),
        ({"faults": Faults(epsilon=[0.1, 0.1])}, "epsilon"),
        ({"participation": np.zeros(4, bool)}, "participation"),
    ],
)
def test_bad_settings_are_refused(federation: Federation, settings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_fapi(federation, **({"rounds": 2} | settings))
