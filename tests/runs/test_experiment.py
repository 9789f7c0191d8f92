"""Whole runs: what they store, what they learn, what they survive."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import NO_EXTRA, ServerState
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.server.round import ask_question, evaluate_start, run_round

SMALL = FederationConfig(num_clients=7, num_candidates=5, num_selected=3, evaluation_episodes=8)
CONFIG = replace(preset("tabular"), rounds=3, federation=SMALL)


def test_two_runs_of_one_config_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run_experiment(CONFIG, tmp_path / name)
    for file in ("config.json", "rounds.csv", "clients.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()
    saved = [np.load(tmp_path / name / "policy.npz") for name in ("one", "other")]
    assert saved[0].files == saved[1].files
    for key in saved[0].files:
        np.testing.assert_array_equal(saved[0][key], saved[1][key])


def test_records_are_kept_in_memory_only_if_wanted(tmp_path: Path) -> None:
    kept = run_experiment(CONFIG, tmp_path / "kept")
    assert [record.round for record in kept.records] == list(range(CONFIG.rounds + 1))
    assert run_experiment(CONFIG, tmp_path / "stored", keep_records=False).records == []
    for name in ("rounds.csv", "clients.csv"):
        assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "stored" / name).read_bytes()


def test_a_used_folder_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, rounds=1), tmp_path / "run")
    before = (tmp_path / "run" / "rounds.csv").read_bytes()
    with pytest.raises(UserError, match="overwrite"):
        run_experiment(CONFIG, tmp_path / "run")
    assert (tmp_path / "run" / "rounds.csv").read_bytes() == before


def test_policy_mean_needs_a_tabular_policy_and_works_with_one(tmp_path: Path) -> None:
    mixed = replace(CONFIG, federation=replace(SMALL, aggregator="policy-mean"))
    assert len(run_experiment(mixed).records) == 4
    cars = replace(preset("mountain-cars"), federation=FederationConfig(aggregator="policy-mean"))
    with pytest.raises(UserError, match="needs a tabular policy"):
        run_experiment(cars, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selector": "fedpochs"}, "Did you mean 'fedpohcs'"),
        ({"world": "mountains"}, "Did you mean 'mountain-cars'"),
        ({"level": "hi"}, "Did you mean 'high'"),
        ({"federation": FederationConfig(aggregator="mean")}, "Did you mean 'p"),
    ],
)
def test_an_unknown_name_is_refused_before_anything_is_written(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run_experiment(replace(CONFIG, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_client_that_diverged_keeps_the_state_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = InProcessExecutor(CONFIG)
    before = jax.tree.map(np.copy, executor.state)
    monkeypatch.setattr("fedpohcs.execution.clients.finite_clients", lambda tree: np.array([True, False, True]))
    executor.train(executor.initial_params(), 0, np.array([1, 3, 5]))
    changed = [
        (executor.state.filters.reward.mean[client] != before.filters.reward.mean[client]) for client in (1, 3, 5)
    ]
    assert changed == [True, False, True]


def test_full_participation_trains_everyone() -> None:
    history = run_experiment(replace(CONFIG, selector="full", rounds=1))
    np.testing.assert_array_equal(history.records[1].selection.client, np.arange(7))


def test_client_weights_decide_aggregation_when_asked() -> None:
    """With all weight on client 2 and everyone training, the global policy is client 2's."""
    weights = (1e-12, 1e-12, 1.0, 1e-12, 1e-12, 1e-12, 1e-12)
    federation = replace(SMALL, client_weights=weights, update_weights="clients")
    config = replace(CONFIG, selector="full", federation=federation)
    executor = InProcessExecutor(config)
    state = ServerState(0, executor.initial_params(), None)
    alone = InProcessExecutor(config).train(state.params, 0, np.arange(7))
    state, _ = run_round(state, executor, SELECTORS["full"](), federation, config.seed)
    np.testing.assert_allclose(
        state.params.policy.layers[0].kernel, alone.params.policy.layers[0].kernel[2], rtol=1e-4, atol=1e-6
    )


def test_a_diverged_client_is_left_out_named_and_counted() -> None:
    class Sabotaged(InProcessExecutor):
        def train(self, params, round_number, clients, extra=NO_EXTRA):  # type: ignore[no-untyped-def]
            updates = super().train(params, round_number, clients, extra)
            spoiled = jax.tree.map(
                lambda x: np.where(np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) == 1, np.nan, x), updates.params
            )
            return updates._replace(params=spoiled)

    executor = Sabotaged(CONFIG)
    state = ServerState(0, executor.initial_params(), None)
    evaluate_start(state, executor, SELECTORS["fedavg"](), SMALL, 0)
    state, record = run_round(state, executor, SELECTORS["fedavg"](), SMALL, 0)
    np.testing.assert_array_equal(record.rejected, [record.selection.client[1]])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize("selector", ["fedpohcs", "power-of-choice", "gradient-norm"])
def test_a_round_with_fewer_candidates_than_k_trains_those_that_are_left(selector: str) -> None:
    class Taciturn(InProcessExecutor):
        def measure(self, params, round_number, clients, names):  # type: ignore[no-untyped-def]
            return super().measure(params, round_number, clients[:1], names)

    executor = Taciturn(replace(CONFIG, selector=selector))
    chosen = SELECTORS[selector]()
    state = ServerState(0, executor.initial_params(), chosen.init())
    executor.evaluate(state.params, 0, np.arange(SMALL.num_clients))
    _, record = run_round(state, executor, chosen, SMALL, 0)
    assert len(record.candidates) == 1 < SMALL.num_selected
    np.testing.assert_array_equal(record.selection.client, record.candidates)
    assert record.train_steps.all()


def test_candidates_are_d_distinct_clients_drawn_uniformly() -> None:
    counts = np.zeros(7)
    for number in range(2000):
        candidates = ask_question(number, SELECTORS["fedavg"](), SMALL, seed=3).candidates
        assert len(set(candidates.tolist())) == 5
        counts[candidates] += 1
    np.testing.assert_allclose(counts / 2000, 5 / 7, atol=0.03)


@pytest.mark.learning
def test_a_federation_of_random_worlds_learns() -> None:
    history = run_experiment(replace(preset("tabular", level="low", selector="fedavg"), rounds=20))
    returns = history.mean_returns
    assert np.mean(returns[-3:]) > returns[0] + 5


@pytest.mark.learning
def test_a_few_cars_learn_to_climb() -> None:
    """Eight cars of low heterogeneity, six of which train each round, clear the hill within ten rounds."""
    learner = PPOConfig(filter_warmup_steps=5000, bootstrap_at_time_limit=False, learning_rate_decay=1.0)
    federation = FederationConfig(num_clients=8, num_candidates=6, num_selected=6, evaluation_episodes=4)
    cars = replace(preset("mountain-cars", "low", "fedavg"), rounds=10, learner=learner, federation=federation)
    returns = run_experiment(cars).mean_returns
    assert max(returns[-3:]) > 40
    assert max(returns[-3:]) > returns[0] + 30
