"""Clients behind Flower's Grid, as one more executor of the same round.

Selection, aggregation, records and checkpoints know nothing of it. Who is asked is decided by logical client ids,
which nodes say when they first meet the server; Flower's own node ids are random and decide nothing.
"""

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedpohcs.core.array_rules import BOUNDED, COUNT, NUMBER, ArrayRule, BadReplyError
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import (
    NO_EXTRA,
    BadReply,
    CandidateMetrics,
    ClientIds,
    ClientUpdates,
    Evaluation,
    Extra,
    Params,
)
from fedpohcs.deploy import protocol, require_no_held_out, require_shared, require_trusted
from fedpohcs.deploy.codec import MEASURED, from_record, measured_arrays, measured_name, to_record
from fedpohcs.deploy.device import STATISTICS, own_statistics
from fedpohcs.deploy.eager import EagerGrid
from fedpohcs.deploy.pooling import pool_secretly, pooled
from fedpohcs.deploy.protocol import EVALUATE, HELLO, MEASURE, POOL, PRIVATE, SIMULATE, SPACES, TRAIN, Request
from fedpohcs.execution.clients import initial_params, most_steps
from fedpohcs.learners.base import make_learner
from fedpohcs.metrics.packing import check_arrays, expected_arrays, unpack_columns
from fedpohcs.runs.checks import check_acting
from fedpohcs.server.protocols import RemoteClients
from fedpohcs.server.replies import Stamp, check_stamp, checked_arrays, expected_like
from fedpohcs.worlds import make_world
from fedpohcs.worlds.host import HostWorld
from fedpohcs.worlds.spaces import AnnouncedWorld, announce, announced_world, is_announced

MAX_EMPTY_ROUNDS = 5  # consecutive rounds in which no client trained, after which the run stops
QUARANTINE_ROUNDS = 5  # in which a client is not asked, after an invalid reply
INNOCENT = frozenset({"stamp", "twice", "error"})  # rules that a slow network or a temporary failure can break
SECONDS_PER_POLL = 1.0  # between two polls of the connected nodes, before the first round
COUNTED = "filters/count"
SECRET = ArrayRule(np.uint8, (None,))  # a message of private selection; the protocol checks its content

log = logging.getLogger("fedpohcs")
Arrays = dict[str, np.ndarray]


class Limits(NamedTuple):
    """How long the server waits, and for how many clients."""

    phase_timeout: float = 600.0  # seconds to wait for the replies of a phase
    startup_timeout: float = 600.0  # seconds to wait for the first nodes
    min_clients: int = 0  # connected before the first round; 0: all
    keep_rounds: int = 4  # rounds of states that clients keep: those between the stored checkpoints, and one more

    def check(self, num_clients: int) -> "Limits":
        """Return these limits, or refuse invalid ones."""
        for name in ("phase_timeout", "startup_timeout"):
            require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")
        rule = f"must lie between 0 and num_clients (={num_clients})"
        require(0 <= self.min_clients <= num_clients, "min_clients", self.min_clients, rule)
        return self


