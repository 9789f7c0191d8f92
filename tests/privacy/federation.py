"""A small federation whose messages are all kept, and whose wire can be tampered with."""

from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.privacy.client import PrivateClient
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.messages import Kind, Message, parse
from fedpohcs.privacy.server import Outcome, PrivateServer
from fedpohcs.privacy.sketch import count_sketch, relative_metric, sketch_seed
from fedpohcs.privacy.terms import Ask, Invitation, Parameters

POLICY = bytes(range(32))
RUN = bytes(32)
SMALL = ProtectionConfig(sketch_size=128, score_bits=24, min_cohort=3, release="scores")
IDS = ProtectionConfig(sketch_size=128, score_bits=24, min_cohort=3)
MANY = 2**32  # rounds
Tamper = Callable[[int, bytes], bytes | None]  # (client, message) to what arrives; None: nothing


def deliver(client: int, message: bytes) -> bytes:
    del client
    return message


def make_table(seed: int, size: int = 200, scale: float = 0.1) -> WeightedAdvantage:
    generator = np.random.default_rng(seed)
    pairs = np.sort(generator.choice(500, size, replace=False)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    order = np.argsort(pairs)
    return WeightedAdvantage(pairs[order], scale * generator.standard_normal(size) + scale)


class Federation:
    """Clients, their tables, a server, and a wire between them."""

    def __init__(
        self, num_clients: int = 6, config: ProtectionConfig = SMALL, privacy: str = "masked", **ask: Any
    ) -> None:
        ask = {"num_candidates": num_clients, "num_selected": 2, "weights": (1.0,) * num_clients, **ask}
        self.parameters = Parameters(privacy, RUN, config, Ask(**{"rounds": MANY, **ask}))
        identities = {c: Ed25519PrivateKey.from_private_bytes(bytes([c + 1]) * 32) for c in range(num_clients)}
        self.members = {c: key.public_key().public_bytes_raw() for c, key in identities.items()}
        self.clients = {c: PrivateClient(c, self.parameters, key, self.members) for c, key in identities.items()}
        self.tables = {c: make_table(c) for c in identities}
        self.numbers = {c: float("nan") for c in identities}
        self.down: Tamper = deliver  # what becomes of a message on its way to a client
        self.up: Tamper = deliver  # and of its answer
        self.messages: list[bytes] = []
        self.refusals: list[str] = []
        self.server = PrivateServer(self.parameters, self.members, self.exchange)

    def exchange(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        replies = {}
        for client, message in messages.items():
            arrived = self.down(client, message)
            if arrived is None:
                continue
            self.messages.append(message)
            try:
                reply = self.up(client, self.clients[client].answer(arrived))
            except RefusedError as refused:
                self.refusals.append(str(refused))
                continue
            if reply is not None:
                self.messages.append(reply)
                replies[client] = reply
        return replies

    def start(self) -> "Federation":
        self.server.open_session(self.clients)
        return self

    def prepare(self, policy: bytes = POLICY) -> None:
        for client, party in self.clients.items():
            party.prepare(policy, self.tables[client], number=self.numbers[client])

    def cohort(self, round_number: int = 0) -> tuple[int, ...]:
        return self.server.cohort(round_number)

    def select(self, round_number: int = 0) -> Outcome:
        self.prepare()
        return self.server.select(round_number, POLICY, self.cohort(round_number))

    def invitation(self, client: int, round_number: int = 0, cohort: tuple[int, ...] | None = None) -> bytes:
        """What a server that follows no rules may ask."""
        body = Invitation(round_number, self.cohort(round_number) if cohort is None else cohort).body()
        return Message(Kind.INVITATION, client, bytes(8), body).to_bytes()

    def expected(self, round_number: int = 0, cohort: Any = None) -> dict[int, float]:
        """The scores of a cohort, computed in the clear."""
        cohort = self.cohort(round_number) if cohort is None else cohort
        seed, slots = sketch_seed(RUN, round_number), self.parameters.num_slots
        sketches = {c: count_sketch(self.tables[c], seed, slots) for c in cohort}
        shares = dict(zip(cohort, self.parameters.shares(tuple(cohort)).tolist(), strict=True))
        mean = sum((shares[c] * sketches[c] for c in cohort), np.zeros(slots))
        return {c: relative_metric(mean, sketches[c]) for c in cohort}


def only(kind: Kind, change: Callable[[bytes], bytes | None], *clients: int) -> Tamper:
    """Tampers with messages of one kind, of these clients."""

    def tamper(client: int, message: bytes) -> bytes | None:
        return change(message) if parse(message).kind == kind and client in clients else message

    return tamper
