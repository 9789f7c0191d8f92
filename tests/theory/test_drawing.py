"""Drawn clients: right on average, with the stated error, and best drawn by learning potential."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from fedpohcs.core.errors import UserError
from fedpohcs.metrics.comparison import learning_potential, selection_metric
from fedpohcs.theory import counterexamples, drawing, operators, sharper
from fedpohcs.theory.instances import Case, Size, draw
from fedpohcs.theory.mdp import Federation
from fedpohcs.theory.verify import search_violations
from fedpohcs.theory.worst_cases import one_improves

EVEN, HALF = np.array([0.5, 0.5]), np.full((3, 2), 0.5)
LOUD, QUIET = np.array([3.0, -3.0]), np.array([-1.0, 1.0])  # the example of docs/theory.md


def learning_tables(federation: Federation, policy: np.ndarray) -> np.ndarray:
    """D_n A_n with the stationary distribution. Paper: Sec. 4.1."""
    visits = operators.stationary_distribution(federation.clients, policy[None])
    return visits[..., None] * operators.advantages(federation.clients, policy[None])


def test_the_draws_of_two_clients_are_those_counted_by_hand() -> None:
    draws = drawing.all_draws(np.array([0.25, 0.75]), np.array([0.5, 0.5]), 2)
    assert np.allclose(draws.probabilities, 1 / 4)
    assert np.allclose(draws.weights, [[0.5, 0], [0.25, 0.75], [0.25, 0.75], [0, 1.5]])


@pytest.mark.parametrize("num_drawn", [1, 2, 3])
def test_a_drawn_policy_is_the_mean_policy_on_average_and_its_rows_sum_to_one(num_drawn: int) -> None:
    case = Case(draw(np.random.default_rng(0), Size(3, 4, 3), 20))
    draws = drawing.all_draws(case.federation.weights, case.draw_probabilities, num_drawn)
    policies = draws.policies(case["policy"], case["client_policies"])
    assert np.allclose(policies.sum(-1), 1)
    assert policies.min() < -0.1  # but it may not be a policy
    mean = operators.client_mean(case.federation.weights, case["client_policies"], 2)
    assert np.allclose(operators.client_mean(draws.probabilities, policies, 2), mean)


@pytest.mark.parametrize(
    ("num_drawn", "probabilities", "error"), [(1, [0.75, 0.25], 6), (2, [0.75, 0.25], 3), (1, EVEN, 8)]
)
def test_the_error_of_a_drawn_vector_is_that_computed_by_hand(num_drawn: int, probabilities, error: float) -> None:
    found = drawing.mean_square_error(EVEN, np.array(probabilities), np.stack([LOUD, QUIET]), num_drawn)
    assert np.isclose(found, error)


def test_no_probabilities_are_better_than_those_by_weight_and_length() -> None:
    generator = np.random.default_rng(0)
    q, x = generator.dirichlet(np.ones(4)), generator.random(4)
    best = drawing.best_probabilities(q, x)
    least = drawing.second_moment(q, best, x)
    assert np.isclose(least, (q * x).sum() ** 2)
    others = drawing.second_moment(q, generator.dirichlet(np.ones(4), 1000), x)
    assert others.min() > least
    near = 0.999 * best + 0.001 * generator.dirichlet(np.ones(4), 1000)
    assert drawing.second_moment(q, near, x).min() > least


def test_the_largest_excess_is_reached_by_two_values_and_does_not_hold_for_the_error_itself() -> None:
    q, r = np.array([0.25, 0.75]), np.array([0.75, 0.25])
    x = np.array([3.0, 1.0])
    assert np.isclose(drawing.largest_excess(q, r, x), 4 / 3)
    assert np.isclose(drawing.second_moment(q, r, x), 4 / 3 * (q * x).sum() ** 2)
    parallel = x[:, None] * np.ones(1)
    best = drawing.mean_square_error(q, drawing.best_probabilities(q, x), parallel, 1)
    assert np.isclose(best, 0)
    assert drawing.mean_square_error(q, r, parallel, 1) > 0.7


def test_the_client_with_the_largest_metric_stays_wrong_and_drawing_is_right_on_average() -> None:
    federation = counterexamples.one_favourite()
    tables = learning_tables(federation, HALF)
    assert np.allclose(tables[:, 0], 0.9 / 12 * np.stack([LOUD, QUIET]))
    assert np.allclose(tables[:, 1:], 0)
    truth = operators.client_mean(EVEN, tables, 2)
    stacked = csr_array(tables.reshape(2, -1))
    assert np.argmax(selection_metric(stacked, EVEN)) == 0
    assert np.allclose(tables[0], 3 * truth)
    best = drawing.best_probabilities(EVEN, learning_potential(stacked))
    assert np.allclose(best, [0.75, 0.25])
    draws = drawing.all_draws(EVEN, best, 1)
    assert np.allclose(operators.client_mean(draws.probabilities, draws.estimates(tables), 2), truth)


@pytest.mark.parametrize(("num_drawn", "probability", "share"), [(1, 0.5, 1), (2, 0.25, np.sqrt(27 / 32))])
def test_the_mean_size_of_the_error_comes_close_to_the_bound(num_drawn: int, probability: float, share: float) -> None:
    case = Case(one_improves(2) | {"draw_probabilities": np.array([[probability, 1 - probability]])})
    q, r = case.federation.weights, case.draw_probabilities
    draws = drawing.all_draws(q, r, num_drawn)
    moves = (case["client_policies"] - case["policy"][:, None])[:, :, 0]
    allowed = sharper.policy_difference(case.setting, np.sqrt(drawing.mean_square_error(q, r, moves, num_drawn)))
    values = operators.action_values(case.federation.imaginary, case.values)[:, None]
    outcomes = (draws.policies(case["policy"], case["client_policies"]) * values).sum(-1)
    mean_size = draws.mean(np.abs(outcomes - draws.mean(outcomes)[:, None]))[:, 0]
    assert np.allclose(mean_size, share * allowed)


def test_random_federations_come_close_to_the_error_of_a_drawn_round() -> None:
    names = ["drawn-round-sharper", "drawn-pair-sharper"]
    for finding in search_violations(names, 400, 0, 0):
        assert finding.violations == 0
        assert finding.tightest > 0.9


@pytest.mark.parametrize("mistake", [{"num_drawn": 0}, {"probabilities": np.array([1.0, 0.0])}])
def test_draws_that_cannot_be_weighted_are_refused(mistake) -> None:
    arguments = {"weights": EVEN, "probabilities": EVEN, "num_drawn": 1} | mistake
    with pytest.raises(UserError, match=r"must (be at least 1|all be positive)"):
        drawing.all_draws(**arguments)


def test_clients_without_potential_have_no_best_probabilities() -> None:
    with pytest.raises(UserError, match="must hold a positive one"):
        drawing.best_probabilities(EVEN, np.zeros(2))
