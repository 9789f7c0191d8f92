"""The server in private selection. It leads sessions and selections, and holds no key.

It uses an `Exchange`, which delivers messages and returns the replies that arrived.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.privacy import masking
from fedpohcs.privacy.differential import score_of_level
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import Cohort
from fedpohcs.privacy.messages import Kind, Message, expect, pack_rows, unpack, unpack_rows
from fedpohcs.privacy.terms import (
    ANNOUNCED,
    MAX_ATTEMPTS,
    SEALED_KEY,
    Invitation,
    Parameters,
    check_announcement,
    session_name,
)

Exchange = Callable[[dict[int, bytes]], dict[int, bytes]]


class Outcome(NamedTuple):
    """The result of a private selection."""

    scores: dict[int, float]  # Delta_n / ||S|| of the clients that replied
    attempts: int
    problem: str = ""  # why there are no scores


class Gathering:
    """The server's side of one attempt: collects and adds uploads, then collects scores, each client's only once."""

    def __init__(self, parameters: Parameters, invitation: Invitation, context: bytes, public: bytes = b"") -> None:
        self._parameters, self._invitation, self._tag, self._public = parameters, invitation, context[:8], public
        self.uploads: dict[int, bytes] = {}
        self.scores: dict[int, float] = {}

    def invitation(self, client: int) -> bytes:
        attempt = self._invitation.attempt
        return Message(Kind.INVITATION, client, attempt, bytes(8), self._invitation.body()).to_bytes()

    def take_upload(self, client: int, data: bytes) -> None:
        """Add an upload; refuse one of another client or attempt."""
        demand(client in self._invitation.cohort, f"client {client} is not in the cohort")
        demand(client not in self.uploads, f"client {client} has sent its upload already")
        payload = expect(data, Kind.UPLOAD, client, self._tag, self._invitation.attempt)
        if self._parameters.privacy == "he":
            from fedpohcs.privacy.homomorphic import check_upload

            check_upload(payload, self._parameters.num_slots, self._public)
        else:
            wanted = masking.payload_bytes(self._parameters.num_slots)
            demand(len(payload) == wanted, f"the upload of client {client} has the wrong length")
        self.uploads[client] = payload

    @property
    def survivors(self) -> Cohort:
        return tuple(sorted(self.uploads))

    def total(self) -> bytes:
        """The sum that only members can read."""
        demand(self.survivors == self._invitation.cohort, "uploads are missing")
        uploads = [self.uploads[client] for client in self._invitation.cohort]
        if self._parameters.privacy == "he":
            from fedpohcs.privacy.homomorphic import add_encrypted

            return add_encrypted(uploads, self._public)
        return masking.add_uploads(uploads, self._parameters.num_slots)

    def total_message(self, client: int, total: bytes) -> bytes:
        return Message(Kind.TOTAL, client, self._invitation.attempt, self._tag, total).to_bytes()

    def take_score(self, client: int, data: bytes) -> None:
        demand(client in self.uploads and client not in self.scores, f"no score of client {client} is due")
        body = expect(data, Kind.SCORE, client, self._tag, self._invitation.attempt)
        self.scores[client] = read_score(body, self._parameters.config)


def read_score(body: bytes, config: ProtectionConfig) -> float:
    """The score in the body of a message."""
    (level,) = unpack("i", body)
    return score_of_level(level, config)


def read_scalar(data: bytes, client: int, config: ProtectionConfig) -> float:
    """The number that `PrivateClient.scalar` sent."""
    body = expect(data, Kind.SCORE, client)
    if config.scalar_limit is not None:
        return read_score(body, config) * config.scalar_limit
    (value,) = unpack("f", body)
    demand(math.isfinite(value), "the number is not finite")
    return value


class PrivateServer:
    """Leads sessions and selections. It holds no key."""

    def __init__(self, parameters: Parameters, members: Mapping[int, bytes], exchange: Exchange) -> None:
        self.parameters, self._members, self._exchange = parameters, members, exchange
        self.ready: frozenset[int] = frozenset()
        self._session, self._public = b"", b""
        self.refusals: list[str] = []  # of the latest selection or session, for the log

    def open_session(self, clients: Iterable[int]) -> None:
        """Make keys for all clients that reply. Needed at the start, and when a client joins or has lost its keys."""
        self.refusals, wanted, self.ready = [], set(clients), frozenset()
        while len(wanted) >= self.parameters.config.min_cohort:
            rows = self._announcements(wanted)
            if len(rows) < self.parameters.config.min_cohort:
                break
            roster = pack_rows(ANNOUNCED, rows)
            self._session = session_name(self.parameters, roster)
            members = [client for client, _, _ in rows]
            joined = self._ask(Kind.ROSTER, dict.fromkeys(members, roster))
            leader = members[0]
            if leader in joined and (keys := self._sealed_keys(leader, joined.pop(leader))) is not None:
                asked = [client for client in members if client in keys and self._is_ready(client, joined)]
                answers = self._ask(Kind.KEY, {client: keys[client] for client in asked})
                self.ready = frozenset([leader, *(client for client in asked if self._is_ready(client, answers))])
                return
            wanted = set(members) - {leader}  # the first member failed: the next one leads
        raise RefusedError(f"fewer than {self.parameters.config.min_cohort} clients joined")

    def select(self, round_number: int, policy: bytes, weights: Mapping[int, float]) -> Outcome:
        """Scores of the clients in `weights`, in as many attempts as are needed and allowed."""
        self.refusals = []
        survivors = self._invited(weights)
        for attempt in range(MAX_ATTEMPTS):
            if len(survivors) < self.parameters.config.min_cohort:
                return Outcome({}, attempt, f"only {len(survivors)} of {len(weights)} candidates are left")
            gathering = self._gathering(round_number, attempt, policy, weights, survivors)
            self._collect({c: gathering.invitation(c) for c in survivors}, gathering.take_upload)
            if gathering.survivors == survivors:
                total = gathering.total()
                messages = {client: gathering.total_message(client, total) for client in survivors}
                self._collect(messages, gathering.take_score)
                problem = "" if gathering.scores else "every candidate refused the total"
                return Outcome(gathering.scores, attempt + 1, problem)
            survivors = gathering.survivors
        return Outcome({}, MAX_ATTEMPTS, f"candidates were lost in each of {MAX_ATTEMPTS} attempts")

    def first_invitations(self, round_number: int, policy: bytes, weights: Mapping[int, float]) -> dict[int, bytes]:
        """The first messages of `select`, byte by byte, so that they can be sent with an earlier message."""
        invited = self._invited(weights)
        if len(invited) < self.parameters.config.min_cohort:
            return {}
        gathering = self._gathering(round_number, 0, policy, weights, invited)
        return {client: gathering.invitation(client) for client in invited}

    def _invited(self, weights: Mapping[int, float]) -> Cohort:
        return tuple(client for client in sorted(weights) if client in self.ready)

    def _gathering(
        self, round_number: int, attempt: int, policy: bytes, weights: Mapping[int, float], cohort: Cohort
    ) -> Gathering:
        invitation = Invitation(round_number, attempt, tuple((client, float(weights[client])) for client in cohort))
        return Gathering(self.parameters, invitation, invitation.context(self._session, policy), self._public)

    def _collect(self, messages: dict[int, bytes], take: Callable[[int, bytes], None]) -> None:
        """Send the messages and process the replies; a refused reply counts as not sent."""
        for client, reply in self._exchange(messages).items():
            try:
                take(client, reply)
            except RefusedError as refusal:
                self.refusals.append(str(refusal))

    def _ask(self, kind: Kind, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        return self._exchange({c: Message(kind, c, 0, bytes(8), body).to_bytes() for c, body in bodies.items()})

    def _announcements(self, clients: Iterable[int]) -> list[tuple[int, bytes, bytes]]:
        rows = []
        replies = self._ask(Kind.HELLO, dict.fromkeys(clients, self.parameters.digest))
        for client, reply in sorted(replies.items()):
            try:
                key, signature = unpack("32s64s", expect(reply, Kind.ANNOUNCEMENT, client))
                check_announcement(self.parameters, self._members, client, key, signature)
                rows.append((client, key, signature))
            except RefusedError as refusal:
                self.refusals.append(str(refusal))
        return rows

    def _sealed_keys(self, leader: int, reply: bytes) -> dict[int, bytes] | None:
        """The sealed keys that the first member made for the others and the server; None if they do not parse."""
        try:
            rows, rest = unpack_rows(SEALED_KEY, expect(reply, Kind.SEALED, leader))
            size = int.from_bytes(rest[:4], "little")
            demand(len(rest) >= 4 + size, "the key of the server is cut off")
        except RefusedError as refusal:
            self.refusals.append(str(refusal))
            return None
        self._public, locked = rest[4 : 4 + size], rest[4 + size :]
        return {client: nonce + sealed + locked for client, nonce, sealed in rows}

    def _is_ready(self, client: int, replies: Mapping[int, bytes]) -> bool:
        try:
            return expect(replies.get(client, b""), Kind.READY, client) == b""
        except RefusedError:
            return False
