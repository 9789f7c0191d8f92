"""Bounds: those that hold do so on anything hypothesis finds; those that do not have their counterexample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.theory import bounds, counterexamples, operators, sharper, worlds
from fedpohcs.theory.claims import CLAIMS, ratios
from fedpohcs.theory.instances import Case, Size, draw
from fedpohcs.theory.iteration import measured_errors, run_fapi, selected_weights
from fedpohcs.theory.levels import central_clients, closest_clients

HELD = sorted(name for name, claim in CLAIMS.items() if claim.holds)
REFUTED = sorted(set(CLAIMS) - set(HELD))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(1, 6), st.integers(1, 4), st.integers(0, 10**6))
def test_every_claim_that_holds_does_so(num_clients: int, num_states: int, num_actions: int, seed: int) -> None:
    case = Case(draw(np.random.default_rng(seed), Size(num_clients, num_states, num_actions), 6))
    for name in HELD:
        ratio, violated = ratios(case, CLAIMS[name].check(case))
        assert not violated.any(), (name, ratio.max())


def test_the_average_may_be_below_the_imaginary_value_with_two_states() -> None:
    federation = counterexamples.reach_or_not(0.9)
    policy = np.ones((2, 1))
    assert np.isclose(operators.average_values(federation, policy)[0], 0.9 / 2 / 0.1)
    assert np.isclose(operators.evaluate(federation.imaginary, policy)[0], 0.9 / 1.1 / 0.1)


def test_the_average_may_be_below_the_imaginary_value_on_paths_that_do_not_return() -> None:
    federation = counterexamples.crossed_paths(0.9)
    policy = np.ones((5, 1))
    assert operators.average_values(federation, policy)[0] == 0
    assert np.isclose(operators.evaluate(federation.imaginary, policy)[0], 0.9**2 / 2 / 0.1)


def test_the_theorem_survives_where_lemma_3_fails() -> None:
    for federation in (counterexamples.reach_or_not(), counterexamples.crossed_paths(), counterexamples.coin_flip()):
        setting = bounds.setting_of(federation)
        gap = bounds.value_gap(setting).total
        imaginary = operators.optimal_policy(federation.imaginary)
        highest = np.maximum(
            operators.average_values(federation, operators.good_policy(federation)),
            operators.average_values(federation, imaginary),
        )
        assert np.all(np.abs(operators.evaluate(federation.imaginary, imaginary) - highest) <= gap)


def test_a_coin_beats_every_deterministic_policy() -> None:
    federation = counterexamples.coin_flip(0.9)
    deterministic = operators.objective(federation, operators.best_deterministic_policy(federation))
    assert np.isclose(deterministic, 0.9 / 2 / 0.1)
    assert np.isclose(operators.objective(federation, operators.uniform_policy(2, 2)), 0.9 / 1.1 / 0.1)


def test_federated_evaluation_has_the_looser_bound_for_a_small_discount() -> None:
    setting = bounds.setting_of(counterexamples.small_discount())
    exact = bounds.no_errors(setting)
    assert bounds.improvement(setting, exact, 1).total > 1.3 * bounds.improvement(setting, exact, 2).total
    assert sharper.improvement(setting, exact, 1).total < sharper.improvement(setting, exact, 2).total


@pytest.mark.parametrize("discount", [1 / 3, 0.5, 0.99])
def test_federated_evaluation_has_the_tighter_bound_from_a_third_on(discount: float) -> None:
    setting = bounds.setting_of(worlds.random_federation(2, 4, 2, discount=discount))
    exact = bounds.no_errors(setting)
    assert bounds.improvement(setting, exact, 1).total <= bounds.improvement(setting, exact, 2).total + 1e-12


def test_lemma_5_fails_for_large_evaluation_errors_and_holds_when_they_are_clipped() -> None:
    federation, faults = counterexamples.overestimated()
    setting = bounds.setting_of(federation)
    for clip, broken in ((False, True), (True, False)):
        run = run_fapi(federation, 1, faults=type(faults)(**(vars(faults) | {"clip": clip})))
        allowed = bounds.improvement_with_evaluation(setting, measured_errors(run)).total
        assert (run.imaginary_improvement[0] > allowed) == broken


def test_lemma_15_needs_bounded_value_functions() -> None:
    federation, _ = counterexamples.overestimated()
    setting = bounds.setting_of(federation)
    V = np.array([0.0, 100.0, 0.0])
    apart = np.abs(np.diff(operators.bellman_policy(federation.clients, np.eye(3)[[0, 0, 0]], V[None]), axis=0)).max()
    assert apart == 50
    assert bounds.operator_difference(setting, setting.levels.pairwise[0, 1]) == 2


def test_the_client_nearest_to_the_mean_may_have_the_larger_bound() -> None:
    federation, by_imaginary, by_distance = counterexamples.skewed_crowd()
    setting = bounds.setting_of(federation)
    assert closest_clients(setting.levels, 1)[by_imaginary]
    assert central_clients(setting.levels, setting.weights, 1)[by_distance]
    exact = bounds.no_errors(setting)
    totals = [bounds.improvement(setting, exact, 2, one).total for one in np.eye(5)]
    assert totals[by_imaginary] > 1.2 * totals[by_distance]


def test_a_client_below_the_threshold_may_have_the_larger_bound() -> None:
    federation, client = counterexamples.threshold_not_enough()
    setting = bounds.setting_of(federation)
    exact, alone = bounds.no_errors(setting), np.eye(6)[client]
    assert bounds.mean_distance(setting, alone) < bounds.selection_threshold(setting)
    assert bounds.improvement(setting, exact, 2, alone).total > 1.0001 * bounds.improvement(setting, exact, 2).total


def test_proposition_14_needs_the_weights_of_those_who_take_part() -> None:
    federation, faults, mask = counterexamples.unlucky_selection()
    run = run_fapi(federation, 200, participation=mask, faults=faults)
    gap = float(run.average_values[-1][0] - operators.optimal_values(federation.imaginary)[0])
    setting, errors = bounds.setting_of(federation), measured_errors(run)
    assert np.isclose(gap, -10)
    assert bounds.homogeneous(setting, errors).total < 2
    assert bounds.homogeneous(setting, errors, selected_weights(federation.weights, mask)).total >= 10


def test_proposition_14_needs_a_policy_that_is_optimal_everywhere() -> None:
    federation, policy = counterexamples.unreached_state()
    best = operators.objective(federation, operators.best_deterministic_policy(federation))
    assert operators.objective(federation, policy) == best
    run = run_fapi(federation, 20)
    apart = operators.sup_norm(run.average_values[-1] - operators.average_values(federation, policy))
    assert np.isclose(apart, 10)
    assert bounds.homogeneous(bounds.setting_of(federation), measured_errors(run)).total < 1e-9


def test_the_bound_grows_with_heterogeneity() -> None:
    """Remark 11 says it is inversely proportional to kappa; it is proportional."""
    totals = []
    for knob in (0.1, 0.2, 0.4):
        setting = bounds.setting_of(worlds.random_federation(3, 4, 2, heterogeneity=knob))
        totals.append(float(bounds.fapi(setting, bounds.no_errors(setting), 2).total))
    assert np.allclose(np.array(totals) / totals[0], [1, 2, 4])


@pytest.mark.parametrize("discount", [(5 - 17**0.5) / 4, 0.5, 0.95])
def test_the_first_term_dominates_from_a_discount_of_22_percent_on(discount: float) -> None:
    for seed in range(20):
        federation = worlds.random_federation(4, 3, 2, discount=discount, seed=seed, concentration=0.2)
        setting = bounds.setting_of(federation)
        for algorithm in (1, 2):
            for selected in (None, *np.eye(4)):
                terms = bounds.fapi(setting, bounds.no_errors(setting), algorithm, selected)
                assert terms["imaginary"] <= terms["improvement"] + terms["evaluation"] + 1e-9


def test_terms_of_a_bound_have_names_and_add_up() -> None:
    setting = bounds.setting_of(worlds.random_federation(3, 4, 2, discount=0.5))
    errors = bounds.Errors(np.full(3, 0.1), np.full(3, 0.2), 0.3, 0.4)
    bound = bounds.improvement_without_evaluation(setting, errors)
    assert set(bound) == {
        "policy_aggregation", "value_aggregation", "pairwise", "heterogeneity", "evaluation", "improvement",
    }  # fmt: skip
    k1, k2 = float(setting.levels.kappa_1), float(setting.levels.kappa_2)
    by_hand = 0.4 * 2**0.5 * 2 + 2 * 0.5 * 0.3 + 2 * 0.25 * k2 * 4 + 0.5 * k1 * 2 + 4 * 0.5 * (0.3 + 0.1) + 0.2
    assert np.isclose(bound.total, by_hand)


def test_the_constants_of_the_theorem_are_those_printed() -> None:
    assert np.allclose(
        bounds.fapi_constants(0.5, 2.0), [2 * 0.5 * 0.75 / 0.0625 * 2, 0.5 / 0.125 * 2, 0.75 / 0.0625 * 2]
    )


def test_the_rates_of_networks_are_those_printed() -> None:
    assert np.isclose(bounds.linearisation_rate(32, 1024, 243), 2**6 * 2**-1 * 3**2)
    assert np.isclose(bounds.policy_aggregation_rate(9), 3)
    assert np.isclose(bounds.output_difference_rate(7), 7)


def test_sharper_bounds_are_never_looser() -> None:
    case = Case(draw(np.random.default_rng(5), Size(4, 5, 3), 200))
    errors = bounds.Errors(case["delta"], case["epsilon"], 0.1, 0.2)
    for algorithm in (1, 2):
        for selected in (None, case.selected):
            ours, theirs = (
                module.fapi(case.setting, errors, algorithm, selected).total for module in (sharper, bounds)
            )
            assert np.all(ours <= theirs * (1 + 1e-12))
            assert np.all(
                sharper.improvement(case.setting, errors, algorithm, selected).total
                <= bounds.improvement(case.setting, errors, algorithm, selected).total * (1 + 1e-12)
            )


def test_half_of_lemma_17_is_reached_in_the_limit() -> None:
    """One state to stay in and one to fall into with probability p: the ratio tends to 1 as p tends to 0."""
    p, gamma = 1e-6, 0.9
    P = np.array([[[[1, 0]], [[0, 1]]], [[[1 - p, p]], [[0, 1]]]])
    federation = operators.Federation(P, [[1.0], [0.0]], gamma)
    setting = bounds.setting_of(federation)
    V = operators.evaluate(federation.clients, np.ones((1, 2, 1)))
    assert np.isclose(
        np.abs(V[0] - V[1]).max(), sharper.value_difference(setting, setting.levels.pairwise[0, 1]), rtol=1e-4
    )
