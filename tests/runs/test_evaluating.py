"""Stored policies on populations: their own, other levels, more clients, held-out ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig
from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.presets import preset
from fedpohcs.execution import make_executor
from fedpohcs.runs.evaluating import evaluate_policy
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loading import load_run

CONFIG = replace(
    preset("mountain-cars", selector="fedavg"),
    rounds=2,
    federation=FederationConfig(num_clients=4, num_candidates=2, num_selected=1, evaluation_episodes=3),
    learner=PPOConfig(hidden_sizes=(8,), filter_warmup_steps=3000),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evaluated") / "run"
    run_experiment(CONFIG, path)
    return path


def test_a_policy_is_evaluated_as_its_run_would_do_it(run: Path) -> None:
    """With the filters that the run ended with, and other episodes than its own."""
    found = evaluate_policy(run, episodes=50)
    assert found.round == 2
    assert found.client.tolist() == [0, 1, 2, 3]
    assert found.own_filter.all()
    stored = load_run(run).client_returns[-1]
    np.testing.assert_allclose(found.mean_return, stored, atol=60)  # of -500 to 100
    assert not np.array_equal(found.mean_return, stored)


def test_returns_depend_on_the_policy_that_is_named_and_repeat_with_the_seed(run: Path) -> None:
    one, again, other = (evaluate_policy(f"{run}@{which}") for which in ("last", "2", "best"))
    assert one.mean_return.tolist() == again.mean_return.tolist()
    assert (other.round == 2) == (one.mean_return.tolist() == other.mean_return.tolist())
    assert evaluate_policy(run, seed=1).mean_return.tolist() != one.mean_return.tolist()


def test_filters_decide_what_a_policy_does(run: Path) -> None:
    """The same clients with the default filter act otherwise than with their own."""
    own, pooled = evaluate_policy(run), evaluate_policy(run, clients=5)
    assert own.own_filter.all()
    assert not pooled.own_filter.any()


def test_the_default_filter_is_that_of_all_clients_together(run: Path) -> None:
    from fedpohcs.runs.evaluating import _fill_filters
    from fedpohcs.runs.export import load_run_policy
    from fedpohcs.runs.policy import read_arrays

    executor = make_executor(CONFIG)
    moments = executor.state.filters.observation
    _fill_filters(moments, read_arrays(run / "policy.npz"), np.array([True, False, False, True]), 4)
    policy = load_run_policy(run)
    for client, named in enumerate((0, None, None, 3)):
        found = policy.filter_of(named)
        assert found is not None
        np.testing.assert_allclose(moments.mean[client], found[0], rtol=1e-5)
        np.testing.assert_allclose(np.sqrt(moments.squares[client] / moments.seen[client]), found[1], rtol=1e-5)
    executor.close()


def test_another_level_and_held_out_clients_are_printed_and_stored(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--level", "high", "--held-out", "2", "--episodes", "1", "-o", str(tmp_path / "returns.csv")]
    assert main(["evaluate", str(run), *options]) == 0
    printed = capsys.readouterr().out
    assert "mountain-cars (high), policy of round 2" in printed
    assert "4 clients: mean return" in printed and "2 held-out clients: mean return" in printed
    header, *rows = (tmp_path / "returns.csv").read_text().splitlines()
    assert header == "client,mean_return,own_filter"
    assert [row.split(",")[0] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert {row.split(",")[2] for row in rows} == {"0"}


def test_held_out_clients_lie_where_they_are_asked_for(run: Path) -> None:
    between, beyond = (evaluate_policy(run, held_out=2, placement=name) for name in ("between", "beyond"))
    assert between.config.federation.held_out_placement == "between"
    assert beyond.config.federation.held_out_placement == "beyond"
    assert between.mean_return[:4].tolist() == beyond.mean_return[:4].tolist()
    assert between.mean_return[4:].tolist() != beyond.mean_return[4:].tolist()


@pytest.mark.parametrize(
    ("options", "own"),
    [({}, 6), ({"held_out": 3}, 4), ({"placement": "beyond"}, 4), ({"level": "high"}, 0), ({"clients": 5}, 0)],
)
def test_a_held_out_client_keeps_its_filter_only_where_its_world_is_the_same(
    options: dict, own: int, tmp_path: Path
) -> None:
    federation = replace(CONFIG.federation, held_out_clients=2, evaluation_episodes=1)
    run_experiment(replace(CONFIG, rounds=1, federation=federation), tmp_path / "run")
    assert evaluate_policy(tmp_path / "run", **options).own_filter.tolist().count(True) == own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--level", "extreme"], "level (='extreme')"),
        (["--clients", "0"], "clients (=0) must be at least 1"),
        (["--episodes", "0"], "evaluation_episodes (=0)"),
        (["--seed", "-1"], "seed (=-1)"),
        (["--held-out", "-1"], "held_out_clients (=-1)"),
        (["--placement", "outside"], "placement"),
        (["-o", "missing/returns.csv"], "cannot be written"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    options: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(run), *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
