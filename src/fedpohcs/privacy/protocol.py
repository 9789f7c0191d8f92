"""The two parties of private selection. They exchange bytes; how these travel is up to the caller.

A client answers one message with one message (`PrivateClient.answer`). The server runs a session and then a selection
a round over an `Exchange`, which delivers messages and brings back the answers that came.
"""

import hashlib
import hmac
import json
import math
import os
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedpohcs.config import ExperimentConfig, ProtectionConfig
from fedpohcs.privacy import masking
from fedpohcs.privacy.differential import Uniform, protected_level, rounded, score_of_level, system_uniform
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import Cohort, derived
from fedpohcs.privacy.messages import Kind, Message, expect, pack_rows, parse, unpack, unpack_rows
from fedpohcs.privacy.sketch import FixedPoint, Integers, count_sketch, relative_metric, sketch_seed
from fedpohcs.types import Vector, WeightedAdvantage

MAX_ATTEMPTS = 3
MAX_SHARE = 0.5  # of one member in the mean: a mean of one would be its table
MAX_WEIGHT = 1e9  # sums stay finite
RESERVED_WORDS = 16  # of `num_words`: lanes, two headers and the score, so that all of an upload fits
SEALED_KEY = "I12s48s"  # for whom, nonce, ciphertext of 32 bytes and its tag
ANNOUNCED = "I32s64s"  # who, X25519 key, Ed25519 signature
INVITED = "Id"  # who, q_n
Exchange = Callable[[dict[int, bytes]], dict[int, bytes]]


class SecretSum(Protocol):
    """How a member hides its vector and reads the sum: by masks or by homomorphic encryption."""

    def hide(self, values: Integers, context: bytes, cohort: Cohort) -> bytes: ...

    def read(self, total: bytes, context: bytes, cohort: Cohort) -> Integers: ...


