"""Private selection in one process: runs the real protocol, in bytes, between client and server objects."""

import hashlib
import warnings
from collections.abc import Mapping, Set
from contextlib import suppress
from functools import cache
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
)
from fedpohcs.execution.forwarding import ForwardingExecutor
from fedpohcs.metrics.base import SELECTION_METRIC, hidden_as
from fedpohcs.privacy.client import PrivateClient
from fedpohcs.privacy.differential import spent
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.ledger import MAX_SESSIONS
from fedpohcs.privacy.masking import Cohort
from fedpohcs.privacy.server import Outcome, PrivateServer, read_scalar
from fedpohcs.privacy.terms import Parameters, run_parameters
from fedpohcs.server.protocols import Executor

ROUNDS_WITHOUT = 5  # after a client failed in the protocol, in which it is left out of sessions
NOBODY: tuple[int, Cohort] = (-1, ())


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
        self.within, self.parameters, self.seed, self.round = within, parameters, seed, 0
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
        tables, numbers = hidden_as(names, "table"), hidden_as(names, "number")
        for row, client in enumerate(clients.tolist()):
            value: dict[str, Any] = {"table": metrics.column(tables[0])[row]} if tables else {}
            if self.parameters.ids_only and numbers:
                value = {"number": float(metrics.column(numbers[0])[row])}
            self.clients[client].prepare(policy, uniform=self._uniform(round_number, client), **value)
        if self.parameters.ids_only:
            return {}
        return {name: self._sent(round_number, name, metrics.column(name), clients) for name in numbers}

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

    def _sent(self, round_number: int, name: str, values: Vector, clients: ClientIds) -> dict[int, bytes]:
        messages = {}
        for client, value in zip(clients.tolist(), values.tolist(), strict=True):
            with suppress(RefusedError):
                messages[client] = self.clients[client].number(round_number, name, value)
                self.up[client] += len(messages[client])
        return messages

    def _uniform(self, round_number: int, client: int) -> Any:
        """Source of noise that depends on the seed of the simulation, so that a run can be repeated."""
        # Most selections draw nothing, so the generator is made with the first draw.
        generator = cache(lambda: host_generator(self.seed, Purpose.PRIVACY_NOISE, round_number, client))
        return lambda: generator().random()


class Cohorts:
    """The clients of private selections: those that the plan draws, as far as they are in the session."""

    def __init__(self, server: PrivateServer, wire: Wire) -> None:
        self.server, self.wire = server, wire
        self.invited = NOBODY  # round and cohort that was invited before its selection
        self.excused: dict[int, int] = {}  # by client: round before which it is left out of sessions
        self.sessions = 0
        self.admission = 0  # round from which a session is opened for clients that are outside the present one

    def cohort(self, round_number: int, asked: ClientIds) -> Cohort:
        """The clients to invite; `asked` where the server names them."""
        number, cohort = self.invited
        if number == round_number:
            return cohort
        if self.server.parameters.ask.drawn:
            return self.server.cohort(round_number)
        return tuple(sorted(set(asked.tolist()) & self.wire.present(round_number)))

    def open_session(self, round_number: int) -> None:
        """Open a session if a client is outside the present one, or a candidate of the round has left it.

        Not if uploads of the present session have arrived. A run has few sessions, so clients outside wait the longer,
        the more there have been.
        """
        present = self.wire.present(round_number)
        wanted = {n for n in present if self.excused.get(n, 0) <= round_number}
        needed = set(self.server.cohort(round_number)) if self.server.parameters.ask.drawn else set()
        complete = wanted <= self.server.roster or round_number < self.admission
        at_hand = complete and needed <= self.server.ready & present
        few = len(wanted) < self.server.parameters.config.min_cohort
        if at_hand or few or self.sessions >= MAX_SESSIONS or self.invited[0] == round_number:
            return
        self.wire.round = round_number
        self.admission, self.sessions = round_number + 2**self.sessions, self.sessions + 1
        try:
            self.server.open_session(wanted)
        except RefusedError as error:
            self.wire.refusals.append(str(error))
        self.exclude(wanted - self.server.ready, round_number)

    def exclude(self, clients: Set[int], round_number: int) -> None:
        """Leave clients that failed out of sessions for some rounds: a session costs all clients messages."""
        self.server.ready -= clients
        self.excused |= dict.fromkeys(clients, round_number + ROUNDS_WITHOUT)


