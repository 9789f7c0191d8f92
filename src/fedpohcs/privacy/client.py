"""A client in private selection. It answers one message with one message; how these travel is up to the caller."""

import hmac
import math
import os
import struct
import sys
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
from fedpohcs.privacy.differential import Uniform, protected_level, rounded, system_uniform
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import Cohort, derived
from fedpohcs.privacy.messages import Kind, Message, pack_rows, parse, unpack_rows
from fedpohcs.privacy.sketch import Integers, count_sketch, relative_metric, sketch_seed
from fedpohcs.privacy.terms import (
    ANNOUNCED,
    MAX_ATTEMPTS,
    SEALED_KEY,
    Invitation,
    Parameters,
    announcement,
    check_announcement,
    read_invitation,
    session_name,
)

WORST_TICKET = 1e3  # later than any that a positive number can buy
MAX_SHARE = 0.5  # largest weight of one member in the mean, which would otherwise reveal its table


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
    last: tuple[int, int] = (-1, -1)  # round and attempt of the latest upload
    waiting: bytes = b""  # invitation of that upload, until its total was answered


class PrivateClient:
    """A member of the federation. It never sends its table."""

    def __init__(
        self, client: int, parameters: Parameters, identity: Ed25519PrivateKey, members: Mapping[int, bytes]
    ) -> None:
        """Make a client without a session. It sends nothing before the server's first message.

        Args:
            client: id of this client.
            parameters: as agreed by all.
            identity: the private key that proves the identity of this client.
            members: Ed25519 public keys of all clients that may take part; not from the server.
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
        """Set the input of the next round: SHA-256 of the received policy, and the table made under it."""
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
        self._peers, self._session = self._verified(roster), session_name(self.parameters, roster)

    def _announce(self, message: Message) -> bytes:
        """Announce a new key for this session, so that a client that lost its state cannot repeat a mask."""
        demand(message.body == self.parameters.digest, "the server has other parameters")
        self._forget()
        self._membership = Membership(os.urandom(32))
        key = self._secret.public_key().public_bytes_raw()
        signature = self._identity.sign(announcement(self.parameters, self.client, key))
        return self._reply(Kind.ANNOUNCEMENT, key + signature)

    def _join(self, message: Message) -> bytes:
        """Check the members of the session. The first of them makes the group key and seals it for the others."""
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
        """The hidden sketch. There is at most one upload per attempt."""
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
        """Delta_n of this client, from its own table and the mean that the total gives. Paper: Eq. (DeltaN)."""
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
        """A rounded number, such as a mean return; with `scalar_limit` it is protected like a score."""
        config = self.parameters.config
        if config.scalar_limit is None:
            return self._reply(Kind.SCORE, struct.pack("<f", rounded(value, config)))
        return self._reply(Kind.SCORE, self._level(value / config.scalar_limit))

    def ticket(self, value: float) -> bytes:
        """A lottery ticket in place of a number: the logarithm of an exponential draw with that rate.

        The smallest of many tickets belongs to a client with a probability in proportion to its number. A number that
        is not positive buys the worst ticket.
        """
        demand(math.isfinite(value), "the number is not finite")
        waiting = -math.log1p(-self._uniform()) or sys.float_info.min
        return self.scalar(math.log(waiting) - math.log(value) if value > 0 else WORST_TICKET)

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
        """The key shared with one other member, made on first use."""
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
