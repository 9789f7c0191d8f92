"""Runs that stop and go on: what is on disk, and that nobody can tell afterwards."""

import contextlib
import hashlib
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.deploy.member import MemberState
from fedpohcs.runs import checkpoints
from fedpohcs.runs.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    DamagedError,
    checkpoint_files,
    from_bytes,
    latest_checkpoint,
    to_bytes,
    write_checkpoint,
)
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.folder import RunFolder

SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=4)
CONFIG = replace(preset("tabular"), rounds=6, federation=SMALL)
REPRODUCIBLE = ("config.json", "rounds.csv", "clients.csv", "policy.npz")


class Pair(NamedTuple):
    left: Any
    right: Any


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    hnp.arrays(st.sampled_from([np.float32, np.float64, np.int8, np.uint64, np.bool_]), hnp.array_shapes(min_dims=0)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.integers(0, 9), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@given(trees)
@settings(deadline=None)
def test_any_state_comes_back_as_it_was(tree: Any) -> None:
    assert_same(from_bytes(to_bytes(Checkpoint(3, {"seed": 1}, tree))).state, tree)


@pytest.fixture(scope="module")
def written() -> bytes:
    return to_bytes(Checkpoint(7, to_dict(CONFIG), Pair(np.arange(400.0), {1: np.zeros((3, 0), np.int8)})))


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_a_flipped_bit_anywhere_is_noticed(written: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(written) - 1))
    flipped = bytearray(written)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedError):
        from_bytes(bytes(flipped))


@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_a_file_cut_off_anywhere_is_noticed(written: bytes, data: st.DataObject) -> None:
    with pytest.raises(DamagedError):
        from_bytes(written[: data.draw(st.integers(0, len(written) - 1))])


def with_type(checkpoint: bytes, old: str, new: str) -> bytes:
    body = checkpoint.partition(b"\n")[2].replace(f'"{old}"'.encode(), f'"{new}"'.encode())
    return f"{checkpoints.FORMAT} {hashlib.sha256(body).hexdigest()} {len(body)}\n".encode() + body


@pytest.mark.parametrize("evil", ["os:system", "builtins:eval", "no.such:thing"])
def test_a_checkpoint_can_name_nothing_but_named_tuples(evil: str) -> None:
    honest = to_bytes(Checkpoint(0, {}, Pair(1, 2)))
    with pytest.raises(UserError, match="does not know"):
        from_bytes(with_type(honest, f"{__name__}:Pair", evil))


def test_a_node_reads_the_state_that_the_first_release_stored_under_another_name() -> None:
    state = MemberState(membership=Pair(1, 2), policy=np.arange(3), table=Pair(3, 4))  # pyright: ignore[reportArgumentType]
    stored = with_type(to_bytes(Checkpoint(0, {}, state)), "kept-membership", "fedpohcs.deploy.member:Kept")
    assert b"kept-membership" not in stored
    assert_same(from_bytes(stored).state, state)


def test_an_object_that_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold a"):
        to_bytes(Checkpoint(0, {}, {1: object()}))


