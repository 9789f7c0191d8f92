"""Evaluations of a random sample of the clients."""

import io
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from fedpohcs import preset
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.report import render_report
from fedpohcs.cli.compare import write_results
from fedpohcs.cli.display import ProgressDisplay
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.sampling import sample_interval
from fedpohcs.core.types import Evaluation, RoundRecord, Selection
from fedpohcs.deploy import require_shared
from fedpohcs.execution import make_executor
from fedpohcs.learners.shared_filters import known_filters
from fedpohcs.runs.checkpoints import checkpoint_files, from_bytes, read_checkpoint, round_of
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.evaluating import evaluate_policy
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.keeping import Keep, Keeper
from fedpohcs.runs.loading import load_run
from fedpohcs.runs.policy import read_arrays
from fedpohcs.runs.stored import find_stored, stored_arrays
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


REPRODUCIBLE = ("rounds.csv", "clients.csv", "policy.npz")


def large(selector: str = "fedpohcs", rounds: int = 6, **settings: Any) -> ExperimentConfig:
    """A population of which few clients ever act."""
    config = sampled(selector, rounds)
    federation = replace(config.federation, num_clients=400, full_evaluation_rounds=(), **settings)
    return replace(config, federation=federation)


class Stop:
    """Ends a run by an exception after a round, as a signal would."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_start(self, config: ExperimentConfig) -> None: ...
    def on_finish(self) -> None: ...
    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.number:
            raise KeyboardInterrupt


@pytest.mark.parametrize("newcomers", ["pooled", "play"])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_runs_go_on_to_the_byte_from_checkpoints_of_changes_also_from_an_earlier_one(
    newcomers: str, lost: int, tmp_path: Path
) -> None:
    config = large(newcomers=newcomers)
    run_experiment(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(config, tmp_path / "parts", observers=[Stop(4)])
    files = checkpoint_files(tmp_path / "parts")
    assert [path.name for path in files][-1] == "round-000004.after-000003.ckpt"
    for path in files[len(files) - lost :]:
        path.write_bytes(b"damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resume_experiment(tmp_path / "parts")
    for table in REPRODUCIBLE:
        assert (tmp_path / "parts" / table).read_bytes() == (tmp_path / "whole" / table).read_bytes(), table


def test_a_run_that_goes_on_from_an_earlier_checkpoint_deletes_the_later_ones(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_experiment(large(), tmp_path / "run", observers=[Stop(4)])
    checkpoint_files(tmp_path / "run")[-2].write_bytes(b"damaged")  # of round 3, on which that of round 4 builds
    with warnings.catch_warnings(record=True) as caught, pytest.raises(KeyboardInterrupt):
        warnings.simplefilter("always")
        resume_experiment(tmp_path / "run", observers=[Stop(3)])
    assert "builds on round-000003.after-000002.ckpt, which does not begin" in str(caught[0].message)
    assert [round_of(path) for path in checkpoint_files(tmp_path / "run")][-2:] == [2, 3]


def test_checkpoints_hold_those_who_acted_and_then_those_who_changed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_experiment(large(), tmp_path / "run", observers=[Stop(3)])
    whole = read_checkpoint(checkpoint_files(tmp_path / "run")[-1])
    acted, trained, _ = whole.state.clients.whose
    assert len(trained) <= 3 * 6 < len(acted) < 100
    changes = from_bytes(checkpoint_files(tmp_path / "run")[-1].read_bytes())
    assert changes.after == 2
    assert len(changes.state.clients.whose[0]) < len(acted)
    assert len(changes.state.server.returns.client) <= 5
    known = whole.state.server.returns.of_all(400)
    table = load_run(tmp_path / "run").client_returns
    for client in np.flatnonzero(np.isfinite(known)):
        column = table[:, client]
        assert known[client] == column[np.isfinite(column)][-1]
    assert np.isfinite(known).sum() == np.isfinite(table).any(axis=0).sum()


def test_policy_of_a_population_that_did_not_all_act_has_the_default_filter(tmp_path: Path) -> None:
    config = replace(large(), learner=replace(large().learner, filter_observations=True))
    history = run_experiment(config, tmp_path / "run")
    arrays = read_arrays(tmp_path / "run" / "policy.npz")
    assert {name for name in arrays if name.startswith("filters/")} == {
        "filters/default_mean",
        "filters/default_variance",
    }
    stored = stored_arrays(find_stored(tmp_path / "run"), config)[0]
    np.testing.assert_array_equal(stored["filters/default_mean"], arrays["filters/default_mean"])
    found = evaluate_policy(tmp_path / "run", clients=12)
    assert len(found.mean_return) == 12
    assert not found.own_filter.any()
    assert history.records[-1].round == 6


def test_default_filter_is_that_of_the_pooled_stream_of_the_clients_that_acted() -> None:
    generator = np.random.default_rng(0)
    streams = [generator.normal(number, 1 + number, size=(10 * (number + 1), 2)) for number in range(3)]
    stored = {
        "filters/count": np.array([len(one) for one in streams], np.float32),
        "filters/mean": np.array([one.mean(0) for one in streams]),
        "filters/variance": np.array([one.var(0) for one in streams]),
    }
    found = known_filters(stored, np.array([7, 2, 9]), 9, 1)  # the last one is held out
    everything = np.concatenate(streams[:2])
    np.testing.assert_allclose(found["filters/default_mean"], everything.mean(0))
    np.testing.assert_allclose(found["filters/default_variance"], everything.var(0))
    whole = known_filters(stored, np.array([2, 0, 1]), 3, 0)
    np.testing.assert_array_equal(whole["filters/mean"], stored["filters/mean"][[1, 2, 0]])


def test_new_clients_begin_with_what_others_have_seen_or_with_steps_of_their_own() -> None:
    learner = replace(large().learner, filter_observations=True, filter_warmup_steps=500)
    executors = {
        way: make_executor(replace(large(newcomers=way), learner=learner), record=False) for way in ("pooled", "play")
    }
    params = executors["pooled"].initial_params()
    for executor in executors.values():
        executor.evaluate(params, 0, np.arange(5))
    first = {way: executor.state_of(np.arange(5)).filters for way, executor in executors.items()}
    jax.tree.map(np.testing.assert_array_equal, first["pooled"], first["play"])  # there was nobody to learn from
    pooled, own = (executors[way].filters_of(np.array([7, 8])).observation for way in ("pooled", "play"))
    seen = first["pooled"].observation
    np.testing.assert_array_equal(pooled.seen, np.full(2, seen.seen.mean()))
    np.testing.assert_allclose(pooled.mean, np.tile(seen.seen @ seen.mean / seen.seen.sum(), (2, 1)), rtol=1e-5)
    assert (own.mean[0] != own.mean[1]).any()
    alone = make_executor(replace(large(newcomers="play"), learner=learner), record=False)
    np.testing.assert_array_equal(alone.filters_of(np.array([7, 8])).observation.mean, own.mean)


def test_selector_that_asks_everyone_says_so_once(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_experiment(large("fedcor", rounds=2))
    assert len([one for one in caught if "asks all 400 clients" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_experiment(large(rounds=1))


MANY = {"num_clients": 1_000_000, "evaluated_clients": 5}


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"num_clients": 70_000}, "must not exceed 65535 unless federation.evaluated_clients is set"),
        (MANY | {"finetune_iterations": 1}, "must not exceed 65535 with federation.finetune_iterations"),
        (MANY | {"num_clients": 70_000, "client_weights": (1.0,) * 70_000}, "with federation.client_weights"),
    ],
)
def test_what_a_large_population_cannot_do_is_refused(settings: dict, rule: str) -> None:
    config = large(rounds=1)
    federation = replace(config.federation, **{"evaluated_clients": None} | settings)
    with pytest.raises(UserError, match=rule):
        check_config(replace(config, federation=federation))
    with pytest.raises(UserError, match="must not exceed 10000000"):
        FederationConfig(num_clients=10_000_001)


def test_a_large_population_is_refused_with_privacy_on_flower_and_in_a_report(tmp_path: Path) -> None:
    config = replace(large(rounds=1), privacy="masked")
    with pytest.raises(UserError, match=r"federation.newcomers \(='pooled'\) reveals what clients see"):
        check_config(config)
    many = replace(large(rounds=1), federation=replace(large().federation, **MANY, newcomers="play"))
    with pytest.raises(UserError, match="must not exceed 65535 with privacy"):
        check_config(replace(many, privacy="masked"))
    with pytest.raises(UserError, match="must not exceed 65535 on Flower"):
        require_shared(many)
    with pytest.raises(UserError, match=r"newcomers \(='pooled'\) must be play on Flower"):
        require_shared(large())


def test_a_run_of_a_large_population_is_read_without_a_table_of_all_clients(tmp_path: Path) -> None:
    federation = replace(large().federation, num_clients=70_000)
    config = replace(preset("mountain-cars", selector="fedavg"), rounds=2, federation=federation)
    nobody = np.arange(0)
    with RunFolder.create(tmp_path / "run", config) as folder:
        for number in range(3):
            client = np.array([3, 5 + number, 69_000 + number, 69_500, 69_999])
            evaluation = Evaluation(client, client / 7, np.ones(5, int))
            folder.append(RoundRecord(number, nobody, Selection(nobody), {}, nobody, nobody, evaluation, {}))
    run = load_run(tmp_path / "run")
    assert np.isfinite(run.final_returns).sum() == len(
        np.unique(run.clients["client"][run.clients["role"] == "evaluated"])
    )
    client, value = run.returns_in(2)
    assert len(client) == 5
    assert value.mean() == pytest.approx(run.rounds["mean_return"][2])
    write_results([tmp_path / "run"], tmp_path, quiet=True)
    assert (tmp_path / "curves.png").exists()
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(UserError, match="must not exceed 65535 in a report"):
        render_report(load_groups([tmp_path / "run"]), "title")


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
