"""What a machine does to a run: full disks, limits, lost files, readers that leave, file systems without locks."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import MakeRun, made_up_records
from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import load_run

SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=2)
CONFIG = replace(preset("tabular", selector="power-of-choice"), rounds=5, federation=SMALL)


@contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    """A smaller limit of this process, for a while."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


class AtRound:
    """Does something once a round is stored."""

    def __init__(self, number: int, act) -> None:  # type: ignore[no-untyped-def]
        self.number, self.act = number, act

    def on_start(self, config: ExperimentConfig) -> None: ...

    def on_finish(self) -> None: ...

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.number:
            self.act()


def test_a_disk_that_takes_no_more_bytes_stops_the_run_and_resume_goes_on(tmp_path: Path) -> None:
    """The system itself refuses to make files longer, in the middle of a run."""
    run_experiment(CONFIG, tmp_path / "whole")
    table = tmp_path / "run" / "clients.csv"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (table.stat().st_size + 10, before[1]))

    try:
        with pytest.raises(
            UserError, match=r"(clients\.csv cannot be written \(\d+ bytes\)|checkpoint): File too large"
        ):
            run_experiment(CONFIG, tmp_path / "run", observers=[AtRound(3, fill)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    resume_experiment(tmp_path / "run")
    for name in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_report_for_which_there_is_no_space_is_refused_in_one_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(make_run(rounds=12)), "-o", "/dev/full"]) == 2
    assert capsys.readouterr().err == "fedpohcs: output (='/dev/full') cannot be written: No space left on device.\n"


def test_too_many_open_files_are_named_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    record = next(made_up_records(CONFIG))
    with limited(resource.RLIMIT_NOFILE, len(os.listdir("/dev/fd")) + 1):
        hoard = []
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:
                    hoard.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(UserError, match=r"clients\.csv cannot be written .*: Too many open files"):
                folder.append(record)
        finally:
            for descriptor in hoard:
                os.close(descriptor)
    folder.append(record)


def test_a_table_that_vanishes_while_a_checkpoint_is_written_does_not_end_the_run(tmp_path: Path) -> None:
    """A link to nothing is in the list of tables and cannot be opened, as a file that vanishes in between."""
    link = tmp_path / "run" / "vanished.csv"
    run_experiment(CONFIG, tmp_path / "run", observers=[AtRound(1, lambda: link.symlink_to(tmp_path / "nothing"))])
    assert (tmp_path / "run" / "checkpoints" / f"round-{CONFIG.rounds:06d}.ckpt").exists()


def test_a_table_that_vanishes_is_begun_anew_with_one_warning_and_the_run_goes_on(tmp_path: Path) -> None:
    table = tmp_path / "run" / "timings.csv"
    with pytest.warns(UserWarning, match=r"timings\.csv has vanished; a new one is begun") as warned:
        run_experiment(CONFIG, tmp_path / "run", observers=[AtRound(2, table.unlink), AtRound(4, table.unlink)])
    assert len(warned) == 1
    assert (tmp_path / "run" / "rounds.csv").read_text().count("\n") == CONFIG.rounds + 2
    assert [line.partition(",")[0] for line in table.read_text().splitlines()] == ["round", "5"]


def test_a_run_goes_on_when_nobody_reads_its_output_and_its_terminal_is_closed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "tabular", "--rounds", "30", "--selector", "fedavg", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedpohcs", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()  # the signals are set by now
    process.stdout.close()
    process.send_signal(signal.SIGHUP)
    complaint = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141  # the last line, with the path, could not be printed either
    assert complaint == ""
    assert load_run(out).complete


def test_a_file_system_without_locks_is_warned_of_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="cannot be locked .*let no other process write it"):
        folder = RunFolder.create(tmp_path / "run", CONFIG)
    folder.append(next(made_up_records(CONFIG)))
    assert len(load_run(folder.path).rounds["round"]) == 1


def test_a_file_system_without_rename_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "rename", unsupported)
    with pytest.raises(UserError, match=r"out \(=.*\) cannot be written"):
        run_experiment(CONFIG, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
