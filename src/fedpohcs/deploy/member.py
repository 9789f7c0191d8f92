"""The node's side of private selection. Its process may end after any message, so keys and table are on disk."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.files import make_private_folder, replace_file
from fedpohcs.core.locks import FolderLock
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.privacy.client import Membership, PrivateClient
from fedpohcs.privacy.errors import RefusedError
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

    def __init__(self, party: PrivateClient, folder: Path) -> None:
        self.party = party
        self.folder = folder

    def answer(self, message: bytes, policy: bytes = b"", table: WeightedAdvantage | None = None) -> bytes:
        """The reply to a message. An invitation comes with the policy and the table made under it.

        Nothing if it is refused. What it takes to go on, and never to answer the same again, is on disk before the
        reply leaves.
        """
        with self._alone():
            kept = self._load()
            if kept is not None:
                self.party.restore(_from_arrays(kept.membership))
                if table is None:
                    policy, table = kept.policy.tobytes(), kept.table
            table = EMPTY if table is None else table
            self.party.prepare(policy, table)
            try:
                reply = self.party.answer(message)
            except RefusedError as reason:
                log.warning("client %d refuses a message of private selection: %s", self.party.client, reason)
                return b""
            membership = self.party.state()
            assert membership is not None  # the first accepted message makes one
            stored = MemberState(_to_arrays(membership), np.frombuffer(policy, np.uint8), table)
            replace_file(self.folder / FILE, to_bytes(Checkpoint(0, {}, stored)), mode=0o600)
        return reply

    def scalar(self, value: float, *, ticket: bool = False) -> bytes:
        """A single number, rounded, or a ticket in its place; an empty message if the number is not finite."""
        try:
            return self.party.ticket(value) if ticket else self.party.scalar(value)
        except RefusedError as reason:
            log.warning("client %d sends no number: %s", self.party.client, reason)
            return b""

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


EMPTY = WeightedAdvantage(np.empty(0, np.uint64), np.empty(0))


def _to_arrays(membership: Membership) -> Membership:
    values: list[Any] = [np.frombuffer(x, np.uint8) if isinstance(x, bytes) else x for x in membership]
    return Membership(*values)


def _from_arrays(stored: Any) -> Membership:
    values: list[Any] = [x.tobytes() if isinstance(x, np.ndarray) else x for x in stored]
    return Membership(*values)