@dataclass(frozen=True)
class Parameters:
    """What all parties must have set alike; it is part of every context."""

    privacy: str  # "masked" or "he"
    run: bytes  # 32 bytes that name the run
    config: ProtectionConfig

    @property
    def num_slots(self) -> int:
        return self.config.num_words - RESERVED_WORDS

    @property
    def fixed_point(self) -> FixedPoint:
        if self.privacy == "he":
            from fedpohcs.privacy import homomorphic

            return FixedPoint(self.config.value_limit, homomorphic.LARGEST)
        return FixedPoint(self.config.value_limit, masking.LARGEST)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        settings = json.dumps([self.privacy, asdict(self.config)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(self.run + settings.encode()).digest()


def run_parameters(config: ExperimentConfig) -> Parameters:
    """Of a run: whoever was given the same config has the same."""
    run = hashlib.sha256(f"{config.world}/{config.level}/{config.seed}".encode()).digest()
    return Parameters(config.privacy, run, config.protection)


class Invitation(NamedTuple):
    """Who adds up what in one attempt of one round."""

    round: int
    attempt: int
    weights: tuple[tuple[int, float], ...]  # (id, q_n), ascending ids

    @property
    def cohort(self) -> Cohort:
        return tuple(client for client, _ in self.weights)

    def share(self, client: int) -> float:
        """q_n of the client, scaled so that those of the cohort sum to 1."""
        return dict(self.weights)[client] / math.fsum(weight for _, weight in self.weights)

    @property
    def largest_share(self) -> float:
        """Of any member of the cohort."""
        heaviest, _ = max(self.weights, key=lambda row: row[1])
        return self.share(heaviest)

    def body(self) -> bytes:
        return self.round.to_bytes(4, "little") + pack_rows(INVITED, self.weights)

    def context(self, session: bytes, policy: bytes) -> bytes:
        """The name of this attempt: every mask is made for one context and no other."""
        return hashlib.sha256(session + policy + self.attempt.to_bytes(2, "little") + self.body()).digest()


def read_invitation(body: bytes, attempt: int) -> Invitation:
    """The invitation in the body of a message."""
    demand(len(body) >= 4, "the invitation is too short")
    weights, rest = unpack_rows(INVITED, body[4:])
    ids = [client for client, _ in weights]
    demand(not rest and ids == sorted(set(ids)), "the invitation must list different clients in ascending order")
    sound = all(0 < weight <= MAX_WEIGHT for _, weight in weights)
    demand(sound, f"the invitation has a weight that is not above 0 and at most {MAX_WEIGHT:g}")
    return Invitation(int.from_bytes(body[:4], "little"), attempt, tuple(weights))


def session_name(parameters: Parameters, roster: bytes) -> bytes:
    """Fresh keys in the roster make every session a new one."""
    return hashlib.sha256(b"fedpohcs session" + parameters.digest + roster).digest()


def _announced(parameters: Parameters, client: int, key: bytes) -> bytes:
    """What a member signs."""
    return b"fedpohcs announcement" + parameters.digest + client.to_bytes(4, "little") + key


def check_announcement(
    parameters: Parameters, members: Mapping[int, bytes], client: int, key: bytes, signature: bytes
) -> None:
    """Refuse a key that no member signed for itself, this run and these parameters."""
    demand(client in members, f"client {client} is not a member")
    try:
        Ed25519PublicKey.from_public_bytes(members[client]).verify(signature, _announced(parameters, client, key))
    except InvalidSignature as error:
        raise RefusedError(f"the key of client {client} is not signed by it") from error


class Membership(NamedTuple):
    """What a client keeps of a session. Whoever has the secret and the group key can remove this client's masks."""

    secret: bytes
    roster: bytes = b""
    group_key: bytes = b""
    extra: bytes = b""  # the secret key of the homomorphic variant
    last: tuple[int, int] = (-1, -1)  # round and attempt of the latest upload
    waiting: bytes = b""  # invitation of that upload, until its total was answered


class PrivateClient:
    """A member of the federation. It gives its table to nobody."""

    def __init__(
        self, client: int, parameters: Parameters, identity: Ed25519PrivateKey, members: Mapping[int, bytes]
    ) -> None:
        """Nothing is sent before the server says hello.

        Args:
            client: id of this client.
            parameters: as agreed by all.
            identity: the key that tells others who this is.
            members: Ed25519 public keys of all who may ever take part; not from the server.
        """
        self.client, self.parameters = client, parameters
        self._identity, self._members = identity, members
        self._membership: Membership | None = None
        self._pair_keys: dict[int, bytes] = {}
        self._peers: dict[int, bytes] = {}
        self._sum: SecretSum | None = None
        self._session = b""
        self._table: WeightedAdvantage | None = None
        self._policy, self._uniform = b"", system_uniform

    def prepare(self, policy: bytes, table: WeightedAdvantage, uniform: Uniform = system_uniform) -> None:
        """What the next round is about: SHA-256 of the policy received, and the table made under it."""
        self._policy, self._table, self._uniform = policy, table, uniform

    def answer(self, data: bytes) -> bytes:
        """The reply to a message of the server. Raises `RefusedError`; then nothing must be sent."""
        message = parse(data)
        demand(message.client == self.client, f"the message is for client {message.client}")
        answers = {
            Kind.HELLO: self._announce,
            Kind.ROSTER: self._join,
            Kind.KEY: self._take_group_key,
            Kind.INVITATION: self._upload,
            Kind.TOTAL: self._score,
        }
        demand(message.kind in answers, f"clients do not answer {message.kind.name}")
        return answers[message.kind](message)

    def state(self) -> Membership | None:
        """To be stored, safe from others and before the reply leaves, where processes end between messages."""
        return self._membership

    def restore(self, membership: Membership | None) -> None:
        """Go on with a stored session."""
        self._forget()
        self._membership = membership
        if membership is not None and membership.roster:
            self._enter(membership.roster)

    def _forget(self) -> None:
        self._pair_keys, self._peers, self._sum, self._session = {}, {}, None, b""
        self.__dict__.pop("_secret", None)

    @cached_property
    def _secret(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self._member().secret)

    def _enter(self, roster: bytes) -> None:
        self._peers, self._session = self._verified(roster), session_name(self.parameters, roster)

    def _announce(self, message: Message) -> bytes:
        """A key for this session alone: a client that lost its state cannot repeat a mask."""
        demand(message.body == self.parameters.digest, "the server has other parameters")
        self._forget()
        self._membership = Membership(os.urandom(32))
        key = self._secret.public_key().public_bytes_raw()
        signature = self._identity.sign(_announced(self.parameters, self.client, key))
        return self._reply(Kind.ANNOUNCEMENT, key + signature)

    def _join(self, message: Message) -> bytes:
        """Checks who is there. The first of them makes the group key and seals it for the others."""
        membership = self._member()
        demand(not membership.roster, "there is a roster already")
        self._enter(message.body)
        own = self._secret.public_key().public_bytes_raw()
        demand(self._peers.get(self.client) == own, "the roster lacks this client's key")
        self._membership = membership._replace(roster=message.body)
        if self.client != min(self._peers):
            return self._reply(Kind.READY)
        group_key = os.urandom(32)
        public, extra = _new_extra(self.parameters)
        self._membership = self._membership._replace(group_key=group_key, extra=extra)
        sealed = [self._sealed(other, group_key) for other in sorted(self._peers) if other != self.client]
        body = pack_rows(SEALED_KEY, sealed) + len(public).to_bytes(4, "little") + public
        return self._reply(Kind.SEALED, body + _locked(group_key, extra, self._session))

    def _verified(self, roster: bytes) -> dict[int, bytes]:
        rows, rest = unpack_rows(ANNOUNCED, roster)
        ids = [client for client, _, _ in rows]
        demand(not rest and ids == sorted(set(ids)), "the roster must list different clients in ascending order")
        demand(len(ids) >= self.parameters.config.min_cohort, f"the roster has only {len(ids)} members")
        for client, key, signature in rows:
            check_announcement(self.parameters, self._members, client, key, signature)
        return {client: key for client, key, _ in rows}

    def _sealed(self, other: int, group_key: bytes) -> tuple[int, bytes, bytes]:
        nonce = os.urandom(12)
        return other, nonce, self._seal(other).encrypt(nonce, group_key, self._session)

    def _seal(self, other: int) -> AESGCM:
        return AESGCM(derived(self._pair_key(other), b"group key", self._session))

    def _take_group_key(self, message: Message) -> bytes:
        membership = self._member()
        demand(bool(membership.roster) and not membership.group_key, "no group key is due")
        leader = min(self._peers)
        demand(len(message.body) >= 60, "the group key is too short")
        nonce, sealed, locked = message.body[:12], message.body[12:60], message.body[60:]
        try:
            group_key = self._seal(leader).decrypt(nonce, sealed, self._session)
            extra = _unlocked(group_key, locked, self._session)
        except InvalidTag as error:
            raise RefusedError("the group key is not from the first member") from error
        self._membership = membership._replace(group_key=group_key, extra=extra)
        return self._reply(Kind.READY)

    def _upload(self, message: Message) -> bytes:
        """The hidden sketch. One for each attempt, whatever happens to it."""
        membership, invitation = self._member(), read_invitation(message.body, message.attempt)
        demand(bool(membership.group_key), "there is no group key yet")
        self._check(invitation, membership.last)
        context = invitation.context(self._session, self._policy)
        sketch = self._sketch(invitation.round)
        if np.abs(sketch).max() > self.parameters.config.value_limit:
            warnings.warn("a sketch exceeds protection.value_limit and is clipped; raise the limit", stacklevel=2)
        values = self.parameters.fixed_point.encode(sketch, invitation.share(self.client))
        self._membership = membership._replace(last=(invitation.round, invitation.attempt), waiting=message.to_bytes())
        payload = self._secret_sum().hide(values, context, invitation.cohort)
        return self._reply(Kind.UPLOAD, payload, context, invitation.attempt)

    def _check(self, invitation: Invitation, last: tuple[int, int]) -> None:
        least, cohort = self.parameters.config.min_cohort, invitation.cohort
        demand((invitation.round, invitation.attempt) > last, "this round and attempt were answered before")
        demand(invitation.attempt < MAX_ATTEMPTS, f"a round has at most {MAX_ATTEMPTS} attempts")
        demand(len(cohort) >= least, f"the cohort has only {len(cohort)} members of at least {least}")
        demand(invitation.largest_share <= MAX_SHARE, "one member counts for more than half")
        demand(self.client in cohort, "this client is not in the cohort")
        demand(set(cohort) <= self._peers.keys(), "the cohort has a client that is not in the roster")

    def _score(self, message: Message) -> bytes:
        """Delta_n of this client: it knows its own table, and the total tells it the mean. Paper: Eq. (DeltaN)."""
        membership = self._member()
        demand(bool(membership.waiting), "no total is due")
        asked = parse(membership.waiting)
        invitation = read_invitation(asked.body, asked.attempt)
        context = invitation.context(self._session, self._policy)
        demand((message.attempt, message.tag) == (invitation.attempt, context[:8]), "the total is of another context")
        total = self._secret_sum().read(message.body, context, invitation.cohort)
        self._membership = membership._replace(waiting=b"")
        mean = self.parameters.fixed_point.decode(total)
        score = relative_metric(mean, self._sketch(invitation.round))
        return self._reply(Kind.SCORE, self._level(score), context, invitation.attempt)

    def scalar(self, value: float) -> bytes:
        """A measurement that is one number, such as a mean return, rounded; with a limit protected like a score."""
        config = self.parameters.config
        if config.scalar_limit is None:
            return self._reply(Kind.SCORE, struct.pack("<f", rounded(value, config)))
        return self._reply(Kind.SCORE, self._level(value / config.scalar_limit))

    def _level(self, score: float) -> bytes:
        return protected_level(score, self.parameters.config, self._uniform).to_bytes(4, "little", signed=True)

    def _sketch(self, round_number: int) -> Vector:
        if self._table is None:
            raise RefusedError("there is no table yet")
        parameters = self.parameters
        return count_sketch(self._table, sketch_seed(parameters.run, round_number), parameters.num_slots)

    def _member(self) -> Membership:
        if self._membership is None:
            raise RefusedError("there is no session")
        return self._membership

    def _pair_key(self, other: int) -> bytes:
        """Shared with one other member; made when first needed."""
        if other not in self._pair_keys:
            try:
                agreed = self._secret.exchange(X25519PublicKey.from_public_bytes(self._peers[other]))
            except ValueError as error:  # a point of low order
                raise RefusedError(f"the key of client {other} is void") from error
            self._pair_keys[other] = hmac.digest(b"fedpohcs pair" + self._session, agreed, "sha256")
        return self._pair_keys[other]

    def _secret_sum(self) -> SecretSum:
        if self._sum is None:
            membership, num_slots = self._member(), self.parameters.num_slots
            if self.parameters.privacy == "he":
                from fedpohcs.privacy.homomorphic import EncryptedSum

                self._sum = EncryptedSum(self.client, num_slots, membership.group_key, membership.extra)
            else:
                self._sum = masking.MaskedSum(self.client, num_slots, membership.group_key, self._pair_key)
        return self._sum

    def _reply(self, kind: Kind, body: bytes = b"", context: bytes = bytes(8), attempt: int = 0) -> bytes:
        return Message(kind, self.client, attempt, context[:8], body).to_bytes()


def _new_extra(parameters: Parameters) -> tuple[bytes, bytes]:
    """What the homomorphic variant needs beside a group key: for the server, and for the members."""
    if parameters.privacy != "he":
        return b"", b""
    from fedpohcs.privacy.homomorphic import new_keys

    return new_keys()


def _locked(group_key: bytes, extra: bytes, session: bytes) -> bytes:
    """`extra` for the members alone. The key is used once, so the nonce may be fixed."""
    return AESGCM(derived(group_key, b"extra", session)).encrypt(bytes(12), extra, None) if extra else b""


def _unlocked(group_key: bytes, locked: bytes, session: bytes) -> bytes:
    return AESGCM(derived(group_key, b"extra", session)).decrypt(bytes(12), locked, None) if locked else b""


class Outcome(NamedTuple):
    """What a private selection gave."""

    scores: dict[int, float]  # Delta_n / ||S|| of those that answered
    attempts: int
    problem: str = ""  # why there are no scores


class Gathering:
    """The server's side of one attempt: collects uploads, adds them up, collects scores. Counts nothing twice."""

    def __init__(self, parameters: Parameters, invitation: Invitation, context: bytes, public: bytes = b"") -> None:
        self._parameters, self._invitation, self._tag, self._public = parameters, invitation, context[:8], public
        self.uploads: dict[int, bytes] = {}
        self.scores: dict[int, float] = {}

    def invitation(self, client: int) -> bytes:
        attempt = self._invitation.attempt
        return Message(Kind.INVITATION, client, attempt, bytes(8), self._invitation.body()).to_bytes()

    def take_upload(self, client: int, data: bytes) -> None:
        """Refuses what is not the upload of that client for this attempt."""
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
    """What `PrivateClient.scalar` sent."""
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
        """Keys for everyone who answers. Needed at the start, and again whenever somebody joins or lost its keys."""
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
        """Scores of the clients in `weights`, in as many attempts as it takes and is allowed."""
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
        """What `select` will send first, byte by byte, for whoever takes it along with an earlier message."""
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
        """Send each its message and take what comes back; what is refused counts as not sent."""
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
        """What the first member made for each other one, and for the server; None if it does not parse."""
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
