"""FedCor's Gaussian process against SciPy, finite differences and cases worked by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import CandidateMetrics
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.server.selection import Question, make_selector
from fedpohcs.server.selection.fedcor import (
    NOISE,
    conditioned,
    fit_points,
    kernel,
    leave_one_out,
    observed,
    pick,
)
from fedpohcs.testing import check_selector

N = 5
GENERATOR = np.random.default_rng(1)
POINTS = GENERATOR.normal(size=(N, 3))


def test_the_kernel_falls_with_the_distance() -> None:
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    expected = np.exp([[0, -12.5, -0.5], [-12.5, 0, -9], [-0.5, -9, 0]])
    np.testing.assert_allclose(kernel(points), expected)


def test_conditioning_is_that_of_the_normal_distribution() -> None:
    """Against the block formula, and against densities: log p(x) = log p(x_k) + log p(x | x_k)."""
    covariance = kernel(POINTS)
    observed_one = covariance + NOISE * np.outer(np.eye(N)[2], np.eye(N)[2])  # client 2 is seen with noise
    rest = [0, 1, 3, 4]
    block = (
        observed_one[np.ix_(rest, rest)] - np.outer(observed_one[rest, 2], observed_one[2, rest]) / observed_one[2, 2]
    )
    np.testing.assert_allclose(conditioned(covariance, 2)[np.ix_(rest, rest)], block)
    at = GENERATOR.normal(size=N)
    mean = observed_one[rest, 2] / observed_one[2, 2] * at[2]
    apart = norm.logpdf(at[2], scale=np.sqrt(observed_one[2, 2])) + multivariate_normal.logpdf(
        at[rest], mean, conditioned(covariance, 2)[np.ix_(rest, rest)]
    )
    assert apart == pytest.approx(multivariate_normal.logpdf(at, np.zeros(N), observed_one))
    assert conditioned(covariance, 2)[2, 2] == pytest.approx(NOISE / (1 + NOISE))


def test_two_pairs_of_twins_give_one_of_each() -> None:
    """Clients 0 and 1 change together, and so do 2 and 3; the second pick is of the other pair."""
    points = np.array([[0.0], [0.1], [9.0], [9.1]])
    weight = np.array([0.3, 0.3, 0.2, 0.2])
    assert pick(kernel(points), weight, np.ones(4), np.arange(4), 2).tolist() == [0, 2]
    tired = np.array([0.6, 1.0, 1.0, 1.0])
    assert pick(kernel(points), weight, tired, np.arange(4), 2).tolist() == [1, 2]
    assert pick(kernel(points), weight, np.ones(4), np.array([2, 3]), 5).tolist() == [2, 3]
    # By hand: with covariance [[1, c], [c, 4]], client 1 gains (q0 c + 4 q1) / 2 and client 0 gains q0 + c q1.
    two = np.array([[1.0, 0.5], [0.5, 4.0]])
    assert pick(two, np.array([0.6, 0.4]), np.ones(2), np.arange(2), 1).tolist() == [1]  # .95 against .8
    assert pick(two, np.array([0.9, 0.1]), np.ones(2), np.arange(2), 1).tolist() == [0]  # .425 against .95


def test_leave_one_out_is_the_likelihood_of_each_given_the_others() -> None:
    changes, weight = GENERATOR.normal(size=(2, N)), np.array([0.5, 1.0])
    covariance = kernel(POINTS) + NOISE * np.eye(N)
    expected = 0.0
    for share, change in zip(weight, changes, strict=True):
        for i in range(N):
            rest = [j for j in range(N) if j != i]
            gain = covariance[i, rest] @ np.linalg.inv(covariance[np.ix_(rest, rest)])
            variance = covariance[i, i] - gain @ covariance[rest, i]
            expected += share * norm.logpdf(change[i], gain @ change[rest], np.sqrt(variance))
    constant = weight.sum() * N * 0.5 * np.log(2 * np.pi)  # which does not depend on the points
    assert leave_one_out(POINTS, changes, weight)[0] - constant == pytest.approx(expected)


def test_the_gradient_is_that_of_finite_differences() -> None:
    changes, weight = GENERATOR.normal(size=(3, N)), np.array([0.4, 0.7, 1.0])
    _, slope = leave_one_out(POINTS, changes, weight)
    for place in np.ndindex(POINTS.shape):
        step = np.zeros_like(POINTS)
        step[place] = 1e-6
        ahead, behind = (leave_one_out(POINTS + sign * step, changes, weight)[0] for sign in (1, -1))
        assert slope[place] == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-6)


def test_clients_that_change_together_move_together() -> None:
    generator = np.random.default_rng(3)
    common = generator.normal(size=(10, 2))
    changes = common[:, [0, 0, 1, 1]] + 0.05 * generator.normal(size=(10, 4))
    points = fit_points(0.3 * generator.normal(size=(4, 10)), changes)
    covariance = kernel(points)
    assert min(covariance[0, 1], covariance[2, 3]) > max(covariance[0, 2], covariance[1, 3]) + 0.2
    assert fit_points(points, changes[:0]) is points


def test_changes_are_those_of_losses_scaled_and_forgotten_after_ten_rounds() -> None:
    state = {"returns": np.full(2, np.nan), "changes": np.zeros((0, 2)), "round": np.array(-1)}
    for step in range(12):
        state = observed(state, CandidateMetrics(np.arange(2), {"mean_return": np.array([step * 3.0, step * 4.0])}))
    assert state["round"] == 11
    assert state["changes"].shape == (10, 2)
    np.testing.assert_allclose(state["changes"][0], np.array([-3, -4]) / np.sqrt(12.5))
    silent = observed(state, CandidateMetrics(np.array([1]), {"mean_return": np.array([40.0])}))
    np.testing.assert_allclose(silent["changes"][-1], [0, np.sqrt(2)])
    assert silent["returns"].tolist() == [33.0, 40.0]


def test_the_first_rounds_are_random_and_a_client_that_was_picked_counts_less() -> None:
    selector, state = make_selector("fedcor"), None
    weight = np.full(N, 1 / N)
    for number in range(7):
        question = Question(np.arange(N), 2, N, weight, np.random.default_rng(number))
        assert selector.asks(question, state).tolist() == list(range(N))
        returns = np.random.default_rng(50 + number).normal(size=N)
        selection, state = selector.select(question, CandidateMetrics(np.arange(N), {"mean_return": returns}), state)
        if number < 5:
            assert (state["factor"] == 1).all()
            expected = np.random.default_rng(number)
            if number:
                assert selection.client.tolist() == np.sort(expected.choice(N, 2, replace=False)).tolist()
    assert sorted(state["factor"].tolist())[:2] != [1, 1]
    assert np.prod(state["factor"]) == pytest.approx(0.9**4)


def test_a_run_of_fedcor_resumes_to_the_byte(tmp_path: Path) -> None:
    check_selector("fedcor")
    federation = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=2)
    config = preset("tabular", selector="fedcor")
    learner = replace(config.learner, local_iterations=1, steps_per_iteration=50)
    config = replace(config, rounds=7, federation=federation, learner=learner)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=6), tmp_path / "cut")
    resume_experiment(tmp_path / "cut", rounds=7)
    for name in ("rounds.csv", "clients.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    with pytest.raises(UserError, match="needs the values of its metrics"):
        check_config(replace(config, privacy="masked"))
