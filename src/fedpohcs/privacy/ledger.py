"""The ledger of a client: what it has answered in which run, so that no table is ever answered for twice.

It is keyed by the run's name in the signed plan, and by nothing that the server says. An entry is written before the
reply that it is about leaves. On a device the ledger is a text file beside the identity, born with it: one line per
entry, with a checksum that covers all lines before. A device without its ledger no longer knows what it has answered,
and answers nothing until it has a new identity, which takes a new list of members and a new plan.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpohcs.core.locks import FolderLock
from fedpohcs.privacy.differential import privacy_loss
from fedpohcs.privacy.errors import RefusedError, demand

MAX_SESSIONS = 10  # of a run: every new session is a chance to leave candidates out
LARGEST_LEDGER = 2**28  # bytes
Entry = dict[str, Any]


class Ledger:
    """The entries of one run. `write` stores an entry; without it they live as long as this object."""

    def __init__(self, run: bytes, write: Callable[[Entry], None] = lambda entry: None) -> None:
        self.run, self._write = run.hex(), write
        self.sessions, self.latest = 0, -1  # the latest round that was asked about
        self.questions: dict[int, tuple[str, str]] = {}  # policy and cohort by round
        self.answers: dict[tuple[int, str], bytes] = {}  # by round and metric

    def open_session(self) -> None:
        """Enter one more session."""
        demand(self.sessions < MAX_SESSIONS, f"the run has had {MAX_SESSIONS} sessions; it needs a new plan")
        self._append({"session": self.sessions + 1})

    def ask(self, round_number: int, policy: bytes, cohort: bytes = b"") -> None:
        """Enter the question of a round. The rounds must rise, and a question that comes again must be the same.

        A question about single numbers has no cohort; the cohort of a table may follow.
        """
        known = self.questions.get(round_number)
        if known is None:
            demand(round_number > self.latest, "a later round was answered before")
        else:
            demand(known[0] == policy.hex(), "this round was asked about another policy")
            if cohort.hex() in ("", known[1]):
                return
            demand(not known[1], "this round was asked with another cohort")
        self._append({"round": round_number, "policy": policy.hex(), "cohort": cohort.hex()})

    def answer(self, round_number: int, metric: str, make: Callable[[], bytes]) -> bytes:
        """The answer of a round, made once and then repeated: noise that was drawn twice would average out."""
        if (round_number, metric) not in self.answers:
            self._append({"answered": round_number, "metric": metric, "value": make().hex()})
        return self.answers[round_number, metric]

    def can_spend(self, epsilon: float | None, limit: float | None, round_number: int, metric: str) -> bool:
        """Whether one more answer keeps the privacy loss within its limit. An answer that is repeated costs nothing."""
        if epsilon is None or limit is None or (round_number, metric) in self.answers:
            return True
        return privacy_loss(epsilon, len(self.answers) + 1) <= limit

    def replay(self, entry: Entry) -> None:
        """Take an entry that was written before."""
        if "session" in entry:
            self.sessions = entry["session"]
        elif "round" in entry:
            self.latest = entry["round"]
            self.questions[self.latest] = (entry["policy"], entry["cohort"])
        else:
            self.answers[entry["answered"], entry["metric"]] = bytes.fromhex(entry["value"])

    def _append(self, entry: Entry) -> None:
        self._write({"run": self.run, **entry})
        self.replay(entry)


@contextmanager
def opened_ledger(path: Path, run: bytes) -> Iterator[Ledger]:
    """The ledger in a file, for this process alone; entries are on the disk when they are written."""
    try:
        file = path.open("r+b", buffering=0)
    except OSError as error:
        reason = f"cannot be opened ({error.strerror}); if it is lost, a new identity is needed"
        raise RefusedError(f"the ledger {path} {reason}") from error
    with file, FolderLock(path.parent, wait=True):
        descriptor = file.fileno()
        data = file.read(LARGEST_LEDGER)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):  # a line that a crash cut off: its reply never left
            os.ftruncate(descriptor, len(whole))
            os.lseek(descriptor, 0, os.SEEK_END)
        chain = b""

        def write(entry: Entry) -> None:
            nonlocal chain
            chain, line = _line(chain, json.dumps(entry).encode())
            os.write(descriptor, line)
            os.fsync(descriptor)

        ledger = Ledger(run, write)
        for line in whole.splitlines():
            text, _, _ = line.rpartition(b" ")
            chain, expected = _line(chain, text)
            demand(expected == line + b"\n", f"the ledger {path} is damaged; a new identity is needed")
            if (entry := json.loads(text))["run"] == ledger.run:
                ledger.replay(entry)
        yield ledger


def _line(chain: bytes, text: bytes) -> tuple[bytes, bytes]:
    """The checksum of an entry and all before it, and its line."""
    chain = hashlib.sha256(chain + text).digest()[:16]
    return chain, text + b" " + chain.hex().encode() + b"\n"
