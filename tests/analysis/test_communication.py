from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeRun
from fedpohcs.analysis.communication import traffic, weight_bytes
from fedpohcs.core.presets import preset
from fedpohcs.core.types import CandidateMetrics, WeightedAdvantage
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loading import load_run
from fedpohcs.server.round import upload_bytes

TABULAR_BYTES = 4 * (6 * 3 + 3 + 6 + 1 + 1)  # one linear layer each for policy and critic, and beta


def test_weights_of_a_run_without_a_policy_yet_are_those_of_its_newest_checkpoint(tmp_path: Path) -> None:
    run_experiment(replace(preset("tabular", selector="fedavg"), rounds=1), tmp_path / "run")
    finished = load_run(tmp_path / "run")
    assert weight_bytes(finished) == TABULAR_BYTES
    (tmp_path / "run" / "policy.npz").unlink()
    assert weight_bytes(finished) == TABULAR_BYTES
    assert traffic(finished).train.tolist() == [0, 3 * (2 * TABULAR_BYTES + 8)]
    (newest,) = (tmp_path / "run" / "checkpoints").iterdir()
    newest.write_bytes(b"fedpohcs-checkpoint-1 cut off")
    assert np.isnan(weight_bytes(finished))


def test_weights_that_are_stored_nowhere_are_not_guessed(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=1))
    assert np.isnan(weight_bytes(run))
    assert np.isnan(traffic(run).train[1])


def test_filters_stored_beside_the_weights_are_not_sent(make_run: MakeRun) -> None:
    path = make_run(rounds=1)
    np.savez(path / "policy.npz", **{"policy/log_std": np.zeros(3, np.float32), "filters/mean": np.zeros((9, 9))})
    assert weight_bytes(load_run(path)) == 12


def test_uploads_are_the_scalars_and_tables_each_client_sent() -> None:
    tables = tuple(WeightedAdvantage(np.zeros(n, np.uint64), np.zeros(n)) for n in (2, 5))
    asked = np.array([3, 8])
    assert upload_bytes(CandidateMetrics(asked, {"weighted_advantage": tables})) == {3: 32, 8: 80}
    assert upload_bytes(CandidateMetrics(asked, {"mean_return": np.zeros(2)})) == {3: 8, 8: 8}
    assert upload_bytes(CandidateMetrics(asked[:0])) == {}


@pytest.mark.parametrize(
    ("selector", "asked"), [("fedavg", [0, 0]), ("power-of-choice", [6, 6]), ("fedpohcs-one-phase", [12, 3])]
)
def test_a_real_run_records_whom_it_asked(selector: str, asked: list[int], tmp_path: Path) -> None:
    run_experiment(replace(preset("tabular", selector=selector), rounds=2), tmp_path / "run")
    run = load_run(tmp_path / "run")
    rows = run.clients["role"] == "asked"
    assert np.bincount(run.clients["round"][rows], minlength=3)[1:].tolist() == asked
    uploads = np.bincount(run.clients["round"][rows], run.clients["value"][rows], minlength=3)[1:]
    bytes_sent = traffic(run)
    np.testing.assert_allclose(bytes_sent.measure[1:], np.array(asked) * TABULAR_BYTES + uploads)
    assert (uploads > 0).tolist() == [count > 0 for count in asked]
    assert bytes_sent.train.tolist() == [0, *[3 * (2 * TABULAR_BYTES + 8)] * 2]
    assert bytes_sent.evaluate.tolist() == [12 * (TABULAR_BYTES + 8)] * 3
    assert bytes_sent.learning.tolist() == (bytes_sent.measure + bytes_sent.train).tolist()


def test_a_run_that_did_not_record_uploads_does_not_know_what_phase_one_took(make_run: MakeRun) -> None:
    assert np.isnan(traffic(load_run(make_run(rounds=2))).measure).all()  # it has scores, so somebody was asked


@pytest.mark.parametrize(
    ("optimiser", "decay", "arrays"),
    [(None, 1.0, 2), ("momentum", 0.5, 2), ("scaffold", 1.0, 3), ("fedcm", 0.5, 3), ("not-installed-here", 1.0, 2)],
)
def test_what_a_server_optimiser_sends_along_is_counted(
    optimiser: str | None, decay: float, arrays: int, make_run: MakeRun
) -> None:
    path = make_run(rounds=1)
    np.savez(path / "policy.npz", **{"policy/log_std": np.zeros(3, np.float32)})
    run = load_run(path)
    federation = replace(run.config.federation, server_optimiser=optimiser)
    settings = replace(run.config.server_optimiser, learning_rate_decay=decay)
    steered = replace(run, config=replace(run.config, federation=federation, server_optimiser=settings))
    trained = len(run.rounds["selected"][1].split())
    assert traffic(steered).train[1] == trained * (arrays * 12 + 8)
