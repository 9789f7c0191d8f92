"""A sum of statistics that a server can read, without those of any single client.

Two messages. Every client announces an X25519 key for this run, signed with its identity. The server sends all of them
back, and every client answers with its numbers under masks that cancel in the sum (Bonawitz et al., 2017, without
recovery of clients that are lost: then there is no sum).

Two sums over sets of clients that differ by one client would reveal it. So a client adds its numbers to sums over one
set of clients only, in the whole run, and uses no mask twice.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import derived, keystream
from fedpohcs.privacy.messages import pack_rows, unpack_rows
from fedpohcs.privacy.terms import ANNOUNCED

WORD = 16  # bytes of a masked number
MODULUS = 2 ** (8 * WORD)
SCALE = 2**40  # of fixed-point numbers: a resolution of 1e-12, and room for sums of up to 1e26
LARGEST = 1e24  # of one client's numbers, so that sums over any cohort fit
KEY, SIGNATURE = 32, 64  # bytes
LABEL = b"fedpohcs pooling"


class Pledge(NamedTuple):
    """What a client keeps of a run. It can remove this client's masks, so only the client may read it."""

    secret: bytes
    cohort: tuple[int, ...] = ()  # with whose numbers this client's are added, from the first sum on
    round: int = -1  # of the latest sum
    context: bytes = b""  # its round and keys
    upload: bytes = b""  # to that sum; a repeated request gets the same bytes


class PoolingClient:
    """Adds the numbers of one client to a sum."""

    def __init__(
        self, client: int, name: bytes, identity: Ed25519PrivateKey, members: Mapping[int, bytes], least: int
    ) -> None:
        """Make a client.

        Args:
            client: id of this client.
            name: of the run and its parameters; equal on all clients.
            identity: the private key that proves the identity of this client.
            members: Ed25519 public keys of all clients that may take part; not from the server.
            least: number of clients below which this client refuses a sum.
        """
        self.client, self.name, self.least = client, name, least
        self._identity, self._members = identity, members

    def announce(self, pledge: Pledge | None) -> tuple[Pledge, bytes]:
        """What to keep, and the reply to the first message."""
        pledge = pledge or Pledge(os.urandom(KEY))
        key = _private(pledge).public_key().public_bytes_raw()
        return pledge, key + self._identity.sign(_signed(self.name, self.client, key))

    def upload(self, pledge: Pledge, roster: bytes, round_number: int, values: Sequence[float]) -> tuple[Pledge, bytes]:
        """What to keep, and the reply to the second message. Raises `RefusedError`; then nothing must be sent."""
        keys = self._verified(roster)
        cohort = tuple(keys)
        demand(keys.get(self.client) == _private(pledge).public_key().public_bytes_raw(), "it lacks this client's key")
        demand(pledge.cohort in ((), cohort), f"this client was in a sum over others before: {_listed(pledge.cohort)}")
        context = hashlib.sha256(LABEL + self.name + round_number.to_bytes(4, "little") + roster).digest()
        if context == pledge.context:
            return pledge, pledge.upload
        demand(round_number > pledge.round, f"this client was in a sum of round {pledge.round} before")
        words = _fixed_point(values)
        for other, key in keys.items():
            if other != self.client:
                sign = 1 if self.client < other else -1
                mask = _mask(_private(pledge), key, context, len(words))
                words = [(word + sign * noise) % MODULUS for word, noise in zip(words, mask, strict=True)]
        upload = b"".join(word.to_bytes(WORD, "little") for word in words)
        return Pledge(pledge.secret, cohort, round_number, context, upload), upload

    def _verified(self, roster: bytes) -> dict[int, bytes]:
        rows, rest = unpack_rows(ANNOUNCED, roster)
        ids = [client for client, _, _ in rows]
        demand(not rest and ids == sorted(set(ids)), "the roster must list different clients in ascending order")
        demand(len(ids) >= self.least, f"the roster has only {len(ids)} clients of at least {self.least}")
        for client, key, signature in rows:
            demand(client in self._members, f"client {client} is not a member")
            try:
                member = Ed25519PublicKey.from_public_bytes(self._members[client])
                member.verify(signature, _signed(self.name, client, key))
            except InvalidSignature as error:
                raise RefusedError(f"the key of client {client} is not signed by it") from error
        return {client: key for client, key, _ in rows}


def make_roster(announced: Mapping[int, bytes]) -> bytes:
    """The second message: what the clients answered to the first, by client. Bad answers are left out."""
    sound = {client: reply for client, reply in announced.items() if len(reply) == KEY + SIGNATURE}
    return pack_rows(ANNOUNCED, [(client, sound[client][:KEY], sound[client][KEY:]) for client in sorted(sound)])


def roster_clients(roster: bytes) -> list[int]:
    """The clients that a roster lists."""
    rows, _ = unpack_rows(ANNOUNCED, roster)
    return [client for client, _, _ in rows]


def read_sum(uploads: Iterable[bytes], size: int) -> list[float]:
    """The sum of all clients' numbers, from the uploads of all of them."""
    total = [0] * size
    for upload in uploads:
        demand(len(upload) == size * WORD, "an upload has the wrong length")
        total = [(word + more) % MODULUS for word, more in zip(total, _words(upload), strict=True)]
    return [(word - MODULUS if word >= MODULUS // 2 else word) / SCALE for word in total]


def _private(pledge: Pledge) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(pledge.secret)


def _signed(name: bytes, client: int, key: bytes) -> bytes:
    return LABEL + hashlib.sha256(name).digest() + client.to_bytes(4, "little") + key


def _mask(secret: X25519PrivateKey, key: bytes, context: bytes, size: int) -> list[int]:
    try:
        shared = secret.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError as error:  # a point of low order
        raise RefusedError("the roster has a key that is none") from error
    return _words(keystream(derived(shared, LABEL, b""), b"mask", context, size * WORD).tobytes())


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + WORD], "little") for at in range(0, len(data), WORD)]


def _fixed_point(values: Sequence[float]) -> list[int]:
    demand(all(abs(value) <= LARGEST for value in values), f"a number is not below {LARGEST:g}")  # nor is NaN
    return [round(value * SCALE) % MODULUS for value in values]


def _listed(clients: Sequence[int]) -> str:
    return ", ".join(map(str, clients))