class FlowerExecutor:
    """Asks clients through a Grid. An absent, late or failing client, or an invalid reply, is left out and logged."""

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        grid: Grid | EagerGrid,
        record: bool = True,
        snapshot: RemoteClients | None = None,
        limits: Limits | None = None,
        owners: Mapping[int, int] | None = None,
    ) -> None:
        """Wait for the nodes and ask which clients they run.

        Args:
            config: of the experiment; the clients must have been given the same.
            grid: of the Flower run.
            record: not used; clients decide by the selector whether they record episodes.
            snapshot: of an earlier run, whose clients still have their states.
            limits: how long and for whom to wait.
            owners: Flower's node of each client, if known. No other node may then run that client.
        """
        del record
        if snapshot is not None and not isinstance(snapshot, RemoteClients):
            raise UserError("the clients of this run lived in one process. Go on with: fedpohcs resume RUN")
        require_no_held_out(config)
        require_shared(config)
        require_trusted(config)
        self.config = config
        self.num_clients = config.federation.num_clients
        self.grid = grid
        self.limits = (limits or Limits()).check(self.num_clients)
        self.rules = protocol.rules_of(config)
        self.run = snapshot.run if snapshot else uuid.uuid4().hex
        self.announced: AnnouncedWorld | None = None  # by the first node
        self.owners = dict(owners or {})
        self.nodes: dict[int, int] = {}  # node by client
        self.met: set[int] = set()  # nodes that have been greeted, whether they became a client or not
        self.mute: set[int] = set()  # nodes that did not answer the greeting
        self.refused: dict[int, str] = {}  # why a node did not become a client
        self.quarantine: dict[int, int] = {}  # round from which a client is asked again
        self.bad: list[BadReply] = []  # replies that were left out and are not reported yet
        self.upcoming: tuple[frozenset[int], frozenset[str]] = (frozenset(), frozenset())
        self.measured: dict[tuple[int, int], Arrays] = {}  # by round and client, sent with an evaluation
        self.invitations: Mapping[int, bytes] = {}  # of private selection, sent with the next evaluation
        self.attempt = 0
        self.empty_rounds = 0
        self.filters: dict[int, Arrays] = {}  # latest statistics of the clients that send them
        self.default_filter: Arrays = dict(snapshot.default_filter) if snapshot else {}
        self.evaluated = self.added_up = -1  # latest rounds that were evaluated, and whose filters were added up
        self.versions: dict[int, str] = {}  # of the package, by client
        self.known_nodes: dict[int, int] = {}  # node by client, also of clients that have left
        self.last_answers: dict[int, float] = {}  # seconds since 1970, by client
        self._wait_for_clients()
        world = self.announced or make_world(config)
        check_acting(config, world)
        self.learner = make_learner(config.learner, world)
        self.most_steps = most_steps(config, self.learner)
        self.template = named_arrays(self.initial_params())
        self.loses_episodes = isinstance(world, HostWorld)

    def initial_params(self) -> Params:
        """Initial weights; a function of the seed alone."""
        return initial_params(self.learner, self.config.seed)

    def snapshot(self, *, changes: bool = False) -> RemoteClients:
        """The name under which the clients keep their states."""
        del changes  # a name is always whole
        return RemoteClients(self.run, self.default_filter)

    def stored_policy(self, params: Params) -> Mapping[str, np.ndarray]:
        """The parameters, and the default filter if there is one. No client's own filter is stored."""
        due = self.evaluated == self.config.rounds != self.added_up
        if self.config.privacy != "none" and self.config.learner.filter_observations and due:
            self._pool_secretly()
        return {**self.learner.arrays(params), **self.default_filter}

    def _pool_secretly(self) -> None:
        """Get the default filter at the end of a private run; without one the policy is stored alone."""
        self.added_up, protection = self.evaluated, self.config.protection
        size = self.learner.world.observation_size
        try:
            require(protection.epsilon is None, "protection.epsilon", protection.epsilon, "allows no exact sum")
            self.default_filter = pool_secretly(self._pool, sorted(self.nodes), size, protection.min_cohort)
        except UserError as error:
            log.warning("the run has no default filter: %s Devices export with their own: flower export.", error)

    def _pool(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        return self._carried(None, self._request(POOL, self.evaluated), messages, "message")

    def close(self) -> None:
        """Do nothing: this executor has no processes."""

    def expect(self, clients: ClientIds, names: Set[str]) -> None:
        """The next evaluation asks these clients to measure as well, which saves a message."""
        self.upcoming = frozenset(clients.tolist()), frozenset(names)

    def measure(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> CandidateMetrics:
        """Phase one; asks the clients that did not measure with their evaluation."""
        known = self.measurements(params, round_number, clients, names)
        answered = np.array([n for n in clients.tolist() if n in known], int)
        columns = unpack_columns(names, [measured_arrays(known[n]) for n in answered.tolist()])
        return CandidateMetrics(answered, columns, bad=self.reported())

    def measurements(self, params: Params, round_number: int, clients: ClientIds, names: Set[str]) -> dict[int, Arrays]:
        """The valid measurements, by client."""
        known = {n: self.measured[round_number, n] for n in clients.tolist() if (round_number, n) in self.measured}
        self.measured.clear()
        request = self._request(MEASURE, round_number, names)
        missing = [n for n in clients.tolist() if n not in known]
        return known | self._ask(params, dict.fromkeys(missing, request), self._expected_measures(names, params))

    def invite(self, messages: Mapping[int, bytes], round_number: int, params: Params, table: str) -> dict[int, bytes]:
        """Send invitations to private selection; clients first make their tables under the given policy."""
        request, name = self._request(MEASURE, round_number, frozenset({table})), measured_name(table)
        return self._carried(params, request, messages, name)

    def carry(self, messages: Mapping[int, bytes], round_number: int) -> dict[int, bytes]:
        """Send other messages of private selection."""
        return self._carried(None, self._request(PRIVATE, round_number), messages, "message")

    def _carried(
        self, params: Params | None, request: Request, messages: Mapping[int, bytes], name: str
    ) -> dict[int, bytes]:
        requests = {client: request._replace(message=message) for client, message in messages.items()}
        return {n: one[name].tobytes() for n, one in self._ask(params, requests, {name: SECRET}).items()}

    def simulate(
        self, params: Params, round_number: int, clients: ClientIds, extra: Extra, attempt: int
    ) -> ClientUpdates:
        """Training that clients do for the server and do not remember. One without a valid reply has made no steps."""
        request = self._request(SIMULATE, round_number)._replace(draw=attempt)
        answers = self._ask_to_learn(params, request, clients, extra)
        return self._updates(params, clients, answers)  # the next evaluation reports invalid replies

    def train(self, params: Params, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        """Phase two. A client without a valid reply gets a row with 0 steps, so that its weight is 0."""
        answers = self._ask_to_learn(params, self._request(TRAIN, round_number), clients, extra)
        self._count_empty(answers, round_number)
        return self._updates(params, clients, answers)._replace(bad=self.reported())

    def _ask_to_learn(self, params: Params, request: Request, clients: ClientIds, extra: Extra) -> dict[int, Arrays]:
        """The valid updates, by client."""
        expected = {f"params/{name}": rule for name, rule in expected_like(self.template).items()}
        expected |= {"steps": ArrayRule(COUNT, low=1, high=self.most_steps.train)}
        expected |= self._expected_info(self.learner.info)
        return self._ask(params, dict.fromkeys(clients.tolist(), request), expected, extra=extra)

    def _updates(self, params: Params, clients: ClientIds, answers: Mapping[int, Arrays]) -> ClientUpdates:
        """One row per client. The row of a client without an answer is the policy that was sent, after 0 steps."""
        unchanged = {f"params/{name}": array for name, array in named_arrays(params).items()} | {"steps": np.array(0)}
        rows = [answers.get(client, unchanged) for client in clients.tolist()]
        leaves = [
            np.stack([row[f"params/{name}"] for row in rows]) if rows else np.zeros((0, *like.shape), like.dtype)
            for name, like in self.template.items()
        ]
        stacked = jax.tree.unflatten(jax.tree.structure(params), leaves)
        steps = np.array([row["steps"] for row in rows], np.int64)
        info = _stacked_info(rows, self._expected_info(self.learner.info))
        return ClientUpdates(clients, stacked, steps, info)

    def evaluate(self, params: Params, round_number: int, clients: ClientIds) -> Evaluation:
        """Evaluate; the candidates of the next round also measure."""
        wanted, names = self.upcoming
        expected = {
            "mean_return": BOUNDED,
            "steps": ArrayRule(COUNT, low=1, high=self.most_steps.evaluation),
            **self._expected_info(()),
            **self._expected_filter(round_number),
        }
        alone = self._request(EVALUATE, round_number)
        both = self._request(EVALUATE, round_number, names)
        requests = {n: both if n in wanted and names else alone for n in clients.tolist()}
        requests = {n: one._replace(message=self.invitations.get(n, b"")) for n, one in requests.items()}
        answers = self._ask(params, requests, expected, self._expected_measures(names, params))
        self.measured = {(round_number, n): one for n, one in answers.items() if requests[n].measures}
        answered = np.array(sorted(answers), int)
        rows = [answers[n] for n in answered.tolist()]
        self.evaluated = round_number
        self.filters |= {n: {name: one[name] for name in STATISTICS} for n, one in answers.items() if COUNTED in one}
        self.default_filter = pooled(self.filters.values()) or self.default_filter
        returns = np.array([row["mean_return"] for row in rows], float)
        steps = np.array([row["steps"] for row in rows], np.int64)
        return Evaluation(answered, returns, steps, _stacked_info(rows, expected), self.reported())

    def _request(self, phase: str, round_number: int, measures: Set[str] = frozenset()) -> Request:
        oldest = max(0, round_number - self.limits.keep_rounds)
        return Request(phase, round_number, 0, self.run, frozenset(measures), oldest)

    def _ask(
        self,
        params: Params | None,
        requests: Mapping[int, Request],
        expected: Mapping[str, ArrayRule],
        measures: Mapping[str, ArrayRule] | None = None,
        extra: Extra = NO_EXTRA,
    ) -> dict[int, Arrays]:
        """The valid replies by client; `measures` are the further arrays of clients that are asked to measure."""
        if not requests:
            return {}
        first = next(iter(requests.values()))
        number, phase = first.round, first.phase
        self._meet_newcomers(again=phase == EVALUATE)  # one wait per round for a node that hangs
        self.attempt += 1
        # One object for all clients, because Flower sends equal contents once.
        record = {} if params is None else {"params": to_record(named_arrays(params))}
        record |= {"extra": to_record(extra)} if extra else {}
        questions = {
            self.nodes[client]: (client, request._replace(attempt=self.attempt))
            for client, request in requests.items()
            if client in self.nodes and self.quarantine.get(client, 0) <= number
        }
        answers: dict[int, Arrays] = {}
        replies = self._exchange({node: request for node, (_, request) in questions.items()}, record)
        for node, contents in replies.items():
            client, request = questions[node]
            also = measures if measures and request.measures and request.phase != MEASURE else {}
            for content in contents:
                try:
                    arrays = self._checked(content, client, request, {**expected, **also})
                    if client in answers:
                        raise BadReplyError("twice", "came twice")
                    answers[client] = arrays
                    self.last_answers[client] = time.time()
                except BadReplyError as error:
                    self._leave_out(client, request, error)
        silent = [client for client in requests if client not in answers]
        if silent:
            log.warning("round %d, %s: no answer that counts from the clients %s", number, phase, silent)
        return answers

    def _leave_out(self, client: int, request: Request, error: BadReplyError) -> None:
        if error.rule not in INNOCENT:
            self.quarantine[client] = request.round + QUARANTINE_ROUNDS
        self.bad.append(BadReply(client, request.phase, error.rule, error.array, str(error)))

    def reported(self) -> tuple[BadReply, ...]:
        """Replies that were left out since the previous call."""
        bad, self.bad = tuple(self.bad), []
        return bad

    def _exchange(
        self, requests: Mapping[int, Request], records: Mapping[str, ArrayRecord]
    ) -> dict[int, list[RecordDict | Error]]:
        """Send a message to every node and return the replies that arrive in time, ordered by node."""
        messages = []
        for node, request in requests.items():
            content = RecordDict({"request": ConfigRecord(protocol.to_values(request, self.rules))})
            for name, arrays in records.items():
                content[name] = arrays
            if request.message:
                content["message"] = to_record({"message": np.frombuffer(request.message, np.uint8)})
            kind = protocol.MESSAGE_TYPES[request.phase]
            messages.append(Message(content, dst_node_id=node, message_type=kind, group_id=str(request.round)))
        contents: dict[int, list[RecordDict | Error]] = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.limits.phase_timeout) if messages else ():
            node = reply.metadata.src_node_id
            if node in requests:
                contents.setdefault(node, []).append(reply.error if reply.has_error() else reply.content)
        return contents

    def _stamp(self, content: RecordDict | Error) -> Stamp:
        """The request to which a reply belongs."""
        if isinstance(content, Error):
            raise BadReplyError("error", f"is an error: {_reason(content)}")
        if content.config_records.keys() != {"answer"}:
            raise BadReplyError("names", "does not consist of one answer and its arrays")
        try:
            return protocol.stamp_from(content.config_records["answer"], self.rules)
        except UserError as error:
            raise BadReplyError("rules", f"is by other rules: {error}") from error

    def _checked(self, content: Any, client: int, request: Request, expected: Mapping[str, ArrayRule]) -> Arrays:
        check_stamp(self._stamp(content), request.stamp(client))
        if content.array_records.keys() != {"arrays"}:
            raise BadReplyError("names", "does not consist of one answer and its arrays")
        arrays = checked_arrays(from_record(content.array_records["arrays"]), expected)
        if self.config.privacy == "none":
            self._check_measured(request.measures, arrays)
        return arrays

    def _check_measured(self, names: Set[str], arrays: Arrays) -> None:
        try:
            check_arrays(names, measured_arrays(arrays), self.config)
        except BadReplyError as error:
            raise BadReplyError(error.rule, error.text, MEASURED + error.array) from error

    def _meet_newcomers(self, *, again: bool) -> None:
        """Ask new nodes which client they run, with `again` also those that did not reply; forget nodes that left."""
        present = set(self.grid.get_node_ids())
        self.nodes = {client: node for client, node in self.nodes.items() if node in present}
        self.met &= present
        newcomers = sorted(present - self.met - (set() if again else self.mute))
        if not newcomers:
            return
        self.attempt += 1
        request = self._request(HELLO, 0)._replace(attempt=self.attempt)
        for node, contents in self._exchange(dict.fromkeys(newcomers, request), {}).items():
            self.met.add(node)
            content: Any
            for content in contents:
                try:
                    stamp = self._stamp(content)
                    check_stamp(stamp, request.stamp(stamp.client))
                    self._enrol(stamp.client, node, content.config_records["answer"])
                    break
                except (BadReplyError, UserError) as error:
                    self.refused[node] = str(error)
                    log.warning("node %d is not used: %s", node, error)
        self.met |= self.refused.keys() & present
        self.mute = set(newcomers) - self.met

    def _enrol(self, client: int, node: int, said: Mapping[str, Any]) -> None:
        if not 0 <= client < self.num_clients:
            raise UserError(f"client-id (={client}) must be at least 0 and below num_clients (={self.num_clients}).")
        if self.owners and self.owners.get(client) != node:
            owner = f"belongs to node {self.owners[client]}" if client in self.owners else "belongs to no node"
            raise UserError(f"client-id (={client}) {owner} in the list of members.")
        if client in self.nodes:
            raise UserError(f"client-id (={client}) belongs to node {self.nodes[client]} already.")
        self._check_spaces(said.get(SPACES))
        self.nodes[client] = node
        self.known_nodes[client], self.last_answers[client] = node, time.time()
        self.versions[client] = str(said.get("rules.version"))
        self.refused.pop(node, None)

    def _check_spaces(self, text: Any) -> None:
        """Refuse a node whose environment has other spaces than that of the first node."""
        if not is_announced(self.config):
            return
        world = announced_world(text)
        self.announced = self.announced or world
        rule = f"must be those of the first client (={announce(self.announced)})"
        require(world == self.announced, "spaces", text, rule)

    def _wait_for_clients(self) -> None:
        wanted = self.limits.min_clients or self.num_clients
        deadline = time.monotonic() + self.limits.startup_timeout
        shown = -1
        while True:
            self._meet_newcomers(again=True)
            if len(self.nodes) >= wanted:
                return
            if time.monotonic() > deadline:
                reasons = "; ".join(f"node {node}: {reason}" for node, reason in self.refused.items())
                raise UserError(
                    f"only {len(self.nodes)} of {wanted} clients came within {self.limits.startup_timeout:g} s. "
                    + (f"Refused were {reasons}" if reasons else "Start their SuperNodes, or lower min-clients.")
                )
            if len(self.nodes) != shown:
                shown = len(self.nodes)
                log.info("%d of %d clients are here", shown, wanted)
            time.sleep(SECONDS_PER_POLL)

    def _count_empty(self, answers: Mapping[int, Arrays], round_number: int) -> None:
        self.empty_rounds = 0 if answers else self.empty_rounds + 1
        if self.empty_rounds >= MAX_EMPTY_ROUNDS:
            raise UserError(
                f"nobody has trained in the last {self.empty_rounds} rounds, up to round {round_number + 1}. Look at "
                "the logs of the SuperNodes, then go on with --resume."
            )

    def _expected_info(self, names: Iterable[str]) -> dict[str, ArrayRule]:
        """The numbers that are only recorded; losses may have any value."""
        lost = ("lost_episodes",) if self.loses_episodes else ()
        return {f"info/{name}": ArrayRule(NUMBER, finite=False) for name in (*names, *lost)}

    def _expected_filter(self, round_number: int) -> dict[str, ArrayRule]:
        """The statistics that a client sends with its evaluation, unless selection is private."""
        if self.config.privacy != "none" or not self.config.learner.filter_observations:
            return {}
        like = self.learner.stored_filters(jax.tree.map(lambda x: np.asarray(x)[None], self.learner.init_filters()))
        rules = {name: ArrayRule(array.dtype, array.shape) for name, array in own_statistics(like).items()}
        if COUNTED in rules:
            rules[COUNTED] = rules[COUNTED]._replace(low=0, high=self._most_observations(round_number))
            rules["filters/variance"] = rules["filters/variance"]._replace(low=0)
        return rules

    def _most_observations(self, round_number: int) -> float:
        """More than a client can have counted, so that none outweighs all others in the default filter."""
        warmed_up = self.config.learner.filter_warmup_steps + self.most_steps.evaluation + self.learner.batch_length
        a_round = self.most_steps.train + self.config.filter_weight * self.most_steps.evaluation
        return 2.0 * (warmed_up + (round_number + 1) * a_round)

    def _expected_measures(self, names: Set[str], params: Params) -> dict[str, ArrayRule]:
        """The arrays that a client sends for these metrics; with privacy one message per metric."""
        if self.config.privacy != "none":
            return {measured_name(name): SECRET for name in names}
        return {measured_name(name): rule for name, rule in expected_arrays(names, self.config, params).items()}


def _reason(error: Error) -> str:
    return " ".join((error.reason or "failed").split())  # one line: it goes into the log


def _stacked_info(rows: list[Arrays], expected: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """By name, one number per client; NaN for a client without a reply."""
    names = [name for name in expected if name.startswith("info/")]
    return {name.removeprefix("info/"): np.array([row.get(name, np.nan) for row in rows], float) for name in names}
