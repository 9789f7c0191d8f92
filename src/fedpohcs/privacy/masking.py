"""The masked sum: each upload is uniform noise, and only members can read the sum."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from fedpohcs.privacy.errors import demand
from fedpohcs.privacy.sketch import Integers

LARGEST = 2**31 - 2**17  # a sum fits into a signed word, with room for the rounding of 2**18 members
NO_NONCE = bytes(12)  # because every key is used once
LANE_BYTES = 16  # member lane and checksum lane, 8 bytes each
Bytes = NDArray[np.uint8]
Cohort = tuple[int, ...]  # ids, ascending


def derived(key: bytes, label: bytes, context: bytes) -> bytes:
    """A key for one use in one context. Keys are uniform, so HMAC alone is a sound derivation (RFC 5869, expand)."""
    return hmac.digest(key, label + context, "sha256")


def keystream(key: bytes, label: bytes, context: bytes, length: int) -> Bytes:
    """The stream of a key that is derived for this label and context, so that it is used only once."""
    return stream(derived(key, label, context), length)


def stream(key: bytes, length: int) -> Bytes:
    """AES-256-CTR under a key that is used only once, from the second block.

    It is computed as GCM with a nonce of zeros, whose tag is dropped: OpenSSL has faster code for that.
    """
    return np.frombuffer(AESGCM(key).encrypt(NO_NONCE, _zeros(length), None), np.uint8, length)


class RoundKeys(NamedTuple):
    """The keys that two members share in one context: of their mask, and of the values that they seal."""

    mask: bytes
    seal: bytes


def round_keys(pair_key: bytes, context: bytes) -> RoundKeys:
    """Both keys from one HMAC: members make them for each other member in every round."""
    keys = hmac.digest(pair_key, b"round" + context, "sha512")
    return RoundKeys(keys[:32], keys[32:])


@cache
def _zeros(length: int) -> bytes:
    return bytes(length)


class Lanes:
    """Two numbers after the slots, by which members detect a total that is not the sum of the cohort's uploads.

    The member lane adds up a code of each member, the checksum lane a secret linear function of the slots. Both are
    keyed by the group key, which the server does not hold, and by the context.
    """

    def __init__(self, group_key: bytes, context: bytes, cohort: Cohort, num_slots: int) -> None:
        codes = keystream(group_key, b"member", context, 8 * len(cohort)).view(np.uint64)
        self.codes = dict(zip(cohort, codes.tolist(), strict=True))
        self._factor = keystream(group_key, b"checksum", context, 8 * num_slots).view(np.uint64)

    def checksum(self, values: Integers) -> int:
        """Modulo 2**64. A wrong sum passes with probability at most 2**-33, as slots differ by less than 2**32."""
        return int(np.dot(self._factor, values.view(np.uint64)))

    def checksum_modulo(self, values: Integers, prime: int) -> int:
        """Checksum modulo a prime below 2**31. A wrong sum passes with probability about 1 / prime."""
        factor = (self._factor % prime).astype(np.int64)
        return int((factor * (values % prime) % prime).sum()) % prime


class MaskedSum:
    """A member's side: hides its own vector, reads the sum."""

    def __init__(
        self, member: int, num_slots: int, group_key: bytes, keys: Callable[[Cohort, bytes], Mapping[int, RoundKeys]]
    ) -> None:
        """`keys` gives what this member shares with each other member of a cohort in a context."""
        self._member, self._num_slots = member, num_slots
        self._group_key, self._keys = group_key, keys
        self._lanes: tuple[bytes, Lanes] | None = None  # of the latest context

    def hide(self, values: Integers, context: bytes, cohort: Cohort) -> bytes:
        """Slots and lanes under a mask for each other member; the first member adds the group's blind."""
        lanes = self._lanes_of(context, cohort)
        words, tail = values.astype(np.uint32), _lane_words(lanes.codes[self._member], lanes.checksum(values))
        length = payload_bytes(self._num_slots)
        for other, keys in self._keys(cohort, context).items():
            mask_words, mask_tail = _split(stream(keys.mask, length), self._num_slots)
            operation = np.add if self._member < other else np.subtract
            operation(words, mask_words, out=words)
            operation(tail, mask_tail, out=tail)
        if self._member == cohort[0]:
            blind_words, blind_tail = self._blind(context)
            words, tail = words + blind_words, tail + blind_tail
        return words.tobytes() + tail.tobytes()

    def read(self, total: bytes, context: bytes, cohort: Cohort) -> Integers:
        """The sum of the cohort's vectors; any other sum is refused."""
        demand(len(total) == payload_bytes(self._num_slots), "the total has the wrong length")
        words, tail = _split(np.frombuffer(total, np.uint8), self._num_slots)
        blind_words, blind_tail = self._blind(context)
        values = (words - blind_words).view(np.int32).astype(np.int64)
        lanes = self._lanes_of(context, cohort)
        expected = _lane_words(sum(lanes.codes.values()), lanes.checksum(values))
        demand(hmac.compare_digest((tail - blind_tail).tobytes(), expected.tobytes()), "the total is not the cohort's")
        return values

    def _lanes_of(self, context: bytes, cohort: Cohort) -> Lanes:
        if self._lanes is None or self._lanes[0] != context:
            self._lanes = context, Lanes(self._group_key, context, cohort, self._num_slots)
        return self._lanes[1]

    def _blind(self, context: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        stream = keystream(self._group_key, b"blind", context, payload_bytes(self._num_slots))
        return _split(stream, self._num_slots)


def payload_bytes(num_slots: int) -> int:
    """Bytes of the payload of an upload or of a total."""
    return 4 * num_slots + LANE_BYTES


def add_uploads(uploads: Sequence[bytes], num_slots: int) -> bytes:
    """The server's side: slots add up modulo 2**32, lanes modulo 2**64."""
    words, tail = np.zeros(num_slots, np.uint32), np.zeros(2, np.uint64)
    for upload in uploads:
        upload_words, upload_tail = _split(np.frombuffer(upload, np.uint8), num_slots)
        words += upload_words
        tail += upload_tail
    return words.tobytes() + tail.tobytes()


def _split(payload: Bytes, num_slots: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    return payload[: 4 * num_slots].view(np.uint32), payload[4 * num_slots :].view(np.uint64)


def _lane_words(member: int, checksum: int) -> NDArray[np.uint64]:
    return np.array([member % 2**64, checksum % 2**64], np.uint64)