@pytest.mark.parametrize("selector", ["fedavg", "power-of-choice", "gradient-norm", "fedpohcs", "fedpohcs-one-phase"])
def test_a_run_that_goes_on_writes_the_bytes_of_one_that_never_stopped(selector: str, tmp_path: Path) -> None:
    config = replace(CONFIG, selector=selector)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=3), tmp_path / "parts")
    history = resume_experiment(tmp_path / "parts", rounds=6)
    assert [record.round for record in history.records] == [4, 5, 6]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def assert_same_run(one: Path, other: Path) -> None:
    for name in REPRODUCIBLE:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_predicted_entries_survive_in_the_memory_of_the_one_phase_rule(tmp_path: Path) -> None:
    modelling = replace(CONFIG.modelling, missing="predicted")
    config = replace(CONFIG, selector="fedpohcs-one-phase", modelling=modelling)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=3), tmp_path / "parts")
    resume_experiment(tmp_path / "parts", rounds=6)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run of six rounds that was stopped while it wrote the fifth."""

    class Stop:
        def on_start(self, config: object) -> None: ...
        def on_finish(self) -> None: ...
        def on_round(self, record: Any) -> None:
            if record.round == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(CONFIG, tmp_path / "run", observers=[Stop()])
    return tmp_path / "run"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unbroken") / "run"
    run_experiment(CONFIG, path)
    return path


def test_the_last_three_checkpoints_are_kept_while_a_run_goes_on_and_one_when_it_is_done(
    stopped: Path, unbroken: Path
) -> None:
    assert [path.name for path in checkpoint_files(stopped)] == [f"round-00000{n}.ckpt" for n in (3, 4, 5)]
    assert [path.name for path in checkpoint_files(unbroken)] == ["round-000006.ckpt"]


def test_rows_of_an_unfinished_round_are_dropped(stopped: Path, unbroken: Path) -> None:
    checkpoint_files(stopped)[-1].unlink()
    with (stopped / "clients.csv").open("a") as file:
        file.write("6,1,evaluated,mean_ret")
    resume_experiment(stopped)
    assert_same_run(unbroken, stopped)


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(stopped: Path, unbroken: Path) -> None:
    newest = checkpoint_files(stopped)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"round-000005\.ckpt is cut off or altered"):
        resume_experiment(stopped)
    assert_same_run(unbroken, stopped)


def test_a_run_without_a_sound_checkpoint_is_refused_and_left_as_it_was(stopped: Path) -> None:
    for path in checkpoint_files(stopped):
        path.write_bytes(b"")
    before = (stopped / "rounds.csv").read_bytes()
    with warnings.catch_warnings(), pytest.raises(UserError, match=r"no usable checkpoint: .*round-000003\.ckpt"):
        warnings.simplefilter("ignore")
        resume_experiment(stopped)
    assert (stopped / "rounds.csv").read_bytes() == before


def test_a_run_stopped_before_its_first_checkpoint_begins_anew(stopped: Path, unbroken: Path) -> None:
    for path in checkpoint_files(stopped):
        path.unlink()
    resume_experiment(stopped)
    assert_same_run(unbroken, stopped)


def test_a_checkpoint_ahead_of_the_tables_is_passed_over_and_the_newest_of_the_others_is_taken(tmp_path: Path) -> None:
    for number in (3, 4, 5):
        write_checkpoint(tmp_path, Checkpoint(number, to_dict(CONFIG), number))
    for last_round, newest in ((6, 5), (5, 5), (4, 4), (3, 3)):
        found = latest_checkpoint(tmp_path, CONFIG, last_round)
        assert found is not None
        assert found.state == found.round == newest
    with pytest.raises(UserError, match=r"round-000003\.ckpt is ahead of rounds\.csv, which ends with round 2"):
        latest_checkpoint(tmp_path, CONFIG, 2)


def test_a_checkpoint_serves_a_longer_run_and_no_other_config(tmp_path: Path) -> None:
    for number in range(1, 6):
        write_checkpoint(tmp_path, Checkpoint(number, to_dict(CONFIG), None))
    assert [path.name for path in checkpoint_files(tmp_path)] == [f"round-00000{n}.ckpt" for n in (3, 4, 5)]
    assert latest_checkpoint(tmp_path, replace(CONFIG, rounds=9), 5) is not None
    with pytest.raises(UserError, match=r"another config: seed \(0 there, 1 here\)"):
        latest_checkpoint(tmp_path, replace(CONFIG, seed=1), 5)


def test_checkpoints_of_other_settings_are_refused_by_key(stopped: Path) -> None:
    config = (stopped / "config.json").read_text()
    (stopped / "config.json").write_text(config.replace('"momentum": 0.9', '"momentum": 0.8'))
    with pytest.raises(UserError, match=r"another config: learner\.momentum \(0\.9 there, 0\.8 here\)"):
        resume_experiment(stopped)


def test_a_finished_run_has_nothing_to_resume_but_can_be_made_longer(unbroken: Path, tmp_path: Path) -> None:
    assert resume_experiment(unbroken).records == []
    with pytest.raises(UserError, match="must not be below the 6 rounds"):
        resume_experiment(unbroken, rounds=5)


def test_only_one_process_writes_a_run(stopped: Path) -> None:
    with RunFolder.reopen(stopped):
        with pytest.raises(UserError, match="being written by another process"):
            resume_experiment(stopped)
        with pytest.raises(UserError, match="being written by another process"):
            run_experiment(CONFIG, stopped, overwrite=True)
    resume_experiment(stopped)


def test_resuming_what_is_not_a_run_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_a_full_disk_stops_the_run_with_its_checkpoints_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Path
) -> None:
    real = checkpoints.replace_file

    def full_after_round_3(path: Path, data: bytes) -> None:
        if "round-000004" in path.name:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(checkpoints, "replace_file", full_after_round_3)
    with pytest.raises(UserError, match="No space left on device"):
        run_experiment(CONFIG, tmp_path / "run")
    monkeypatch.undo()
    resume_experiment(tmp_path / "run")
    assert_same_run(unbroken, tmp_path / "run")


def test_a_crash_at_any_call_of_a_save_leaves_a_checkpoint_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before the n-th system call of the second save, for every n."""

    class Died(BaseException):
        pass

    def save(number: int, fail_at: int | None) -> int:
        calls = 0

        def counted(real: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == fail_at:
                    raise Died
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "open"):
                patch.setattr(checkpoints.os, name, counted(getattr(os, name)))
            with contextlib.suppress(Died):
                checkpoints.write_checkpoint(tmp_path, Checkpoint(number, {}, np.full(9, number)))
        return calls

    save(1, None)
    for fail_at in range(1, save(1, None) + 1):
        save(2, fail_at)
        newest = [from_bytes(path.read_bytes()) for path in checkpoint_files(tmp_path)][-1]
        np.testing.assert_array_equal(newest.state, np.full(9, newest.round))


def test_a_writer_that_failed_says_so_on_the_next_call(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path / "missing")
    writer.submit(Checkpoint(0, {}, None))
    with pytest.raises(UserError, match="cannot store a checkpoint: No such file"):
        writer.close()


@pytest.mark.parametrize("kills", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_kills_at_random_moments_leave_no_trace_in_the_results(kills: int, tmp_path: Path) -> None:
    rounds = 5 * kills  # more than the processes finish before they are killed
    config = replace(CONFIG, rounds=rounds, selector="power-of-choice")
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=1), tmp_path / "killed")
    with RunFolder.reopen(tmp_path / "killed", rounds=rounds):
        pass
    killed_run = Path(__file__).with_name("killed_run.py")
    subprocess.run([sys.executable, killed_run, tmp_path / "killed", str(kills)], check=True)
    resume_experiment(tmp_path / "killed")
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
