"""The node's side of private selection. Its process may end after any message, so keys and table are on disk."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.files import make_private_folder, replace_file
from fedpohcs.core.locks import FolderLock
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.privacy.client import EMPTY, Membership, PrivateClient
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.ledger import opened_ledger
from fedpohcs.runs.checkpoints import Checkpoint, DamagedError, from_bytes, to_bytes

FILE = "session.secret"
log = logging.getLogger("fedpohcs")


class MemberState(NamedTuple):
    """What a node stores between two messages. It can remove this client's masks, so only the node may read it."""

    membership: Membership  # with arrays in place of bytes
    policy: np.ndarray
    table: WeightedAdvantage


class Member:
    """Answers for one client in one run. No mask is used twice, not even for a repeated message or after a restart."""

    def __init__(self, party: PrivateClient, folder: Path, ledger: Path) -> None:
        self.party = party
        self.folder = folder
        self.ledger = ledger  # file

    def answer(self, message: bytes, policy: bytes = b"", value: WeightedAdvantage | float | None = None) -> bytes:
        """The reply to a message. An invitation comes with the policy and the table or number made under it.

        Nothing if it is refused. What it takes to go on, and never to answer the same again, is on disk before the
        reply leaves, and before a refusal shows.
        """
        with self._ready() as kept:
            table, number = EMPTY, math.nan
            if value is None and kept is not None:
                policy, table = kept.policy.tobytes(), kept.table
            elif isinstance(value, WeightedAdvantage):
                table = value
            elif value is not None:
                number = value
            self.party.prepare(policy, table, number=number)
            try:
                return self.party.answer(message)
            finally:
                self._store(policy, table)
        return b""

    def number(self, round_number: int, policy: bytes, metric: str, value: float) -> bytes:
        """A single number, rounded, where the plan releases scores; nothing if refused."""
        with self._ready():
            self.party.prepare(policy)
            return self.party.number(round_number, metric, value)
        return b""

    @contextmanager
    def _ready(self) -> Iterator[MemberState | None]:
        """The stored state, with the client in that state and its ledger at hand. A refusal within ends the block."""
        with self._alone():
            try:
                with opened_ledger(self.ledger, self.party.parameters.run) as ledger:
                    self.party.ledger = ledger
                    kept = self._load()
                    self.party.restore(None if kept is None else _from_arrays(kept.membership))
                    yield kept
            except RefusedError as reason:
                log.warning("client %d refuses a message of private selection: %s", self.party.client, reason)

    def _store(self, policy: bytes, table: WeightedAdvantage) -> None:
        membership = self.party.state()
        if membership is not None:
            stored = MemberState(_to_arrays(membership), np.frombuffer(policy, np.uint8), table)
            replace_file(self.folder / FILE, to_bytes(Checkpoint(0, {}, stored)), mode=0o600)

    def _load(self) -> MemberState | None:
        try:
            return from_bytes((self.folder / FILE).read_bytes()).state
        except FileNotFoundError:
            return None
        except DamagedError as error:  # without keys this client refuses messages until a new session
            log.warning("%s %s", self.folder / FILE, error)
            return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the state, so that a late process cannot overwrite a newer state with an older one."""
        make_private_folder(self.folder)
        with FolderLock(self.folder, wait=True):
            yield


def _to_arrays(membership: Membership) -> Membership:
    values: list[Any] = [np.frombuffer(x, np.uint8) if isinstance(x, bytes) else x for x in membership]
    return Membership(*values)


def _from_arrays(stored: Any) -> Membership:
    values: list[Any] = [x.tobytes() if isinstance(x, np.ndarray) else x for x in stored]
    return Membership(*values)
