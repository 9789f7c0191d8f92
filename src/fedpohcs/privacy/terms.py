"""Terms that server and clients of private selection share: parameters, announced keys, invitations, contexts."""

import hashlib
import json
import struct
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedpohcs.core.config import ExperimentConfig, ProtectionConfig
from fedpohcs.metrics.base import find_metric, hidden_as
from fedpohcs.privacy import masking
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.masking import Cohort
from fedpohcs.privacy.messages import unpack_rows
from fedpohcs.privacy.sketch import FixedPoint
from fedpohcs.server.candidates import client_weight, draw_candidates
from fedpohcs.server.selection.base import Selector, asks_every_candidate
from fedpohcs.server.selection.checks import make_selector

RESERVED_WORDS = 16  # of `num_words`: lanes, headers and a score, so that all of an upload fits
SEALED_KEY = "I12s48s"  # for whom, nonce, ciphertext of 32 bytes and its tag
ANNOUNCED = "I32s64s"  # who, X25519 key, Ed25519 signature
NONCE_BYTES = 16
LEAST_SHARE, LARGEST_SHARE = 0.5, 1.5  # of one member in the mean, in multiples of an equal share


@dataclass(frozen=True)
class Ask:
    """What a run asks of its candidates, according to its plan."""

    rounds: int = 1
    seed: int = 0
    num_candidates: int = 1
    num_selected: int = 1
    weights: tuple[float, ...] = ()  # q_n of every client
    form: Literal["table", "number", ""] = "table"  # of the metric by which candidates are chosen
    prefers: Literal["high", "low", "proportional", ""] = "high"  # how the K are chosen by it; "": the server decides
    sketch: str = bytes(32).hex()  # names the hash functions of sketches; public, and the same with and without a plan
    drawn: bool = True  # cohorts are the candidates that the seed draws; otherwise those that the server invites


@dataclass(frozen=True)
class Parameters:
    """Parameters that all parties must share. They are part of every context."""

    privacy: str  # "masked" or "he"
    run: bytes  # 32 bytes that name the run
    config: ProtectionConfig
    ask: Ask

    @property
    def num_slots(self) -> int:
        return self.config.num_words - RESERVED_WORDS

    @property
    def value_bytes(self) -> int:
        """Length of what members seal for each other: a mark, a number, and a nonce where they draw."""
        return 5 + (NONCE_BYTES if self.ask.prefers == "proportional" else 0)

    @property
    def sealed_row(self) -> str:
        """The layout of a sealed value: for whom or of whom, and the ciphertext with its tag."""
        return f"I{self.value_bytes + 16}s"

    @property
    def ids_only(self) -> bool:
        """Whether members choose, so that the server learns ids alone."""
        return self.config.release == "ids"

    @property
    def least_cohort(self) -> int:
        """Least size of a cohort. A server that leaves out more candidates gets no answer."""
        return max(self.config.min_cohort, quorum(self.ask.num_candidates) if self.ask.drawn else 0)

    @property
    def fixed_point(self) -> FixedPoint:
        if self.privacy == "he":
            from fedpohcs.privacy import homomorphic

            return FixedPoint(self.config.value_limit, homomorphic.LARGEST)
        return FixedPoint(self.config.value_limit, masking.LARGEST)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all parameters."""
        values = [self.privacy, asdict(self.config), asdict(self.ask)]
        settings = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(self.run + settings.encode()).digest()

    def cohort(self, round_number: int, roster: Collection[int]) -> Cohort:
        """The candidates of a round that are in the session. Nobody chooses them: the plan's seed draws them."""
        ask = self.ask
        drawn = draw_candidates(len(ask.weights), ask.num_candidates, ask.seed, round_number)
        return tuple(client for client in drawn.tolist() if client in roster)

    def shares(self, cohort: Cohort) -> np.ndarray:
        """q_n of the cohort, scaled so that they sum to 1."""
        weights = np.array([self.ask.weights[client] for client in cohort])
        return weights / weights.sum()


def quorum(number: int) -> int:
    """Two thirds of a number, rounded up: any two such groups have an honest member in common."""
    return -(-2 * number // 3)


def run_parameters(config: ExperimentConfig, run: bytes | None = None) -> Parameters:
    """The parameters of a run. Without a plan, which names it, equal configs give equal parameters."""
    name = hashlib.sha256(f"{config.world}/{config.level}/{config.seed}".encode()).digest()
    ask = _ask(config, make_selector(config.selector), name.hex())
    return Parameters(config.privacy, run or name, config.protection, ask)


def _ask(config: ExperimentConfig, selector: Selector, sketch: str) -> Ask:
    federation = config.federation
    tables = hidden_as(selector.requires, "table")
    forms = ["table"] if tables else [find_metric(name).hide or "" for name in sorted(selector.requires)]
    return Ask(
        config.rounds,
        config.seed,
        federation.num_candidates,
        federation.num_selected,
        tuple(client_weight(federation).tolist()),
        forms[0] if forms else "",  # pyright: ignore[reportArgumentType]
        selector.prefers or "",
        sketch,
        asks_every_candidate(selector),
    )


class Invitation(NamedTuple):
    """The cohort of one round."""

    round: int
    cohort: Cohort  # ascending ids

    def body(self) -> bytes:
        return struct.pack(f"<II{len(self.cohort)}I", self.round, len(self.cohort), *self.cohort)

    def context(self, session: bytes, policy: bytes) -> bytes:
        """The name of this round in a session: every mask is made for one context and no other."""
        return hashlib.sha256(session + policy + self.body()).digest()


def read_invitation(body: bytes) -> Invitation:
    """The invitation in the body of a message."""
    demand(len(body) >= 4, "the invitation is too short")
    rows, rest = unpack_rows("I", body[4:])
    ids = tuple(client for (client,) in rows)
    ascending = not rest and ids == tuple(sorted(set(ids)))
    demand(ascending, "the invitation must list different clients in ascending order")
    return Invitation(int.from_bytes(body[:4], "little"), ids)


def check_invitation(invitation: Invitation, parameters: Parameters, client: int, roster: Collection[int]) -> None:
    """Refuse a cohort that is not the plan's, or in which this client's table would not be hidden."""
    cohort, ask, least = invitation.cohort, parameters.ask, parameters.least_cohort
    demand(invitation.round < ask.rounds, f"the plan has only {ask.rounds} rounds")
    demand(set(cohort) <= set(roster), "the cohort has a client that is not in the roster")
    demand(client in cohort, "this client is not in the cohort")
    demand(len(cohort) >= least, f"the cohort has only {len(cohort)} members of at least {least}")
    drawn = not ask.drawn or cohort == parameters.cohort(invitation.round, roster)
    demand(drawn, "the cohort is not the one that the plan draws")
    shares = len(cohort) * parameters.shares(cohort)
    even = shares.min() >= LEAST_SHARE and shares.max() <= LARGEST_SHARE
    # Then the variance of these multiples is at most 1/4, so that the mean hides as much as .8 |C| equal members do.
    demand(even, "one member counts for much more or much less than the others")


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
