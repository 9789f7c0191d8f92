"""Values that members of a cohort show each other and hide from the server."""

import math

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.privacy.differential import score_of_level
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import derived
from fedpohcs.privacy.messages import unpack
from fedpohcs.privacy.terms import Parameters

SEALED_LEVEL = "I21s"  # for whom or of whom; ciphertext of a mark and 4 bytes, and its tag
ABSENT = bytes(5)  # of a client that has no value, sealed like one


def seal(pair_key: bytes, sender: int, context: bytes, value: bytes) -> bytes:
    """A value for one other member. The key is used for this value alone, so the nonce may be fixed."""
    return _cipher(pair_key, sender, context).encrypt(bytes(12), value, None)


def unseal(pair_key: bytes, sender: int, context: bytes, sealed: bytes) -> bytes:
    """The value of another member. Only that member and this one can have sealed it."""
    try:
        return _cipher(pair_key, sender, context).decrypt(bytes(12), sealed, None)
    except InvalidTag as error:
        raise RefusedError(f"the value of client {sender} is not from it") from error


def _cipher(pair_key: bytes, sender: int, context: bytes) -> AESGCM:
    return AESGCM(derived(pair_key, b"level" + sender.to_bytes(4, "little"), context))


def read_value(value: bytes, parameters: Parameters) -> float | None:
    """The number in a sealed value; None if there is none, or none that the rules allow."""
    read = read_score if parameters.ask.form == "table" else read_number
    try:
        return None if value == ABSENT else read(value[1:], parameters.config)
    except RefusedError:
        return None


def read_score(body: bytes, config: ProtectionConfig) -> float:
    """The score in the body of a message."""
    (level,) = unpack("i", body)
    return score_of_level(level, config)


def read_number(body: bytes, config: ProtectionConfig) -> float:
    """A single number: a level, or a float where numbers have no limit."""
    if config.scalar_limit is not None:
        return read_score(body, config) * config.scalar_limit
    (value,) = unpack("f", body)
    demand(math.isfinite(value), "the number is not finite")
    return value
