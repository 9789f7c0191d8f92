"""Ledgers: what a device remembers of its answers, through crashes and damage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.ledger import MAX_SESSIONS, opened_ledger

RUN, OTHER = b"r" * 32, b"o" * 32
HARNESS = Path(__file__).with_name("kills.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "ledger").touch(0o600)
    return tmp_path / "ledger"


def test_entries_are_there_when_the_file_is_opened_again(path: Path) -> None:
    with opened_ledger(path, RUN) as ledger:
        ledger.open_session()
        ledger.ask(3, b"policy", b"cohort")
        assert ledger.answer(3, "score", lambda: b"\5") == b"\5"
    with opened_ledger(path, RUN) as ledger:
        assert ledger.sessions == 1
        ledger.ask(3, b"policy", b"cohort")
        assert ledger.answer(3, "score", lambda: b"\6") == b"\5"
        for question in ((3, b"other", b"cohort"), (3, b"policy", b"other"), (2, b"policy", b"cohort")):
            with pytest.raises(RefusedError):
                ledger.ask(*question)
    with opened_ledger(path, OTHER) as ledger:  # of another run, with the same identity
        assert ledger.sessions == 0 and not ledger.questions
        ledger.ask(2, b"policy", b"cohort")


def test_sessions_are_counted_for_the_run_and_not_for_the_process(path: Path) -> None:
    for _ in range(MAX_SESSIONS):
        with opened_ledger(path, RUN) as ledger:
            ledger.open_session()
    with opened_ledger(path, RUN) as ledger, pytest.raises(RefusedError, match="needs a new plan"):
        ledger.open_session()


def test_without_its_ledger_a_device_refuses(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="a new identity is needed"), opened_ledger(tmp_path / "ledger", RUN):
        pass
    assert not (tmp_path / "ledger").exists()


def test_a_line_that_was_cut_off_is_dropped_and_any_other_damage_refused(path: Path) -> None:
    with opened_ledger(path, RUN) as ledger:
        ledger.ask(1, b"policy", b"cohort")
        ledger.ask(2, b"policy", b"cohort")
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first, first + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with opened_ledger(path, RUN) as ledger:
            assert list(ledger.questions) == [1]
            ledger.ask(2, b"other", b"cohort")
        with opened_ledger(path, RUN) as ledger:
            assert list(ledger.questions) == [1, 2]
    for damaged in (whole[first:], whole.replace(b'"round": 1', b'"round": 0'), b"\n" + whole, whole[:-2] + b"x\n"):
        path.write_bytes(damaged)
        with pytest.raises(RefusedError, match="is damaged"), opened_ledger(path, RUN):
            pass


@pytest.mark.parametrize("kills", [16, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_between_any_two_writes_never_let_a_second_answer_out(kills: int, tmp_path: Path) -> None:
    """A node is killed after each system call that writes, in turn, and then asked another question about its table."""
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(tmp_path), str(kills)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == kills and found["second answers"] == 0
    assert found["replies"] > 0 and found["places"] >= 8  # it was killed at many places, before and after replies
