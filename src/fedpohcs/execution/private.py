"""Clients whose measurements are private: really runs the protocol between client and server objects, in bytes."""

import hashlib
import warnings
from collections.abc import Set
from typing import Any, NamedTuple

import jax
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.config import ExperimentConfig
from fedpohcs.execution.base import Executor
from fedpohcs.privacy.differential import spent
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.protocol import Outcome, Parameters, PrivateClient, PrivateServer, read_scalar
from fedpohcs.randomness import Purpose, host_generator
from fedpohcs.types import CandidateMetrics, ClientIds, ClientUpdates, Evaluation, Params, Vector, WeightedAdvantage


class PrivateSnapshot(NamedTuple):
    """What is stored of private clients. No key is: whoever goes on with the run makes new ones."""

    clients: Any  # of the executor within
    answers: np.ndarray  # [N] scores each client has given away


class Wire:
    """Carries messages between the server and client objects, and counts their bytes by client."""

    def __init__(self, clients: dict[int, PrivateClient]) -> None:
        self.clients = clients
        self.reset()

    def reset(self) -> None:
        """Count anew."""
        self.down, self.up = np.zeros((2, len(self.clients)), np.int64)
        self.refusals: list[str] = []

    def exchange(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Deliver, and bring back the answers of those that do not refuse."""
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


class PrivateExecutor:
    """Any executor, with scores in place of what its clients measure."""

    def __init__(
        self, within: Executor, config: ExperimentConfig, weight: Vector, snapshot: PrivateSnapshot | None = None
    ) -> None:
        """Open a session with fresh keys.

        Args:
            within: runs the clients.
            config: of the experiment.
            weight: q_n of every client.
            snapshot: of an earlier executor of the same config.
        """
        self.within, self.config, self.weight = within, config, weight
        self.num_clients, self.most_steps = within.num_clients, within.most_steps
        self.answers = np.zeros(self.num_clients, np.int64) if snapshot is None else snapshot.answers
        run = hashlib.sha256(f"{config.world}/{config.level}/{config.seed}".encode()).digest()
        self.parameters = Parameters(config.privacy, run, config.protection)
        identities = {client: Ed25519PrivateKey.generate() for client in range(self.num_clients)}
        members = {client: identity.public_key().public_bytes_raw() for client, identity in identities.items()}
        self.wire = Wire({c: PrivateClient(c, self.parameters, key, members) for c, key in identities.items()})
        self.server = PrivateServer(self.parameters, members, lambda messages: self.wire.exchange(messages))

    def initial_params(self) -> Params:
        """As within."""
        return self.within.initial_params()

    def expect(self, clients: ClientIds, names: Set[str]) -> None:
        """As within."""
        self.within.expect(clients, names)

    def client_filters(self) -> Any:
        """As within."""
        return self.within.client_filters()

    def close(self) -> None:
        """As within."""
        self.within.close()

    def train(self, params: Params, round_number: int, clients: ClientIds) -> ClientUpdates:
        """As within."""
        return self.within.train(params, round_number, clients)

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """As within."""
        return self.within.evaluate(params, round_number, clients)

    def snapshot(self) -> PrivateSnapshot:
        """The present state, which later rounds do not touch."""
        return PrivateSnapshot(self.within.snapshot(), self.answers.copy())

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Scores alone: of tables by the protocol, of single numbers by rounding."""
        metrics = self.within.measure(params, round_number, clients, names)
        self.wire.reset()
        mean_return = self._scalars(metrics.mean_return, round_number, clients)
        gradient_norm = self._scalars(metrics.gradient_norm, round_number, clients)
        scores, attempts = None, np.ones(len(clients))
        if metrics.weighted_advantage is not None:
            outcome = self._select(policy_digest(params), round_number, clients, metrics.weighted_advantage)
            scores = np.array([outcome.scores.get(client, np.nan) for client in clients.tolist()])
            attempts *= outcome.attempts
        costs = {"upload_bytes": self.wire.up[clients], "download_bytes": self.wire.down[clients], "attempts": attempts}
        costs |= self._spend(clients)
        return CandidateMetrics(clients, mean_return, gradient_norm, selection_metric=scores, costs=costs)

    def _select(
        self, policy: bytes, round_number: int, clients: ClientIds, tables: tuple[WeightedAdvantage, ...]
    ) -> Outcome:
        if not self.server.ready:
            self.server.open_session(range(self.num_clients))
            self.wire.reset()  # the session serves the whole run
        for client, table in zip(clients.tolist(), tables, strict=True):
            self.wire.clients[client].prepare(policy, table, self._uniform(round_number, client))
        weights = {client: float(self.weight[client]) for client in clients.tolist()}
        outcome = self.server.select(round_number, policy, weights)
        if outcome.problem:
            reasons = "; ".join([outcome.problem, *self.server.refusals[:3], *self.wire.refusals[:3]])
            warnings.warn(f"round {round_number + 1} has no private scores: {reasons}", stacklevel=2)
        self.answers[list(outcome.scores)] += 1
        return outcome

    def _scalars(self, values: Vector | None, round_number: int, clients: ClientIds) -> Vector | None:
        """Numbers that are a score by themselves, as the server reads them."""
        if values is None:
            return None
        received = np.full(len(clients), np.nan)
        for place, (client, value) in enumerate(zip(clients.tolist(), values.tolist(), strict=True)):
            sender = self.wire.clients[client]
            sender.prepare(b"", EMPTY, self._uniform(round_number, client))
            try:
                message = sender.scalar(value)
            except RefusedError:
                continue
            self.wire.up[client] += len(message)
            self.answers[client] += 1
            received[place] = read_scalar(message, client, self.config.protection)
        return received

    def _spend(self, clients: ClientIds) -> dict[str, Vector]:
        epsilon = self.config.protection.epsilon
        return {} if epsilon is None else {"privacy_loss": spent(epsilon, self.answers[clients])}

    def _uniform(self, round_number: int, client: int) -> Any:
        """Noise of a simulation comes from its seed, so that a run can be repeated."""
        return host_generator(self.config.seed, Purpose.PRIVACY_NOISE, round_number, client).random


EMPTY = WeightedAdvantage(np.empty(0, np.uint64), np.empty(0))


def policy_digest(params: Params) -> bytes:
    """SHA-256 of every array of the policy a client received, with its type and shape, in the order of the tree."""
    digest = hashlib.sha256()
    for leaf in map(np.asarray, jax.tree.leaves(params)):
        digest.update(f"{leaf.dtype.str}{leaf.shape}".encode() + leaf.tobytes())
    return digest.digest()
