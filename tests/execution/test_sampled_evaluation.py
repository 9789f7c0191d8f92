"""Evaluations of a random sample of the clients."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedpohcs import preset
from fedpohcs.cli.display import ProgressDisplay
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.sampling import sample_interval
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.keeping import Keep, Keeper
from fedpohcs.runs.loading import load_run
from fedpohcs.server.candidates import draw_evaluated


def sampled(selector: str = "fedpohcs", rounds: int = 3) -> ExperimentConfig:
    config = preset("tabular", selector=selector)
    federation = replace(config.federation, evaluated_clients=5, full_evaluation_rounds=(2,))
    return replace(config, rounds=rounds, federation=federation)


def test_sample_depends_on_seed_and_round_and_full_rounds_have_everyone() -> None:
    federation = sampled().federation
    drawn = [tuple(draw_evaluated(federation, seed, number)) for seed in (0, 1) for number in (0, 1, 3)]
    assert len(set(drawn)) == 6
    assert all(len(set(one)) == 5 for one in drawn)
    assert draw_evaluated(federation, 0, 2).tolist() == list(range(12))


def test_interval_covers_the_mean_of_all_clients_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    returns = generator.normal(size=200)
    limits = [sample_interval(generator.choice(returns, 100, replace=False), 200) for _ in range(2000)]
    covered = np.mean([low <= returns.mean() <= high for low, high in limits])
    assert 0.935 < covered < 0.965  # without the finite-population correction 0.995


def test_resumed_run_equals_one_that_was_not_stopped(tmp_path: Path) -> None:
    run_experiment(sampled(rounds=4), tmp_path / "whole")
    run_experiment(sampled(rounds=2), tmp_path / "part")
    resume_experiment(tmp_path / "part", rounds=4)
    for table in ("rounds.csv", "clients.csv"):
        assert (tmp_path / "part" / table).read_bytes() == (tmp_path / "whole" / table).read_bytes()


def test_only_sampled_clients_have_rows_and_means_are_theirs(tmp_path: Path) -> None:
    run_experiment(sampled(), tmp_path / "run")
    run = load_run(tmp_path / "run")
    known = np.isfinite(run.client_returns)
    assert known.sum(axis=1).tolist() == [5, 5, 12, 5]
    assert run.rounds["mean_return"][1] == pytest.approx(run.client_returns[1][known[1]].mean())
    low, high = run.rounds["mean_return_low"], run.rounds["mean_return_high"]
    assert low[2] == high[2]
    assert (low[[0, 1, 3]] < high[[0, 1, 3]]).all()


def test_candidates_outside_the_sample_are_measured_under_the_present_policy() -> None:
    history = run_experiment(sampled("power-of-choice"))
    for record in history.records[1:]:
        assert (record.selection.scores["loss"] != 0).all()  # 0: the return of a client that never played


def test_executors_sample_the_same_clients() -> None:
    runs = [run_experiment(replace(sampled(), executor=name)) for name in ("vectorised", "one-by-one")]
    for one, other in zip(*(run.records for run in runs), strict=True):
        np.testing.assert_array_equal(one.evaluation.client, other.evaluation.client)


def test_display_says_that_means_are_of_a_sample() -> None:
    shown = io.StringIO()
    run_experiment(sampled(), observers=[ProgressDisplay(Console(file=shown))])
    lines = shown.getvalue().splitlines()
    assert "of 5 sampled clients" in lines[-1]

    shown.seek(0)
    run_experiment(sampled(rounds=2), observers=[ProgressDisplay(Console(file=shown))])  # all in the last round
    assert "sampled" not in shown.getvalue().splitlines()[2]


def test_best_policy_is_found_among_full_evaluations() -> None:
    keeper = Keeper(Keep(), compared=(2,))
    assert keeper.names({"round": 1, "mean_return": 9.0}) == []
    assert keeper.names({"round": 2, "mean_return": 3.0}) == ["best"]


@pytest.mark.parametrize(
    "settings",
    [{"evaluated_clients": 1}, {"evaluated_clients": 61}, {"full_evaluation_rounds": (1,)}],
)
def test_impossible_samples_are_refused(settings: dict) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        FederationConfig(**settings)
