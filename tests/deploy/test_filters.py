"""Policies that a fleet trained are used: the default filter of its run folder, and the own filter of a device."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.deploy.keys import Keys, load_members, make_keys
from fedpohcs.deploy.pooling import FILE as PLEDGE
from fedpohcs.deploy.private import make_flower_executor
from fedpohcs.runs.evaluating import evaluate_policy
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.export import export_policy, load_run_policy
from fedpohcs.runs.policy import load_policy, read_arrays

from .loop import LoopGrid
from .test_executor import SHORT, Interrupted, StopAfter

pytestmark = pytest.mark.usefixtures("no_sleep")
SEEN = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
COHORT = ProtectionConfig(sketch_size=1024, min_cohort=3)


@pytest.fixture
def config(config: ExperimentConfig) -> ExperimentConfig:
    learner = replace(config.learner, filter_observations=True, filter_warmup_steps=200)
    return replace(config, rounds=2, learner=learner)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("fleet") / "keys", 4, ["localhost"])


def run_on(grid: LoopGrid, config: ExperimentConfig, out: Path, keys: Keys | None = None, **rest: Any) -> Path:
    members = load_members(keys.members) if keys else None
    make_clients = partial(make_flower_executor, grid=grid, limits=SHORT, members=members)
    run_experiment(config, out, make_clients=make_clients, **rest)
    return out


def run_in_process(config: ExperimentConfig, out: Path) -> Path:
    run_experiment(replace(config, executor="one-by-one"), out)
    return out


def assert_same_default(one: Path | str, other: Path | str) -> None:
    ours, theirs = load_run_policy(one), load_run_policy(other)
    assert ours.filter_mean is None
    np.testing.assert_allclose(ours.forward(ours.rescale(SEEN)), theirs.forward(theirs.rescale(SEEN)), atol=1e-6)
    assert not np.allclose(ours.rescale(SEEN), SEEN, atol=0.1)


def device_folder(states: Path, client: int) -> Path:
    (folder,) = states.glob(f"*/client-{client + 1}")
    return folder


@pytest.mark.parametrize("privacy", ["none", "masked"])
def test_a_fleet_exports_as_the_same_run_in_process_does(
    privacy: str, config: ExperimentConfig, states: Path, keys: Keys, tmp_path: Path
) -> None:
    """With the default filter on the server, and with the own filter of every client on its device."""
    config = replace(config, privacy=privacy, protection=COHORT)
    used = keys if privacy == "masked" else None
    fleet = run_on(LoopGrid(config, states, keys=used), config, tmp_path / "fleet", used)
    here = run_in_process(config, tmp_path / "here")
    assert_same_default(fleet, here)
    assert not [name for name in read_arrays(fleet / "policy.npz") if name in ("filters/mean", "filters/count")]
    expected = load_run_policy(here)
    for client in range(4):
        output = tmp_path / f"{client}.npz"
        arguments = ["flower", "export", str(output), "--state-dir", str(states), "--client-id", str(client + 1)]
        assert main(arguments) == 0
        own = load_policy(output)
        np.testing.assert_allclose(own.forward(own.rescale(SEEN)), expected.forward(expected.rescale(SEEN, client)))
    assert {path.stat().st_mode & 0o777 for path in states.glob("*/*/policy.npz")} == {0o600}


def test_no_answer_of_a_private_fleet_holds_a_filter(
    config: ExperimentConfig, states: Path, keys: Keys, tmp_path: Path
) -> None:
    config, data, names = replace(config, privacy="masked", protection=COHORT), [], set()
    grid = LoopGrid(config, states, keys=keys)

    def listen(question: Message, answer: Message) -> Message:
        for record in answer.content.array_records.values():
            data.extend(array.data for array in record.values())
            names.update(record)
        return answer

    grid.fault = listen
    run_on(grid, config, tmp_path / "run", keys)
    assert not any("filter" in name for name in names)
    said = b"".join(data)
    for client in range(4):
        kept = read_arrays(device_folder(states, client) / "policy.npz")
        for name in ("filters/mean", "filters/variance"):
            for kind in (np.float32, np.float64):
                assert kept[name].astype(kind).tobytes()[:8] not in said
    assert grid.counts["query.pool"] == 8
    folder = device_folder(states, 0)
    assert (folder / PLEDGE).stat().st_mode & 0o777 == 0o600


def test_a_private_fleet_without_all_uploads_has_no_default_filter_and_export_says_what_to_do(
    config: ExperimentConfig,
    states: Path,
    keys: Keys,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(config, privacy="masked", protection=COHORT)
    grid, asked = LoopGrid(config, states, keys=keys), []

    def lose(question: Message, answer: Message) -> Message | None:
        uploads = question.metadata.message_type == "query.pool" and "message" in question.content.array_records
        lost = uploads and question.metadata.dst_node_id == grid.node_of(2)
        asked.extend([question] if lost else [])
        return None if lost else answer

    grid.fault = lose
    run = run_on(grid, config, tmp_path / "run", keys)
    assert len(asked) == 3
    assert "the run has no default filter: the clients [3] did not add their filters" in caplog.text
    for output in ("policy.onnx", "policy.npz"):
        assert main(["export", str(run), str(tmp_path / output)]) == 2
        assert "has no observation filters, its clients keep them. On a device" in capsys.readouterr().err
        assert not (tmp_path / output).exists()
    for command in (["evaluate", str(run)], ["play", str(run), "--client", "1"]):
        assert main(command) == 2
        assert "has no observation filters" in capsys.readouterr().err


def test_a_lost_upload_is_asked_for_again_and_the_best_policy_gets_the_filter_of_the_end(
    config: ExperimentConfig, states: Path, keys: Keys, tmp_path: Path
) -> None:
    config = replace(config, privacy="masked", protection=COHORT)
    grid, lost = LoopGrid(config, states, keys=keys), []

    def lose_once(question: Message, answer: Message) -> Message | None:
        if question.metadata.message_type == "query.pool" and "message" in question.content.array_records and not lost:
            lost.append(question)
            return None
        return answer

    grid.fault = lose_once
    run = run_on(grid, config, tmp_path / "run", keys)
    assert len(lost) == 1
    assert_same_default(run, run_in_process(config, tmp_path / "here"))
    first = load_run_policy(f"{run}@best")
    np.testing.assert_array_equal(first.rescale(SEEN), load_run_policy(run).rescale(SEEN))


def test_with_a_noise_budget_no_exact_sum_is_made(
    config: ExperimentConfig, states: Path, keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(config, rounds=1, privacy="masked", protection=replace(COHORT, epsilon=1.0))
    grid = LoopGrid(config, states, keys=keys)
    run_on(grid, config, tmp_path / "run", keys)
    assert "query.pool" not in grid.counts
    assert "protection.epsilon (=1.0) allows no exact sum" in caplog.text


def test_a_fleet_that_stopped_can_be_used_and_goes_on_with_its_filter(
    config: ExperimentConfig, states: Path, tmp_path: Path
) -> None:
    config = replace(config, rounds=3)
    grid, out = LoopGrid(config, states), tmp_path / "run"
    with pytest.raises(Interrupted):
        run_on(grid, config, out, observers=[StopAfter(1)])
    assert not (out / "policy.npz").exists()
    here = run_in_process(replace(config, rounds=1), tmp_path / "here")
    assert_same_default(f"{out}@last", here)
    assert_same_default(f"{out}@1", here)
    make_clients = partial(make_flower_executor, grid=grid, limits=SHORT)
    resume_experiment(out, make_clients=make_clients)
    assert_same_default(out, run_in_process(config, tmp_path / "whole"))


def test_the_fleets_policy_is_evaluated_and_played_with_the_default_filter(
    config: ExperimentConfig, states: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_on(LoopGrid(config, states), config, tmp_path / "run")
    found = evaluate_policy(run)
    assert not found.own_filter.any()
    here = run_in_process(config, tmp_path / "here")
    np.testing.assert_allclose(found.mean_return, evaluate_policy(here, clients=4).mean_return, rtol=0.5)
    assert main(["play", str(run), "--client", "1", "--episodes", "1"]) == 0
    assert "the default filter is used" in capsys.readouterr().err
    with pytest.raises(UserError, match="has no filter here: clients of a fleet keep their own"):
        export_policy(run, tmp_path / "policy.onnx", 1)


def test_a_device_joins_a_policy_that_was_copied_to_it_with_its_own_filter(
    config: ExperimentConfig, states: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_on(LoopGrid(config, states), config, tmp_path / "run")
    export_policy(f"{run}@best", tmp_path / "best.npz")
    copied, output = load_policy(tmp_path / "best.npz"), tmp_path / "mine.npz"
    export = ["flower", "export", str(output), "--state-dir", str(states), "--client-id", "3", "--policy"]
    for policy in (str(tmp_path / "best.npz"), f"{run}@best"):
        assert main([*export, policy]) == 0
        joined = load_policy(output)
        np.testing.assert_array_equal(joined.layers[0][0], copied.layers[0][0])
        kept = read_arrays(device_folder(states, 2) / "policy.npz")
        np.testing.assert_array_equal(joined.rescale(SEEN)[0], joined.rescale(SEEN[0]))
        found = joined.filter_of()
        assert found is not None
        np.testing.assert_array_equal(found[0], kept["filters/mean"])
        assert joined.about["round"] == copied.about["round"]
        output.unlink()
    other = run_in_process(replace(config, rounds=1, level="high"), tmp_path / "other")
    assert main([*export, str(other)]) == 2
    assert "is of the world tabular high, not of tabular medium" in capsys.readouterr().err
    (tmp_path / "bad.npz").write_bytes(b"PK")
    assert main([*export, str(tmp_path / "bad.npz")]) == 2
    assert "is not an exported policy" in capsys.readouterr().err
    assert not output.exists()


def test_export_on_a_device_names_what_is_missing(
    config: ExperimentConfig, states: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "policy.onnx"
    export = ["flower", "export", str(output), "--state-dir", str(states)]
    assert main(export) == 2
    assert "has no such policy. A device keeps the policy of its first evaluation on." in capsys.readouterr().err
    run_on(LoopGrid(config, states), replace(config, rounds=1), tmp_path / "run")
    assert main(export) == 2
    assert "client-id (=None) must be given: the folder has client-1, client-2" in capsys.readouterr().err
    for client in (1, 2, 3):
        shutil.rmtree(device_folder(states, client))
    assert main(export) == 0
    kept = device_folder(states, 0) / "policy.npz"
    kept.write_bytes(kept.read_bytes()[:-100])
    assert main(export) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main([*export, "--run", "../x"]) == 2
    assert "run (='../x') must be letters and digits" in capsys.readouterr().err


def test_a_client_cannot_claim_more_observations_than_it_can_have_made(
    config: ExperimentConfig, states: Path, tmp_path: Path
) -> None:
    grid = LoopGrid(config, states)

    def inflate(question: Message, answer: Message) -> Message:
        record = answer.content.array_records.get("arrays", {})
        if question.metadata.dst_node_id == grid.node_of(1) and "filters/count" in record:
            record["filters/count"].data = np.float32(1e15).tobytes()
        return answer

    grid.fault = inflate
    run = run_on(grid, config, tmp_path / "run")
    rows = (run / "clients.csv").read_text()
    assert "0,1,bad-reply,evaluate/range/filters/count,1.0" in rows
