"""Policies that a fleet trained are used: the default filter of its run folder, and the own filter of a device."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig, FederationConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.deploy.keys import Keys, load_members, make_keys
from fedpohcs.deploy.pooling import FILE as PLEDGE
from fedpohcs.deploy.private import make_flower_executor
from fedpohcs.runs.evaluating import evaluate_policy
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.export import export_policy, load_run_policy
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.keeping import Keep
from fedpohcs.runs.policy import load_policy, read_arrays

from .loop import LoopGrid, give_plan
from .test_executor import SHORT, Interrupted, StopAfter

pytestmark = pytest.mark.usefixtures("no_sleep")
SEEN = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
COHORT = ProtectionConfig(sketch_size=1024, min_cohort=3)


CONFIG = replace(
    preset("tabular", selector="fedavg"),
    rounds=2,
    federation=FederationConfig(num_clients=4, num_candidates=3, num_selected=2, evaluation_episodes=8),
)
CONFIG = replace(CONFIG, learner=replace(CONFIG.learner, filter_observations=True, filter_warmup_steps=200))
MASKED = replace(CONFIG, privacy="masked", protection=COHORT)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("fleet") / "keys", 4, ["localhost"])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of all fleets below, in one process: who sees the filters changes neither selection nor training."""
    run = tmp_path_factory.mktemp("here") / "run"
    run_experiment(replace(CONFIG, executor="one-by-one"), run, keep=Keep(every=1))
    return run


class Fleet(NamedTuple):
    """A run, the states of its devices, and everything that they said."""

    run: Path
    states: Path
    counts: dict[str, int]
    said: dict[str, bytes]  # by name of array


@pytest.fixture(scope="module")
def fleets(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fleet]:
    return {
        config.privacy: run_listening(config, tmp_path_factory.mktemp(config.privacy), keys)
        for config in (CONFIG, MASKED)
    }


def run_listening(config: ExperimentConfig, folder: Path, keys: Keys) -> Fleet:
    states, said = folder / "states", {}
    used = keys if config.privacy != "none" else None
    grid = LoopGrid(config, states, keys=used)

    def listen(question: Message, answer: Message) -> Message:
        for record in answer.content.array_records.values():
            for name, array in record.items():
                said[name] = said.get(name, b"") + array.data
        return answer

    grid.fault = listen
    return Fleet(run_on(grid, config, folder / "run", used), states, grid.counts, said)


def run_on(grid: LoopGrid, config: ExperimentConfig, out: Path, keys: Keys | None = None, **rest: Any) -> Path:
    members, plan = (load_members(keys.members), give_plan(grid, config, keys)) if keys else (None, b"")
    make_clients = partial(make_flower_executor, grid=grid, limits=SHORT, members=members, plan=plan)
    run_experiment(config, out, make_clients=make_clients, **rest)
    return out


def assert_same_default(one: Path | str, other: Path | str) -> None:
    ours, theirs = load_run_policy(one), load_run_policy(other)
    assert ours.filter_mean is None
    np.testing.assert_allclose(ours.forward(ours.rescale(SEEN)), theirs.forward(theirs.rescale(SEEN)), atol=1e-6)
    assert not np.allclose(ours.rescale(SEEN), SEEN, atol=0.1)


def device_folder(states: Path, client: int) -> Path:
    (folder,) = states.glob(f"*/client-{client}")
    return folder


@pytest.mark.parametrize("privacy", ["none", "masked"])
def test_a_fleet_exports_as_the_same_run_in_process_does(
    privacy: str, fleets: dict[str, Fleet], here: Path, tmp_path: Path
) -> None:
    """With the default filter on the server, and with the own filter of every client on its device."""
    fleet = fleets[privacy]
    assert_same_default(fleet.run, here)
    assert not {"filters/mean", "filters/count"} & read_arrays(fleet.run / "policy.npz").keys()
    expected = load_run_policy(here)
    for client in range(4):
        output = tmp_path / f"{client}.npz"
        arguments = ["flower", "export", str(output), "--state-dir", str(fleet.states), "--client-id", str(client)]
        assert main(arguments) == 0
        own = load_policy(output)
        np.testing.assert_allclose(own.forward(own.rescale(SEEN)), expected.forward(expected.rescale(SEEN, client)))
    assert {path.stat().st_mode & 0o777 for path in fleet.states.glob("*/*/policy.npz")} == {0o600}


