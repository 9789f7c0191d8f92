"""A client in private selection. It answers one message with one message; how these travel is up to the caller.

It keeps to its plan whatever the server asks: see `terms.check_invitation` and `ledger.Ledger`.
"""

import hashlib
import hmac
import math
import os
import struct
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedpohcs.core.types import Vector, WeightedAdvantage
from fedpohcs.privacy import masking
from fedpohcs.privacy.choice import LARGEST, choose
from fedpohcs.privacy.differential import Uniform, protected_level, rounded, system_uniform
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.ledger import Ledger
from fedpohcs.privacy.masking import Cohort, RoundKeys, derived, round_keys
from fedpohcs.privacy.messages import Kind, Message, pack_rows, parse, unpack_rows
from fedpohcs.privacy.sealing import PRESENT, seal, unseal
from fedpohcs.privacy.sketch import Integers, count_sketch, relative_metric, sketch_seed
from fedpohcs.privacy.terms import (
    ANNOUNCED,
    SEALED_KEY,
    Invitation,
    Parameters,
    announcement,
    check_announcement,
    check_invitation,
    read_invitation,
    session_name,
)

EMPTY = WeightedAdvantage(np.empty(0, np.uint64), np.empty(0))
SCORE = ""  # the name under which the ledger has what was computed from a table
RANKED = "ranked"  # the same for a single number by which members choose


class SecretSum(Protocol):
    """How a member hides its vector and reads the sum: by masks or by homomorphic encryption."""

    def hide(self, values: Integers, context: bytes, cohort: Cohort) -> bytes: ...

    def read(self, total: bytes, context: bytes, cohort: Cohort) -> Integers: ...


class Membership(NamedTuple):
    """What a client keeps of a session. The secret and the group key together can remove this client's masks."""

    secret: bytes
    roster: bytes = b""
    group_key: bytes = b""
    extra: bytes = b""  # the secret key of the homomorphic variant
    last: int = -1  # the latest round in which this client took part
    waiting: bytes = b""  # body of the invitation whose total is due
    voting: bytes = b""  # body of the invitation whose ballot is due
    value: bytes = b""  # of this client, for that ballot


