"""The paper's own suggestion: the same sum under additive homomorphic encryption (BFV, by TenSEAL). Paper: Sec. 4.3.

Members share one secret key. A member that reveals it to the server reveals every table; masks have no such key.
"""

import hmac
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import tenseal as ts

from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import Cohort, Lanes
from fedpohcs.privacy.sketch import Integers

DEGREE = 4096  # numbers in a ciphertext; 128-bit security with TenSEAL's default coefficient modulus
MODULUS = 2_147_377_153  # of the numbers: the largest prime below 2**31 that is 1 modulo 2 * DEGREE
LARGEST = MODULUS // 2 - 2**17  # a sum stays between plus and minus half the modulus, rounding included
PART_BYTES = 90_112  # a ciphertext with its length and padding; TenSEAL's are about 88,500, depending on their content


def new_keys() -> tuple[bytes, bytes]:
    """A context without the secret key for the server, and one with it for the members."""
    private = ts.context(ts.SCHEME_TYPE.BFV, poly_modulus_degree=DEGREE, plain_modulus=MODULUS)
    kept = {"save_galois_keys": False, "save_relin_keys": False}
    secret = private.serialize(save_public_key=True, save_secret_key=True, **kept)
    return private.serialize(save_public_key=True, save_secret_key=False, **kept), secret


class EncryptedSum:
    """A member's side: encrypts its vector, decrypts the sum."""

    def __init__(self, member: int, num_slots: int, group_key: bytes, secret_context: bytes) -> None:
        self._member, self._num_slots, self._group_key = member, num_slots, group_key
        self._context = _context(secret_context)

    def hide(self, values: Integers, context: bytes, cohort: Cohort) -> bytes:
        """Slots and lanes, encrypted."""
        lanes = Lanes(self._group_key, context, cohort, self._num_slots)
        numbers = _with_lanes(values, lanes.codes[self._member], lanes)
        parts = [numbers[start : start + DEGREE] for start in range(0, len(numbers), DEGREE)]
        return _joined([ts.bfv_vector(self._context, part.tolist()).serialize() for part in parts])

    def read(self, total: bytes, context: bytes, cohort: Cohort) -> Integers:
        """The sum of the cohort's vectors; any other sum is refused."""
        vectors = _vectors(total, self._num_slots, self._context)
        numbers = np.concatenate([np.array(vector.decrypt(), np.int64) for vector in vectors])
        values = _centred(numbers[: self._num_slots])
        lanes = Lanes(self._group_key, context, cohort, self._num_slots)
        expected = _with_lanes(values, sum(lanes.codes.values()), lanes)
        same = hmac.compare_digest((numbers % MODULUS).tobytes(), (expected % MODULUS).tobytes())
        demand(same, "the total is not the cohort's")
        return values


def check_upload(payload: bytes, num_slots: int, public_context: bytes) -> None:
    """Refuse what is not a list of ciphertexts of the right sizes."""
    _vectors(payload, num_slots, _context(public_context))


def add_encrypted(uploads: Sequence[bytes], public_context: bytes) -> bytes:
    """The server's side: adds ciphertexts, which it cannot read."""
    context = _context(public_context)
    sums = [ts.bfv_vector_from(context, part) for part in _parts(uploads[0])]
    for upload in uploads[1:]:
        sums = [one + ts.bfv_vector_from(context, part) for one, part in zip(sums, _parts(upload), strict=True)]
    return _joined([one.serialize() for one in sums])


@lru_cache(maxsize=4)
def _context(serialised: bytes) -> ts.Context:
    try:
        return ts.context_from(serialised)
    except (ValueError, RuntimeError) as error:
        raise RefusedError("the homomorphic key does not parse") from error


def _with_lanes(values: Integers, member: int, lanes: Lanes) -> Integers:
    return np.append(values, [member % MODULUS, lanes.checksum_modulo(values, MODULUS)])


def _centred(numbers: Integers) -> Integers:
    return (numbers + MODULUS // 2) % MODULUS - MODULUS // 2


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join((len(part).to_bytes(4, "little") + part).ljust(PART_BYTES, b"\0") for part in parts)


def _parts(payload: bytes) -> list[bytes]:
    demand(len(payload) % PART_BYTES == 0, "a ciphertext is cut off")
    padded = [payload[start : start + PART_BYTES] for start in range(0, len(payload), PART_BYTES)]
    sizes = [int.from_bytes(part[:4], "little") for part in padded]
    demand(all(size <= PART_BYTES - 4 for size in sizes), "a ciphertext is too long")
    return [part[4 : 4 + size] for part, size in zip(padded, sizes, strict=True)]


def _vectors(payload: bytes, num_slots: int, context: ts.Context) -> list[ts.BFVVector]:
    """The ciphertexts in a payload. TenSEAL refuses most invalid ones; the lanes detect the others."""
    sizes = [min(DEGREE, num_slots + 2 - start) for start in range(0, num_slots + 2, DEGREE)]
    parts = _parts(payload)
    demand(len(parts) == len(sizes), "there are too few or too many ciphertexts")
    try:
        vectors = [ts.bfv_vector_from(context, part) for part in parts]
        fits = [vector.size() for vector in vectors] == sizes
    except (ValueError, RuntimeError, IndexError, MemoryError) as error:
        raise RefusedError("a ciphertext does not parse") from error
    demand(fits, "a ciphertext has the wrong length")
    return vectors
