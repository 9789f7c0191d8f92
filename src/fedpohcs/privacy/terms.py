"""Terms that server and clients of private selection share: parameters, announced keys, invitations, contexts."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedpohcs.core.config import ExperimentConfig, ProtectionConfig
from fedpohcs.privacy import masking
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import Cohort
from fedpohcs.privacy.messages import pack_rows, unpack_rows
from fedpohcs.privacy.sketch import FixedPoint

MAX_ATTEMPTS = 3
MAX_WEIGHT = 1e9  # largest weight, so that sums stay finite
RESERVED_WORDS = 16  # of `num_words`: lanes, two headers and the score, so that all of an upload fits
SEALED_KEY = "I12s48s"  # for whom, nonce, ciphertext of 32 bytes and its tag
ANNOUNCED = "I32s64s"  # who, X25519 key, Ed25519 signature
INVITED = "Id"  # who, q_n


@dataclass(frozen=True)
class Parameters:
    """Parameters that all parties must share. They are part of every context."""

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
        """SHA-256 of all parameters."""
        settings = json.dumps([self.privacy, asdict(self.config)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(self.run + settings.encode()).digest()


def run_parameters(config: ExperimentConfig) -> Parameters:
    """The parameters of a run; equal configs give equal parameters."""
    run = hashlib.sha256(f"{config.world}/{config.level}/{config.seed}".encode()).digest()
    return Parameters(config.privacy, run, config.protection)


class Invitation(NamedTuple):
    """The cohort of one attempt of one round, and the weights of its members."""

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
        """The largest share of a member of the cohort."""
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
    """Name of a session; its roster has new keys, so no two sessions share a name."""
    return hashlib.sha256(b"fedpohcs session" + parameters.digest + roster).digest()


def announcement(parameters: Parameters, client: int, key: bytes) -> bytes:
    """The bytes that a member signs."""
    return b"fedpohcs announcement" + parameters.digest + client.to_bytes(4, "little") + key


def check_announcement(
    parameters: Parameters, members: Mapping[int, bytes], client: int, key: bytes, signature: bytes
) -> None:
    """Refuse a key that no member signed for itself, this run and these parameters."""
    demand(client in members, f"client {client} is not a member")
    try:
        Ed25519PublicKey.from_public_bytes(members[client]).verify(signature, announcement(parameters, client, key))
    except InvalidSignature as error:
        raise RefusedError(f"the key of client {client} is not signed by it") from error