class PrivateClient:
    """A member of the federation. It never sends its table."""

    def __init__(
        self,
        client: int,
        parameters: Parameters,
        identity: Ed25519PrivateKey,
        members: Mapping[int, bytes],
        ledger: Ledger | None = None,
    ) -> None:
        """Make a client without a session. It sends nothing before the server's first message.

        Args:
            client: id of this client.
            parameters: of the plan.
            identity: the private key that proves the identity of this client.
            members: Ed25519 public keys of all clients that may take part; not from the server.
            ledger: what it has answered in this run. None: nothing yet, and nothing is stored.
        """
        self.client, self.parameters = client, parameters
        self.ledger = ledger or Ledger(parameters.run)
        self._identity, self._members = identity, members
        self._membership: Membership | None = None
        self._pair_keys: dict[int, bytes] = {}
        self._peers: dict[int, tuple[bytes, bytes]] = {}  # key and signature by client
        self._round_keys: tuple[bytes, dict[int, RoundKeys]] = b"", {}  # of the latest context, by client
        self._invitation: tuple[tuple[bytes, ...], tuple[Invitation, bytes]] | None = None  # the latest, with context
        self._sum: SecretSum | None = None
        self._session = b""
        self._table, self._number = EMPTY, math.nan
        self._sketched: tuple[int, Vector] | None = None  # round and sketch
        self._policy, self._uniform = b"", system_uniform

    def prepare(
        self,
        policy: bytes,
        table: WeightedAdvantage = EMPTY,
        uniform: Uniform | None = None,
        number: float = math.nan,
    ) -> None:
        """Set the input of the next round: SHA-256 of the received policy, and the table or number made under it.

        Noise comes from `uniform`; None: from the operating system.
        """
        self._policy, self._table, self._number = policy, table, number
        self._sketched = None
        self._uniform = uniform or system_uniform

    def answer(self, data: bytes) -> bytes:
        """The reply to a message of the server. Raises `RefusedError`; then nothing must be sent.

        A refused total or ballot ends the round, so `state` must be stored after a refusal as well.
        """
        message = parse(data)
        demand(message.client == self.client, f"the message is for client {message.client}")
        answers = {
            Kind.HELLO: self._announce,
            Kind.ROSTER: self._join,
            Kind.KEY: self._take_group_key,
            Kind.INVITATION: self._take_part,
            Kind.TOTAL: self._score,
            Kind.BALLOT: self._choose,
        }
        demand(message.kind in answers, f"clients do not answer {message.kind.name}")
        return answers[message.kind](message)

    def state(self) -> Membership | None:
        """The state to store before the reply is sent, if processes end between messages. Keep it secret."""
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
        self._peers, self._session = self._read_roster(roster), session_name(self.parameters, roster)

    def _announce(self, message: Message) -> bytes:
        """Announce a new key for this session, so that a client that lost its state cannot repeat a mask."""
        demand(message.body == self.parameters.digest, "the server has other parameters")
        self._forget()
        self._membership = Membership(os.urandom(32))
        key = self._secret.public_key().public_bytes_raw()
        signature = self._identity.sign(announcement(self.parameters, self.client, key))
        return self._reply(Kind.ANNOUNCEMENT, key + signature)

    def _join(self, message: Message) -> bytes:
        """Take the roster. The first member makes the group key and seals it for the others.

        Keys of others are checked when they are first used: a client meets few of the others in a cohort.
        """
        membership = self._member()
        demand(not membership.roster, "there is a roster already")
        self._enter(message.body)
        own = self._secret.public_key().public_bytes_raw()
        demand(self._peers.get(self.client, (b"", b""))[0] == own, "the roster lacks this client's key")
        self.ledger.open_session()
        self._membership = membership._replace(roster=message.body)
        if self.client != min(self._peers):
            return self._reply(Kind.READY)
        group_key = os.urandom(32)
        public, extra = _new_extra(self.parameters)
        self._membership = self._membership._replace(group_key=group_key, extra=extra)
        sealed = [self._sealed(other, group_key) for other in sorted(self._peers) if other != self.client]
        body = pack_rows(SEALED_KEY, sealed) + len(public).to_bytes(4, "little") + public
        return self._reply(Kind.SEALED, body + _locked(group_key, extra, self._session))

    def _read_roster(self, roster: bytes) -> dict[int, tuple[bytes, bytes]]:
        rows, rest = unpack_rows(ANNOUNCED, roster)
        ids = [client for client, _, _ in rows]
        demand(not rest and ids == sorted(set(ids)), "the roster must list different clients in ascending order")
        demand(len(ids) >= self.parameters.config.min_cohort, f"the roster has only {len(ids)} members")
        return {client: (key, signature) for client, key, signature in rows}

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

    def _take_part(self, message: Message) -> bytes:
        """The hidden sketch, or the sealed number of this client. A session asks for each round once."""
        membership, (invitation, context) = self._member(), self._read(message.body)
        demand(bool(membership.group_key), "there is no group key yet")
        demand(invitation.round > membership.last, "this round was answered before in this session")
        check_invitation(invitation, self.parameters, self.client, self._peers)
        if self.parameters.ask.form != "table":
            demand(self.parameters.ids_only, "single numbers are not sealed in this run")
            self._enter_question(message.body)
            self._membership = membership._replace(last=invitation.round)
            return self._sealed_levels(message.body, self._ranked_value(invitation.round))
        sketch = self._sketch(invitation.round)
        if max(sketch.max(), -sketch.min()) > self.parameters.config.value_limit:
            warnings.warn("a sketch exceeds protection.value_limit and is clipped; raise the limit", stacklevel=2)
        share = self.parameters.shares(invitation.cohort)[invitation.cohort.index(self.client)]
        values = self.parameters.fixed_point.encode(sketch, float(share))
        self._enter_question(message.body)
        self._membership = membership._replace(last=invitation.round, waiting=message.body, voting=b"")
        return self._reply(Kind.UPLOAD, self._secret_sum().hide(values, context, invitation.cohort), context)

    def _read(self, body: bytes) -> tuple[Invitation, bytes]:
        """An invitation and its context. A round needs them in each of its messages."""
        known = (body, self._session, self._policy)
        if self._invitation is None or self._invitation[0] != known:
            invitation = read_invitation(body)
            self._invitation = known, (invitation, invitation.context(self._session, self._policy))
        return self._invitation[1]

    def _enter_question(self, body: bytes) -> None:
        cohort = hashlib.sha256(body).digest()
        self.ledger.ask(self._read(body)[0].round, self._policy, cohort)

    def _score(self, message: Message) -> bytes:
        """Delta_n of this client, from its own table and the mean that the total gives. Paper: Eq. (DeltaN)."""
        membership = self._member()
        demand(bool(membership.waiting), "no total is due")
        invitation, context = self._read(membership.waiting)
        demand(message.tag == context[:8], "the total is of another context")
        self._membership = membership._replace(waiting=b"")  # so that nobody can try one total after the other
        total = self._secret_sum().read(message.body, context, invitation.cohort)
        mean = self.parameters.fixed_point.decode(total)
        score = relative_metric(mean, self._sketch(invitation.round))
        value = self._answered(invitation.round, SCORE, score)
        if self.parameters.ids_only:
            return self._sealed_levels(membership.waiting, value)
        demand(value is not None, "epsilon is spent")
        return self._reply(Kind.SCORE, value or b"", context)

    def _answered(self, round_number: int, metric: str, score: float) -> bytes | None:
        """The level of a score, as it was first sent; None if epsilon is spent."""
        config = self.parameters.config
        if not self.ledger.can_spend(config.epsilon, config.total_epsilon, round_number, metric):
            return None
        return self.ledger.answer(round_number, metric, lambda: self._level(score))

    def _ranked_value(self, round_number: int) -> bytes | None:
        """This client's number, with a nonce where members draw; None if it is not finite or epsilon is spent."""
        try:
            return self._number_value(round_number, RANKED, self._number)
        except RefusedError:
            return None

    def _sealed_levels(self, body: bytes, value: bytes | None) -> bytes:
        """The value of this client, or that it has none, sealed for each other member of the cohort."""
        invitation, context = self._read(body)
        value = bytes(self.parameters.value_bytes) if value is None else PRESENT + value
        self._membership = self._member()._replace(voting=body, value=value)
        keys = self._keys_of(invitation.cohort, context)
        rows = [(other, seal(keys[other].seal, self.client, value)) for other in keys]
        return self._reply(Kind.LEVELS, pack_rows(self.parameters.sealed_row, rows), context)

    def _keys_of(self, cohort: Cohort, context: bytes) -> dict[int, RoundKeys]:
        """The keys shared with each other member of the cohort in this context, by ascending id."""
        if self._round_keys[0] != context:
            others = [other for other in cohort if other != self.client]
            self._round_keys = context, {other: round_keys(self._pair_key(other), context) for other in others}
        return self._round_keys[1]

    def _choose(self, message: Message) -> bytes:
        """The ids of the clients that train, by the values of the whole cohort.

        A ballot that lacks a member is refused: from ballots of its choice the server could learn the whole order.
        """
        membership = self._member()
        demand(bool(membership.voting), "no ballot is due")
        invitation, context = self._read(membership.voting)
        demand(message.tag == context[:8], "the ballot is of another context")
        self._membership = membership._replace(voting=b"", value=b"")
        rows, rest = unpack_rows(self.parameters.sealed_row, message.body)
        keys = self._keys_of(invitation.cohort, context)
        complete = not rest and [other for other, _ in rows] == [*keys]
        demand(complete, "the ballot is not that of the whole cohort")
        values = {other: unseal(keys[other].seal, other, sealed) for other, sealed in rows}
        values[self.client] = membership.value
        choice = choose(values, self.parameters, invitation.round)
        signature = self._identity.sign(choice.signed(context))
        return self._reply(Kind.CHOICE, choice.body() + signature, context)

    def number(self, round_number: int, metric: str, value: float) -> bytes:
        """A single number of a round in a message that the server can read, where the plan releases scores."""
        demand(not self.parameters.ids_only, "single numbers are sealed in this run")
        demand(round_number < self.parameters.ask.rounds, f"the plan has only {self.parameters.ask.rounds} rounds")
        self.ledger.ask(round_number, self._policy)
        return self._reply(Kind.SCORE, self._number_value(round_number, metric, value))

    def _number_value(self, round_number: int, metric: str, value: float) -> bytes:
        config = self.parameters.config
        demand(math.isfinite(value), "the number is not finite")
        can_spend = self.ledger.can_spend(config.epsilon, config.total_epsilon, round_number, metric)
        demand(can_spend, "epsilon is spent")
        draws = metric == RANKED and self.parameters.ask.prefers == "proportional"
        return self.ledger.answer(round_number, metric, lambda: self._scalar(value) + (self._nonce() if draws else b""))

    def _scalar(self, value: float) -> bytes:
        """A rounded number, such as a mean return; with `scalar_limit` it is protected like a score."""
        config = self.parameters.config
        if config.scalar_limit is None:
            return struct.pack("<f", min(max(rounded(value, config), -LARGEST), LARGEST))
        return self._level(value / config.scalar_limit)

    def _nonce(self) -> bytes:
        """This client's part in the common coin: two draws from [0, 1), 106 random bits."""
        return struct.pack("<2d", self._uniform(), self._uniform())

    def _level(self, score: float) -> bytes:
        return protected_level(score, self.parameters.config, self._uniform).to_bytes(4, "little", signed=True)

    def _sketch(self, round_number: int) -> Vector:
        """The sketch of the prepared table; the upload and the score need the same."""
        if self._sketched is None or self._sketched[0] != round_number:
            parameters = self.parameters
            seed = sketch_seed(bytes.fromhex(parameters.ask.sketch), round_number)
            self._sketched = round_number, count_sketch(self._table, seed, parameters.num_slots)
        return self._sketched[1]

    def _member(self) -> Membership:
        if self._membership is None:
            raise RefusedError("there is no session")
        return self._membership

    def _pair_key(self, other: int) -> bytes:
        """The key shared with one other member, made on first use."""
        if other not in self._pair_keys:
            key, signature = self._peers[other]
            check_announcement(self.parameters, self._members, other, key, signature)
            try:
                agreed = self._secret.exchange(X25519PublicKey.from_public_bytes(key))
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
                self._sum = masking.MaskedSum(self.client, num_slots, membership.group_key, self._keys_of)
        return self._sum

    def _reply(self, kind: Kind, body: bytes = b"", context: bytes = bytes(8)) -> bytes:
        return Message(kind, self.client, context[:8], body).to_bytes()


def _new_extra(parameters: Parameters) -> tuple[bytes, bytes]:
    """Further keys of the homomorphic variant: for the server, and for the members."""
    if parameters.privacy != "he":
        return b"", b""
    from fedpohcs.privacy.homomorphic import new_keys

    return new_keys()


def _locked(group_key: bytes, extra: bytes, session: bytes) -> bytes:
    """`extra`, encrypted for the members. The key is used once, so the nonce may be fixed."""
    return AESGCM(derived(group_key, b"extra", session)).encrypt(bytes(12), extra, None) if extra else b""


def _unlocked(group_key: bytes, locked: bytes, session: bytes) -> bytes:
    return AESGCM(derived(group_key, b"extra", session)).decrypt(bytes(12), locked, None) if locked else b""
