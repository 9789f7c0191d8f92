"""The server in private selection. It leads sessions and selections, and holds no key.

It uses an `Exchange`, which delivers messages and returns the replies that arrived.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.privacy import masking
from fedpohcs.privacy.choice import CHOSEN, Choice
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import Cohort
from fedpohcs.privacy.messages import Kind, Message, expect, pack_rows, unpack, unpack_rows
from fedpohcs.privacy.sealing import read_number, read_score
from fedpohcs.privacy.terms import (
    ANNOUNCED,
    SEALED_KEY,
    Invitation,
    Parameters,
    check_announcement,
    quorum,
    session_name,
)

Exchange = Callable[[dict[int, bytes]], dict[int, bytes]]


class Outcome(NamedTuple):
    """The result of a private selection: scores of the clients that replied, or the clients that members chose."""

    scores: Mapping[int, float] = {}  # Delta_n / ||S||
    chosen: Cohort | None = None
    weights: tuple[float, ...] = ()  # of the updates of the chosen clients
    problem: str = ""  # why there is no result
    lost: Cohort = ()  # clients by which it failed


class Gathering:
    """The server's side of one round: collects each client's replies, each only once, and combines them."""

    def __init__(self, parameters: Parameters, invitation: Invitation, context: bytes, public: bytes = b"") -> None:
        self._parameters, self._invitation, self._context = parameters, invitation, context
        self._tag, self._public = context[:8], public
        self.uploads: dict[int, bytes] = {}
        self.scores: dict[int, float] = {}
        self.levels: dict[int, dict[int, bytes]] = {}  # sealed, by sender and receiver
        self.choices: dict[int, tuple[Choice, bytes]] = {}  # with signatures

    def invitations(self) -> dict[int, bytes]:
        body = self._invitation.body()
        return {n: Message(Kind.INVITATION, n, bytes(8), body).to_bytes() for n in self._invitation.cohort}

    def take_upload(self, client: int, data: bytes) -> None:
        """Add an upload; refuse one of another client or round."""
        self._demand_due(client, self.uploads)
        payload = expect(data, Kind.UPLOAD, client, self._tag)
        if self._parameters.privacy == "he":
            from fedpohcs.privacy.homomorphic import check_upload

            check_upload(payload, self._parameters.num_slots, self._public)
        else:
            wanted = masking.payload_bytes(self._parameters.num_slots)
            demand(len(payload) == wanted, f"the upload of client {client} has the wrong length")
        self.uploads[client] = payload

    def totals(self) -> dict[int, bytes]:
        """The sum that only members can read, as a message to each of them."""
        uploads = [self.uploads[client] for client in self._invitation.cohort]
        if self._parameters.privacy == "he":
            from fedpohcs.privacy.homomorphic import add_encrypted

            total = add_encrypted(uploads, self._public)
        else:
            total = masking.add_uploads(uploads, self._parameters.num_slots)
        return {n: Message(Kind.TOTAL, n, self._tag, total).to_bytes() for n in self._invitation.cohort}

    def take_score(self, client: int, data: bytes) -> None:
        self._demand_due(client, self.scores)
        self.scores[client] = read_score(expect(data, Kind.SCORE, client, self._tag), self._parameters.config)

    def take_levels(self, client: int, data: bytes) -> None:
        """Take what a client sealed for each of the others."""
        self._demand_due(client, self.levels)
        rows, rest = unpack_rows(self._parameters.sealed_row, expect(data, Kind.LEVELS, client, self._tag))
        others = [other for other in self._invitation.cohort if other != client]
        demand(not rest and [n for n, _ in rows] == others, f"client {client} has not sealed for all others")
        self.levels[client] = dict(rows)

    def ballots(self) -> dict[int, bytes]:
        """To each member, what all others sealed for it."""
        cohort, layout = self._invitation.cohort, self._parameters.sealed_row
        bodies = {n: pack_rows(layout, ((m, self.levels[m][n]) for m in cohort if m != n)) for n in cohort}
        return {n: Message(Kind.BALLOT, n, self._tag, body).to_bytes() for n, body in bodies.items()}

    def take_choice(self, client: int, data: bytes) -> None:
        """Take the list of a member; `agreed` checks its signature."""
        self._demand_due(client, self.choices)
        rows, signature = unpack_rows(CHOSEN, expect(data, Kind.CHOICE, client, self._tag))
        choice = Choice(tuple(n for n, _ in rows), tuple(weight for _, weight in rows))
        most, sound = self._parameters.ask.num_selected, choice.clients == tuple(sorted(set(choice.clients)))
        sound &= set(choice.clients) <= set(self._invitation.cohort) and len(rows) <= most
        sound &= all(0 <= weight < math.inf for weight in choice.weights)
        demand(sound, f"the list of client {client} is no choice of {most} candidates")
        self.choices[client] = choice, signature

    def lost(self, replies: Mapping[int, object]) -> Cohort:
        """The members of the cohort without a reply."""
        return tuple(client for client in self._invitation.cohort if client not in replies)

    def agreed(self, members: Mapping[int, bytes]) -> tuple[Choice, list[str]]:
        """The list that two thirds of the cohort have signed, by their Ed25519 public keys; an empty one if none is.

        Only signatures of the list that most have sent are checked, until there are enough. With it come the refusals.
        """
        refusals, left = [], quorum(len(self._invitation.cohort))
        lists = Counter(choice for choice, _ in self.choices.values())
        ((common, times),) = lists.most_common(1) or [(Choice(), 0)]
        for client, (choice, signature) in self.choices.items() if times >= left else ():
            if choice == common and left:
                signed = _has_signed(members[client], signature, choice.signed(self._context))
                left -= signed
                refusals += [] if signed else [f"the list of client {client} is not signed by it"]
        return Choice() if left else common, refusals

    def _demand_due(self, client: int, replies: Mapping[int, object]) -> None:
        demand(client in self._invitation.cohort, f"client {client} is not in the cohort")
        demand(client not in replies, f"client {client} has replied already")


def _has_signed(identity: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, text)
    except InvalidSignature:
        return False
    return True


def read_scalar(data: bytes, client: int, config: ProtectionConfig) -> float:
    """The number that `PrivateClient.number` sent."""
    return read_number(expect(data, Kind.SCORE, client), config)


class PrivateServer:
    """Leads sessions and selections. It holds no key."""

    def __init__(self, parameters: Parameters, members: Mapping[int, bytes], exchange: Exchange) -> None:
        self.parameters, self._members, self._exchange = parameters, members, exchange
        self.roster: frozenset[int] = frozenset()  # of the session
        self.ready: frozenset[int] = frozenset()  # those of them that have all keys
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
            self.roster = frozenset(members)
            joined = self._ask(Kind.ROSTER, dict.fromkeys(members, roster))
            leader = members[0]
            if leader in joined and (keys := self._sealed_keys(leader, joined.pop(leader))) is not None:
                asked = [client for client in members if client in keys and self._is_ready(client, joined)]
                answers = self._ask(Kind.KEY, {client: keys[client] for client in asked})
                self.ready = frozenset([leader, *(client for client in asked if self._is_ready(client, answers))])
                return
            wanted = set(members) - {leader}  # the first member failed: the next one leads
        raise RefusedError(f"fewer than {self.parameters.config.min_cohort} clients joined")

    def cohort(self, round_number: int) -> Cohort:
        """The candidates of a round that are in the session."""
        return self.parameters.cohort(round_number, self.roster)

    def select(self, round_number: int, policy: bytes, cohort: Cohort) -> Outcome:
        """Choose among the cohort. A client that is lost ends it: there is one sum per round."""
        self.refusals = []
        if problem := self._too_few(cohort):
            return Outcome(problem=problem)
        gathering = self._gathering(round_number, policy, cohort)
        if self.parameters.ask.form == "table":
            self._collect(gathering.invitations(), gathering.take_upload)
            if lost := gathering.lost(gathering.uploads):
                return Outcome(problem=f"lost before the sum: {_named(lost)}", lost=lost)
            if not self.parameters.ids_only:
                self._collect(gathering.totals(), gathering.take_score)
                return Outcome(
                    gathering.scores, problem="" if gathering.scores else "every candidate refused the total"
                )
            self._collect(gathering.totals(), gathering.take_levels)
        else:
            self._collect(gathering.invitations(), gathering.take_levels)
        return self._vote(gathering, cohort)

    def _vote(self, gathering: Gathering, cohort: Cohort) -> Outcome:
        lost = gathering.lost(gathering.levels)
        if len(lost) == len(cohort):
            return Outcome(problem="every candidate refused the total")
        if lost:
            return Outcome(problem=f"lost before the choice: {_named(lost)}", lost=lost)
        self._collect(gathering.ballots(), gathering.take_choice)
        choice, refusals = gathering.agreed(self._members)
        self.refusals += refusals
        if not choice.clients:
            return Outcome(problem="too few candidates agree on a choice")
        return Outcome(chosen=choice.clients, weights=choice.weights)

    def first_invitations(self, round_number: int, policy: bytes, cohort: Cohort) -> dict[int, bytes]:
        """The first messages of `select`, byte by byte, so that they can be sent with an earlier message."""
        return {} if self._too_few(cohort) else self._gathering(round_number, policy, cohort).invitations()

    def _too_few(self, cohort: Cohort) -> str:
        least = self.parameters.least_cohort
        outside = [client for client in cohort if client not in self.ready]
        if len(cohort) < least:
            return f"only {len(cohort)} candidates of at least {least} are in the session"
        return f"without keys: {_named(outside)}" if outside else ""

    def _gathering(self, round_number: int, policy: bytes, cohort: Cohort) -> Gathering:
        invitation = Invitation(round_number, cohort)
        return Gathering(self.parameters, invitation, invitation.context(self._session, policy), self._public)

    def _collect(self, messages: dict[int, bytes], take: Callable[[int, bytes], None]) -> None:
        """Send the messages and process the replies; a refused reply counts as not sent."""
        for client, reply in self._exchange(messages).items():
            try:
                take(client, reply)
            except RefusedError as refusal:
                self.refusals.append(str(refusal))

    def _ask(self, kind: Kind, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        return self._exchange({c: Message(kind, c, bytes(8), body).to_bytes() for c, body in bodies.items()})

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


def _named(clients: Iterable[int]) -> str:
    return "client " + ", ".join(str(client) for client in clients)
