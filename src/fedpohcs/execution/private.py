"""Private selection in one process: runs the real protocol, in bytes, between client and server objects."""

import hashlib
import warnings
from collections.abc import Mapping, Set
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.types import (
    CandidateMetrics,
    ClientIds,
    Params,
    Vector,
    WeightedAdvantage,
)
from fedpohcs.execution.forwarding import ForwardingExecutor
from fedpohcs.metrics.base import SELECTION_METRIC, hidden_as
from fedpohcs.privacy.client import PrivateClient
from fedpohcs.privacy.differential import spent
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.server import Outcome, PrivateServer, read_scalar
from fedpohcs.privacy.terms import Parameters, run_parameters
from fedpohcs.server.protocols import Executor

EMPTY = WeightedAdvantage(np.empty(0, np.uint64), np.empty(0))
ROUNDS_WITHOUT = 5  # after a client failed in the protocol, in which no session is opened because of it
NOBODY: tuple[int, dict[int, float]] = (-1, {})


class PrivateSnapshot(NamedTuple):
    """What checkpoints store of private clients. Keys are not stored: a resumed run makes new ones."""

    clients: Any  # of the executor within
    answers: np.ndarray  # [N] number of scores that each client has sent


class Wire(Protocol):
    """Carries the server's messages to the clients and counts bytes."""

    members: dict[int, bytes]  # Ed25519 public keys of all clients that may take part
    round: int  # in which messages are sent
    down: np.ndarray  # [N] bytes to each client
    up: np.ndarray
    refusals: list[str]

    def reset(self) -> None:
        """Set all counts to 0."""
        ...

    def present(self, round_number: int) -> set[int]:
        """The clients that can be reached in a round."""
        ...

    def measure(
        self, params: Params, round_number: int, clients: ClientIds, names: Set[str]
    ) -> dict[str, dict[int, bytes]]:
        """Let clients measure. Tables stay with the clients; numbers are returned as messages, by metric and client."""
        ...

    def exchange(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Deliver messages and return the replies of clients that do not refuse."""
        ...


class LocalWire:
    """Carries messages between the server and client objects of this process, with fresh keys."""

    def __init__(self, within: Executor, parameters: Parameters, seed: int) -> None:
        self.within, self.seed, self.round = within, seed, 0
        identities = {client: Ed25519PrivateKey.generate() for client in range(within.num_clients)}
        self.members = {client: identity.public_key().public_bytes_raw() for client, identity in identities.items()}
        self.clients = {c: PrivateClient(c, parameters, identity, self.members) for c, identity in identities.items()}
        self.reset()

    def reset(self) -> None:
        """Set all counts to 0."""
        self.down, self.up = np.zeros((2, len(self.clients)), np.int64)
        self.refusals: list[str] = []

    def present(self, round_number: int) -> set[int]:
        """All clients: clients of this process are always present."""
        del round_number
        return set(self.clients)

    def measure(
        self, params: Params, round_number: int, clients: ClientIds, names: Set[str]
    ) -> dict[str, dict[int, bytes]]:
        """Measure with the inner executor, and give every client its own values."""
        metrics, policy = self.within.measure(params, round_number, clients, names), policy_digest(params)
        tables = [metrics.column(name) for name in hidden_as(names, "table")] or [[EMPTY] * len(clients)]
        for client, table in zip(clients.tolist(), tables[0], strict=True):
            self.clients[client].prepare(policy, table, self._uniform(round_number, client))
        return {name: self._sent(name, metrics.column(name), clients) for name in hidden_as(names, "number", "ticket")}

    def exchange(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Deliver messages and return the replies of clients that do not refuse."""
        replies = {}
        for client, message in messages.items():
            self.down[client] += len(message)
            try:
                replies[client] = self.clients[client].answer(message)
            except RefusedError as refusal:
                self.refusals.append(f"client {client}: {refusal}")
                continue
            self.up[client] += len(replies[client])
        return replies

    def _sent(self, name: str, values: Vector, clients: ClientIds) -> dict[int, bytes]:
        messages, send = {}, PrivateClient.ticket if hidden_as([name], "ticket") else PrivateClient.scalar
        for client, value in zip(clients.tolist(), values.tolist(), strict=True):
            with suppress(RefusedError):
                messages[client] = send(self.clients[client], value)
                self.up[client] += len(messages[client])
        return messages

    def _uniform(self, round_number: int, client: int) -> Any:
        """Source of noise that depends on the seed of the simulation, so that a run can be repeated."""
        return host_generator(self.seed, Purpose.PRIVACY_NOISE, round_number, client).random


class Cohorts:
    """Clients that a private selection can invite. Clients without keys are taken into a new session."""

    def __init__(self, server: PrivateServer, wire: Wire, weight: Vector, min_cohort: int) -> None:
        self.server, self.wire, self.weight, self.min_cohort = server, wire, weight, min_cohort
        self.invited = NOBODY  # round and q_n of the clients that were invited before their selection
        self.excused: dict[int, int] = {}  # by client: round before which no session is opened because of it

    def weights(self, round_number: int, clients: ClientIds) -> dict[int, float]:
        """q_n of the clients to invite."""
        number, weights = self.invited
        if number == round_number:
            return weights
        present = self.wire.present(round_number)
        return {client: float(self.weight[client]) for client in clients.tolist() if client in present}

    def open_session(self, round_number: int) -> None:
        """Open a session with all present clients if one has no keys, unless uploads of the old one have arrived."""
        present = self.wire.present(round_number)
        outside = {n for n in present - self.server.ready if self.excused.get(n, 0) <= round_number}
        if not outside or len(present) < self.min_cohort or self.invited[0] == round_number:
            return
        self.wire.round = round_number
        try:
            self.server.open_session(present)
        except RefusedError as error:
            self.wire.refusals.append(str(error))
        self.exclude(present - self.server.ready, round_number)

    def exclude(self, clients: Set[int], round_number: int) -> None:
        """Exclude clients that failed for some rounds, because a new session costs all clients messages."""
        self.server.ready -= clients
        self.excused |= dict.fromkeys(clients, round_number + ROUNDS_WITHOUT)


class PrivateExecutor(ForwardingExecutor):
    """Any executor, with private scores in place of measurements."""

    def __init__(
        self,
        within: Executor,
        config: ExperimentConfig,
        weight: Vector,
        snapshot: PrivateSnapshot | None = None,
        wire: Wire | None = None,
    ) -> None:
        """A session is opened when it is first needed.

        Args:
            within: runs the clients.
            config: of the experiment.
            weight: q_n of every client.
            snapshot: of an earlier executor of the same config.
            wire: to the clients. None: they are objects of this process, with keys made here.
        """
        super().__init__(within, config)
        self.answers = np.zeros(self.num_clients, np.int64) if snapshot is None else snapshot.answers
        parameters = run_parameters(config)
        self.wire: Any = wire or LocalWire(within, parameters, config.seed)
        self.server = PrivateServer(parameters, self.wire.members, lambda messages: self.wire.exchange(messages))
        self.cohorts = Cohorts(self.server, self.wire, weight, config.protection.min_cohort)

    def snapshot(self) -> PrivateSnapshot:
        """A copy of the present state, which later rounds do not change."""
        return PrivateSnapshot(self.within.snapshot(), self.answers.copy())

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Return scores only: of tables by the protocol, of numbers by rounding."""
        secret = bool(hidden_as(names, "table"))
        if secret:
            self.cohorts.open_session(round_number)
        self.wire.reset()  # a session serves the whole run
        sent = self.wire.measure(params, round_number, clients, names)
        columns = {name: self._read(messages, clients) for name, messages in sent.items()}
        attempts = np.ones(len(clients))
        if secret:
            outcome = self._select(policy_digest(params), round_number, clients)
            columns[SELECTION_METRIC] = np.array([outcome.scores.get(client, np.nan) for client in clients.tolist()])
            attempts *= outcome.attempts
        costs = {"upload_bytes": self.wire.up[clients], "download_bytes": self.wire.down[clients], "attempts": attempts}
        costs |= self._spend(clients)
        return CandidateMetrics(clients, columns, costs, private=True)

    def _select(self, policy: bytes, round_number: int, clients: ClientIds) -> Outcome:
        outcome = self.server.select(round_number, policy, self.cohorts.weights(round_number, clients))
        if outcome.problem:
            reasons = "; ".join([outcome.problem, *self.server.refusals[:3], *self.wire.refusals[:3]])
            warnings.warn(f"round {round_number + 1} has no private scores: {reasons}", stacklevel=2)
        self.answers[list(outcome.scores)] += 1
        return outcome

    def _read(self, messages: Mapping[int, bytes], clients: ClientIds) -> Vector:
        """Decode the numbers that clients sent as scores."""
        received = np.full(len(clients), np.nan)
        for place, client in enumerate(clients.tolist()):
            with suppress(RefusedError):
                received[place] = read_scalar(messages.get(client, b""), client, self.config.protection)
                self.answers[client] += 1
        return received

    def _spend(self, clients: ClientIds) -> dict[str, Vector]:
        epsilon = self.config.protection.epsilon
        return {} if epsilon is None else {"privacy_loss": spent(epsilon, self.answers[clients])}


def policy_digest(params: Params) -> bytes:
    """SHA-256 of every array of the policy a client received, with its type and shape, in the order of the tree."""
    digest = hashlib.sha256()
    for leaf in map(np.asarray, jax.tree.leaves(params)):
        digest.update(f"{leaf.dtype.str}{leaf.shape}".encode() + leaf.tobytes())
    return digest.digest()