def test_the_best_policy_has_the_filter_of_its_round_or_with_privacy_that_of_the_end(
    fleets: dict[str, Fleet], here: Path
) -> None:
    plain, masked = fleets["none"].run, fleets["masked"].run
    number = load_run_policy(f"{plain}@best").about["round"]
    assert_same_default(f"{plain}@best", f"{here}@{number}")
    best = load_run_policy(f"{masked}@best")
    np.testing.assert_array_equal(best.rescale(SEEN), load_run_policy(masked).rescale(SEEN))


def test_no_answer_of_a_private_fleet_holds_a_filter(fleets: dict[str, Fleet]) -> None:
    plain, masked = fleets["none"], fleets["masked"]
    assert {name for name in plain.said if "filter" in name} == {"filters/count", "filters/mean", "filters/variance"}
    assert not any("filter" in name for name in masked.said)
    assert (plain.counts.get("query.pool"), masked.counts["query.pool"]) == (None, 8)
    heard = b"".join(masked.said.values())
    for client in range(4):
        kept = read_arrays(device_folder(masked.states, client) / "policy.npz")
        for kind in (np.float32, np.float64):
            for name in ("filters/mean", "filters/variance"):
                assert kept[name].astype(kind).tobytes()[:8] not in heard
    assert (device_folder(masked.states, 0) / PLEDGE).stat().st_mode & 0o777 == 0o600


def is_upload(question: Message) -> bool:
    return question.metadata.message_type == "query.pool" and "message" in question.content.array_records