class PrivateExecutor(ForwardingExecutor):
    """Any executor, with private scores in place of measurements."""

    def __init__(
        self,
        within: Executor,
        config: ExperimentConfig,
        snapshot: PrivateSnapshot | None = None,
        wire: Wire | None = None,
        run: bytes | None = None,
    ) -> None:
        """A session is opened when it is first needed.

        Args:
            within: runs the clients.
            config: of the experiment.
            snapshot: of an earlier executor of the same config.
            wire: to the clients. None: they are objects of this process, with keys made here.
            run: name of the run in its plan. None: there is no plan but the config.
        """
        super().__init__(within, config)
        self.answers = np.zeros(self.num_clients, np.int64) if snapshot is None else snapshot.answers
        parameters = run_parameters(config, run)
        self.wire: Any = wire or LocalWire(within, parameters, config.seed)
        self.server = PrivateServer(parameters, self.wire.members, lambda messages: self.wire.exchange(messages))
        self.cohorts = Cohorts(self.server, self.wire)

    def snapshot(self, *, changes: bool = False) -> PrivateSnapshot:
        """A copy of the present state, which later rounds do not change."""
        return PrivateSnapshot(self.within.snapshot(changes=changes), self.answers.copy())

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Return what the plan releases: the clients that the candidates chose, or rounded scores."""
        outcome, cohort = Outcome(), ()
        if secret := sealed_metric(names, self.server.parameters.ids_only):
            self.cohorts.open_session(round_number)
            cohort = self.cohorts.cohort(round_number, clients)
        self.wire.reset()  # a session serves the whole run
        everyone = np.union1d(clients, np.array(cohort, int))
        sent = self.wire.measure(params, round_number, everyone, names)
        columns = {name: self._read(messages, clients) for name, messages in sent.items()}
        if secret:
            outcome = self._select(policy_digest(params), round_number, cohort)
        if secret and outcome.chosen is None:
            name = SELECTION_METRIC if hidden_as([secret], "table") else secret
            columns[name] = np.array([outcome.scores.get(client, np.nan) for client in clients.tolist()])
        chosen = None if outcome.chosen is None else np.array(outcome.chosen, int)
        weight = np.array(outcome.weights) if outcome.weights else None
        costs = {"upload_bytes": self.wire.up[clients], "download_bytes": self.wire.down[clients]}
        costs |= {"attempts": np.ones(len(clients)), **self._spend(clients)}
        return CandidateMetrics(clients, columns, costs, private=True, chosen=chosen, chosen_weight=weight)

    def _select(self, policy: bytes, round_number: int, cohort: Cohort) -> Outcome:
        outcome = self.server.select(round_number, policy, cohort)
        if outcome.problem:
            reasons = "; ".join([outcome.problem, *self.server.refusals[:3], *self.wire.refusals[:3]])
            warnings.warn(
                f"round {round_number + 1} has no private selection and selects at random: {reasons}", stacklevel=2
            )
        self.cohorts.exclude(set(outcome.lost), round_number)
        self.answers[list(outcome.scores if outcome.chosen is None else cohort)] += 1
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


def sealed_metric(names: Set[str], ids_only: bool) -> str | None:
    """The metric that clients exchange under seal: a table, or any metric by which they choose; None if none is."""
    sealed = hidden_as(names, "table") or (sorted(names) if ids_only else [])
    return sealed[0] if sealed else None
