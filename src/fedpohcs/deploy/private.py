"""Private selection over Flower: the same protocol and server as in one process, with clients behind the grid.

A session costs three messages to every client, once. A round costs one more message to each candidate than in the
clear: its invitation travels with the evaluation before it, and its upload with the answer.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import CandidateMetrics, ClientIds, Evaluation, Params
from fedpohcs.deploy import require_masked
from fedpohcs.deploy.codec import measured_name
from fedpohcs.deploy.eager import EagerGrid
from fedpohcs.deploy.executor import FlowerExecutor, Limits
from fedpohcs.execution.private import NOBODY, PrivateExecutor, PrivateSnapshot, policy_digest, sealed_metric
from fedpohcs.metrics.base import hidden_as
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.messages import Kind, parse
from fedpohcs.privacy.plan import check_plan, server_plan
from fedpohcs.server.protocols import Executor, RemoteClients


def make_flower_executor(
    config: ExperimentConfig,
    *,
    grid: Grid | EagerGrid,
    limits: Limits | None = None,
    members: Mapping[int, bytes] | None = None,
    owners: Mapping[int, int] | None = None,
    plan: bytes = b"",
    record: bool = True,
    snapshot: Any = None,
) -> Executor:
    """Clients behind a grid, protected as `config.privacy` says.

    `members` are their Ed25519 public keys, `owners` their nodes, if known; `plan` is the signed plan of a private run.
    """
    if config.privacy == "none":
        return FlowerExecutor(config, grid=grid, record=record, snapshot=snapshot, limits=limits, owners=owners)
    missing = [n for n in range(config.federation.num_clients) if n not in (members or {})]
    if missing:
        raise UserError(f"members must list the key of every client, but lacks those of {missing[:5]}.")
    if snapshot is not None and not isinstance(snapshot, PrivateSnapshot):
        raise UserError("the clients of this run lived in one process. Go on with: fedpohcs resume RUN")
    require_masked(config)
    try:
        known = server_plan(plan)
        check_plan(known, config, members or {})
    except RefusedError as error:
        raise UserError(f"plan: {error}.") from error
    remote: RemoteClients | None = snapshot.clients if snapshot else None
    within = FlowerExecutor(config, grid=grid, record=record, snapshot=remote, limits=limits, owners=owners)
    # Of the plan's config, because a run may end earlier.
    return RemotePrivateExecutor(
        within, replace(config, rounds=known.config.rounds), members or {}, known.run, snapshot
    )


class GridWire:
    """Carries messages over the grid, and counts their bytes by client."""

    def __init__(self, within: FlowerExecutor, members: Mapping[int, bytes]) -> None:
        self.within, self.members = within, dict(members)
        self.round, self.params = 0, None  # round and policy of the invitations
        self.ids_only = within.config.protection.release == "ids"
        self.metric = ""  # for which clients are invited
        self.sent: Mapping[int, bytes] = {}  # messages sent with the latest evaluation
        self.came: dict[int, bytes] = {}  # replies that came with it
        self.reset()

    def reset(self) -> None:
        """Set all counts to 0."""
        self.down, self.up = np.zeros((2, self.within.num_clients), np.int64)
        self.refusals: list[str] = []

    def present(self, round_number: int) -> set[int]:
        """The clients that have a node and are not in quarantine."""
        quarantine = self.within.quarantine
        return {client for client in self.within.nodes if quarantine.get(client, 0) <= round_number}

    def measure(
        self, params: Params, round_number: int, clients: ClientIds, names: Set[str]
    ) -> dict[str, dict[int, bytes]]:
        """Single numbers; a table is measured when its client is invited."""
        self.round, self.params = round_number, params
        early = {n: arrays for (number, n), arrays in self.within.measured.items() if number == round_number}
        if secret := sealed_metric(names, self.ids_only):
            self.metric = secret
            self.came = {n: arrays[measured_name(secret)].tobytes() for n, arrays in early.items()}
        wanted = [] if self.ids_only else hidden_as(names, "number")
        answers = self.within.measurements(params, round_number, clients, frozenset(wanted)) if wanted else {}
        sent = {name: {n: one[measured_name(name)].tobytes() for n, one in answers.items()} for name in wanted}
        for messages in sent.values():
            for client, message in messages.items():
                self.up[client] += len(message)
        return sent

    def exchange(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Send messages that no evaluation carried. An empty reply is a refusal; the client logs the reason."""
        early = {client for client, message in messages.items() if self.sent.get(client) == message}
        late = {client: message for client, message in messages.items() if client not in early}
        kinds = {parse(message).kind for message in messages.values()}
        answers = {client: self.came[client] for client in early if client in self.came}
        if kinds == {Kind.INVITATION}:
            answers |= self.within.invite(late, self.round, self.params, self.metric)
        else:
            answers |= self.within.carry(late, self.round)
        for client, message in messages.items():
            self.down[client] += len(message)
            self.up[client] += len(answers.get(client, b""))
        refused = {client for client, answer in answers.items() if not answer}
        self.refusals += [f"client {client} refused; its log says why" for client in sorted(refused)]
        return {client: answer for client, answer in answers.items() if answer}


class RemotePrivateExecutor(PrivateExecutor):
    """Private scores of remote clients. A client without a score cannot be selected."""

    within: FlowerExecutor
    wire: GridWire

    def __init__(
        self,
        within: FlowerExecutor,
        config: ExperimentConfig,
        members: Mapping[int, bytes],
        run: bytes,
        snapshot: PrivateSnapshot | None = None,
    ) -> None:
        super().__init__(within, config, snapshot, wire=GridWire(within, members), run=run)
        self.upcoming: tuple[ClientIds, Set[str]] = (np.arange(0), frozenset())

    def expect(self, clients: ClientIds, names: Set[str]) -> None:
        """Choose the clients that the next evaluation invites."""
        self.upcoming = clients, frozenset(names)

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Evaluate; the candidates of the next round add their hidden upload to the reply."""
        upcoming, names = self.upcoming
        self.wire.sent, self.cohorts.invited = {}, NOBODY
        if round_number >= self.config.rounds:  # nothing is selected after the last round
            upcoming = upcoming[:0]
        elif sealed_metric(names, self.wire.ids_only):
            self.cohorts.open_session(round_number)
            cohort = self.cohorts.cohort(round_number, upcoming)
            self.wire.sent = self.server.first_invitations(round_number, policy_digest(params), cohort)
            self.cohorts.invited = (round_number, cohort) if self.wire.sent else NOBODY
            upcoming = np.array(sorted(self.wire.sent), int)
        self.within.invitations = self.wire.sent
        self.within.expect(upcoming, names)
        return self.within.evaluate(params, round_number, clients)

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """What came of the cohort; if nothing did, NaN for all present clients, so that the choice is random."""
        metrics = super().measure(params, round_number, clients, names)
        if metrics.chosen is not None:
            return metrics.take(np.isin(clients, self.server.cohort(round_number)))._replace(bad=self.within.reported())
        scored = np.ones(len(clients), bool)
        for scores in metrics.columns.values():
            scored &= np.isfinite(scores)
        kept = scored if scored.any() else np.isin(clients, list(self.wire.present(round_number)))
        return metrics.take(kept)._replace(bad=self.within.reported())
