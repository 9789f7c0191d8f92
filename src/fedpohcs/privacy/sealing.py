"""Values that members of a cohort show each other and hide from the server."""

import math

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.privacy.differential import score_of_level
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.messages import unpack
from fedpohcs.privacy.terms import Parameters

PRESENT = b"\1"  # before a number; a client without one seals zeros


def seal(key: bytes, sender: int, value: bytes) -> bytes:
    """A value for one other member. Two members share the key in one context, and each seals one value with it."""
    return AESGCM(key).encrypt(_nonce(sender), value, None)


def unseal(key: bytes, sender: int, sealed: bytes) -> bytes:
    """The value of another member. Only that member and this one can have sealed it."""
    try:
        return AESGCM(key).decrypt(_nonce(sender), sealed, None)
    except InvalidTag as error:
        raise RefusedError(f"the value of client {sender} is not from it") from error


def _nonce(sender: int) -> bytes:
    return sender.to_bytes(12, "little")


def read_value(value: bytes, parameters: Parameters) -> float | None:
    """The number in a sealed value; None if there is none, or none that the rules allow."""
    read = read_score if parameters.ask.form == "table" else read_number
    try:
        return read(value[1:5], parameters.config) if value[:1] == PRESENT else None
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