def test_without_all_uploads_there_is_no_default_filter_and_export_says_what_to_do(
    states: Path,
    keys: Keys,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(MASKED, rounds=1)
    grid, lost = LoopGrid(config, states, keys=keys), []

    def lose(question: Message, answer: Message) -> Message | None:
        if is_upload(question) and question.metadata.dst_node_id == grid.node_of(2):
            return lost.append(question)
        return answer

    grid.fault = lose
    run = run_on(grid, config, tmp_path / "run", keys)
    assert len(lost) == 3
    assert "the run has no default filter: the clients [2] did not add their filters" in caplog.text
    for output in ("policy.onnx", "policy.npz"):
        assert main(["export", str(run), str(tmp_path / output)]) == 2
        assert "has no observation filters, its clients keep them. On a device" in capsys.readouterr().err
        assert not (tmp_path / output).exists()
    for command in (["evaluate", str(run)], ["play", str(run), "--client", "0"]):
        assert main(command) == 2
        assert "has no observation filters" in capsys.readouterr().err


def test_a_lost_upload_is_asked_for_again(states: Path, keys: Keys, here: Path, tmp_path: Path) -> None:
    config = replace(MASKED, rounds=1)
    grid, lost = LoopGrid(config, states, keys=keys), []
    grid.fault = lambda question, answer: lost.append(1) if is_upload(question) and not lost else answer
    run = run_on(grid, config, tmp_path / "run", keys)
    assert len(lost) == 1
    assert_same_default(run, f"{here}@1")


def test_with_a_noise_budget_no_exact_sum_is_made(
    states: Path, keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(MASKED, rounds=1, protection=replace(COHORT, epsilon=1.0))
    grid = LoopGrid(config, states, keys=keys)
    run_on(grid, config, tmp_path / "run", keys)
    assert "query.pool" not in grid.counts
    assert "protection.epsilon (=1.0) allows no exact sum" in caplog.text


def test_a_fleet_that_stopped_can_be_used_and_goes_on_with_its_filter(states: Path, here: Path, tmp_path: Path) -> None:
    grid, out = LoopGrid(CONFIG, states), tmp_path / "run"
    with pytest.raises(Interrupted):
        run_on(grid, CONFIG, out, observers=[StopAfter(1)])
    assert not (out / "policy.npz").exists()
    assert_same_default(f"{out}@last", f"{here}@1")
    resume_experiment(out, make_clients=partial(make_flower_executor, grid=grid, limits=SHORT))
    assert_same_default(out, here)


def test_the_fleets_policy_is_evaluated_and_played_with_the_default_filter(
    fleets: dict[str, Fleet], here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fleets["none"].run
    found, own = evaluate_policy(run), evaluate_policy(here)
    assert own.own_filter.all() and not found.own_filter.any()
    np.testing.assert_allclose(found.mean_return, own.mean_return, rtol=0.2)
    assert main(["play", str(run), "--client", "0", "--episodes", "1"]) == 0
    assert "the default filter is used" in capsys.readouterr().err
    with pytest.raises(UserError, match="has no filter here: clients of a fleet keep their own"):
        export_policy(run, tmp_path / "policy.onnx", 1)


def test_a_device_joins_a_policy_that_was_copied_to_it_with_its_own_filter(
    fleets: dict[str, Fleet], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, states, *_ = fleets["none"]
    export_policy(f"{run}@best", tmp_path / "best.npz")
    copied, output = load_policy(tmp_path / "best.npz"), tmp_path / "mine.npz"
    export = ["flower", "export", str(output), "--state-dir", str(states), "--client-id", "2", "--policy"]
    kept = read_arrays(device_folder(states, 2) / "policy.npz")
    for policy in (str(tmp_path / "best.npz"), f"{run}@best"):
        assert main([*export, policy]) == 0
        joined = load_policy(output)
        np.testing.assert_array_equal(joined.layers[0][0], copied.layers[0][0])
        found = joined.filter_of()
        assert found is not None
        np.testing.assert_array_equal(found[0], kept["filters/mean"])
        assert joined.about["round"] == copied.about["round"]
        output.unlink()
    with RunFolder.create(tmp_path / "other", replace(CONFIG, level="high")):
        assert main([*export, str(tmp_path / "other")]) == 2
    assert "is of the world tabular high, not of tabular medium" in capsys.readouterr().err
    (tmp_path / "bad.npz").write_bytes(b"PK")
    assert main([*export, str(tmp_path / "bad.npz")]) == 2
    assert "is not an exported policy" in capsys.readouterr().err
    assert not output.exists()


def test_export_on_a_device_names_what_is_missing(
    fleets: dict[str, Fleet], states: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ["flower", "export", str(tmp_path / "policy.onnx"), "--state-dir", str(states)]
    assert main(export) == 2
    assert "has no such policy. A device keeps the policy of its first evaluation on." in capsys.readouterr().err
    shutil.copytree(fleets["none"].states, states)
    assert main(export) == 2
    assert "client-id (=None) must be given: the folder has client-0, client-1" in capsys.readouterr().err
    for client in (1, 2, 3):
        shutil.rmtree(device_folder(states, client))
    assert main(export) == 0
    kept = device_folder(states, 0) / "policy.npz"
    kept.write_bytes(kept.read_bytes()[:-100])
    assert main(export) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main([*export, "--run", "../x"]) == 2
    assert "run (='../x') must be letters and digits" in capsys.readouterr().err


def test_a_client_cannot_claim_more_observations_than_it_can_have_made(states: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=1)
    grid = LoopGrid(config, states)

    def inflate(question: Message, answer: Message) -> Message:
        record = answer.content.array_records.get("arrays", {})
        if question.metadata.dst_node_id == grid.node_of(1) and "filters/count" in record:
            record["filters/count"].data = np.float32(1e15).tobytes()
        return answer

    grid.fault = inflate
    run = run_on(grid, config, tmp_path / "run")
    assert "0,1,bad-reply,evaluate/range/filters/count,1.0" in (run / "clients.csv").read_text()
