"""A grid whose faults follow a seeded schedule, between the real server and the real clients' code, in one process.

What every client truly computed is kept, with what became of its answer, so that a test can work out what the server
must have made of it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.deploy.client import RemoteClient
from fedpohcs.deploy.codec import params_from_record, to_record
from fedpohcs.deploy.protocol import EVALUATE, HELLO, MEASURE, TRAIN, Request, answer_values, request_from, rules_of
from fedpohcs.execution import make_executor
from fedpohcs.execution.store import ClientStore

from .loop import identify_process

FAULTS = (
    "the question is lost",
    "the answer is lost",
    "the answer is late",
    "the answer comes twice",
    "answers come in another order",
    "the answer is corrupt",
    "the client crashes and forgets everything",
    "the client fails",
    "the client leaves and comes back as another node",
    "the client joins late",
)
TARGETS = ((EVALUATE, 1), (EVALUATE, 2), (MEASURE, 1), (TRAIN, 1))
"""In which phase a fault strikes, and how many clients at once."""
KINDS = {f"{fault}: {phase}, {count}": (fault, phase, count) for fault in FAULTS for phase, count in TARGETS}
STRIKES = 0.6  # share of the exchanges of its phase in which a fault strikes; the first is always struck
AWAY = 2  # exchanges that a node is away


class Fate(NamedTuple):
    """What a client was asked and computed, and whether that arrived in time and whole."""

    request: Request
    arrays: dict[str, Any] | None  # None: it never answered
    arrived: bool


class Clients:
    """All clients of a federation, run by one executor that lasts, as devices keep theirs."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = replace(config, executor="one-by-one", groups=1)
        self.executor = make_executor(self.config)
        self.template = self.executor.initial_params()
        self.evaluated: dict[int, int] = {}  # latest round, by client

    def answer(self, client: int, request: Request, params: ArrayRecord) -> dict[str, Any]:
        remote = RemoteClient(self.config, client, Path(), record=True)
        received = params_from_record(params, self.template)
        due = request.round % self.config.federation.evaluation_every == 0
        if request.phase == MEASURE and due and self.evaluated.get(client) != request.round:
            self.executor.evaluate(received, request.round, np.array([client]))  # the evaluation that it missed
        if request.phase != TRAIN and due:
            self.evaluated[client] = request.round
        return remote._do(self.executor, request, received, {})

    def forget(self, client: int) -> None:
        """A crash: what it kept between rounds is gone."""
        only = np.array([client])
        before_it_acted = ClientStore(self.executor._one, client + 1).take(only)
        self.executor.store.put(only, **before_it_acted._asdict())
        self.executor.history.pop(client, None)
        self.executor.latest.pop(client, None)
        self.evaluated.pop(client, None)


class FaultyGrid:
    """Carries messages to clients and strikes some of them with one kind of fault."""

    def __init__(self, config: ExperimentConfig, kind: str, seed: int) -> None:
        self.fault, self.phase, self.count = KINDS[kind]
        self.generator = np.random.default_rng([seed, list(KINDS).index(kind)])
        self.rules = rules_of(config)
        self.clients = Clients(config)
        n = config.federation.num_clients
        self.absent: dict[int, int] = {}  # client to exchanges until it is back
        if self.fault == "the client joins late":
            self.absent = {int(c): 10**9 for c in self.generator.choice(n, self.count, replace=False)}
        self.nodes = {(c * 7919 + 13) % 1009: c for c in range(n) if c not in self.absent}
        self.fates: dict[tuple[str, int, int], Fate] = {}  # by phase, round and client
        self.broken: Counter[tuple[int, str, str]] = Counter()  # client, phase and rule of what must be left out
        self.late: dict[int, list[Message]] = {}  # by client
        self.struck = 0
        self.attempts: list[int] = []
        identify_process()

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        del timeout
        questions = {self.nodes[message.metadata.dst_node_id]: message for message in messages}
        requests = {
            n: request_from(dict(m.content.config_records["request"]), self.rules) for n, m in questions.items()
        }
        request = next(iter(requests.values()))
        self.attempts.append(request.attempt)
        if request.phase == HELLO:
            return [Message(self._stamped(one, n), reply_to=questions[n]) for n, one in requests.items()]
        strikes = request.phase == self.phase and (not self.struck or self.generator.random() < STRIKES)
        self.struck += strikes
        victims = set()
        if strikes:
            victims = set(
                self.generator.choice(list(questions), min(self.count, len(questions)), replace=False).tolist()
            )
        answers = []
        for client, message in questions.items():
            for late in self.late.pop(client, []):
                answers.append(late)
                self.broken[client, request.phase, "stamp"] += 1
            answers += self._deliver(client, message, requests[client], client in victims)
        if strikes and self.fault == "answers come in another order":
            self.generator.shuffle(answers)  # type: ignore[arg-type]
        self._pass_time(strikes)
        return answers

    def _deliver(self, client: int, message: Message, request: Request, struck: bool) -> list[Message]:
        fault = self.fault if struck else ""
        if fault == "the client crashes and forgets everything":
            self.clients.forget(client)
        if fault in ("the question is lost", "the client crashes and forgets everything", "the client fails") or (
            fault == "the client leaves and comes back as another node"
        ):
            self._note(client, request, None, arrived=False)
            if fault == "the client fails":
                self.broken[client, request.phase, "error"] += 1
                return [Message(Error(2, "Traceback:\n  no such simulator"), reply_to=message)]
            if fault.startswith("the client leaves"):
                self.absent[client] = AWAY
                self.nodes = {node: c for node, c in self.nodes.items() if c != client}
            return []
        arrays = self.clients.answer(client, request, message.content.array_records["params"])
        arrived = fault not in ("the answer is lost", "the answer is late", "the answer is corrupt")
        self._note(client, request, arrays, arrived)
        content = self._stamped(request, client)
        content["arrays"] = to_record(arrays)
        answer = Message(content, reply_to=message)
        if fault == "the answer is lost":
            return []
        if fault == "the answer is late":
            self.late.setdefault(client, []).append(answer)
            return []
        if fault == "the answer comes twice":
            self.broken[client, request.phase, "twice"] += 1
            return [answer, answer]
        if fault == "the answer is corrupt":
            rule, content["arrays"] = self._corrupted(arrays)
            self.broken[client, request.phase, rule] += 1
            return [Message(content, reply_to=message)]
        return [answer]

    def _note(self, client: int, request: Request, arrays: dict[str, Any] | None, arrived: bool) -> None:
        key = (request.phase, request.round, client)
        assert key not in self.fates, "a client was asked twice"
        self.fates[key] = Fate(request, arrays, arrived)

    def _corrupted(self, arrays: dict[str, Any]) -> tuple[str, ArrayRecord]:
        """What a broken memory, program or wire makes of an answer; the rule that notices it."""
        record = to_record(arrays)
        numbers = [name for name, x in arrays.items() if np.size(x) and np.asarray(x).dtype.kind == "f"]
        numbers = [name for name in numbers if not name.startswith("info/")]
        name = numbers[self.generator.integers(len(numbers))]
        good, x = record[name], np.asarray(arrays[name])
        damages = {
            "finite": Array(good.dtype, good.shape, good.stype, np.full_like(x, np.nan).tobytes()),
            "bytes": Array(good.dtype, good.shape, good.stype, good.data[:-1]),
            "shape": Array(good.dtype, (*good.shape, 1), good.stype, good.data),
            "type": Array("<f2", good.shape, good.stype, good.data),
        }
        rule = list(damages)[self.generator.integers(len(damages))]
        return rule, ArrayRecord({key: damages[rule] if key == name else array for key, array in record.items()})

    def _pass_time(self, strikes: bool) -> None:
        """Nodes come back, under new ids; who joins late comes after the first exchange of the phase."""
        if self.fault == "the client joins late" and strikes:
            self.absent = dict.fromkeys(self.absent, 1)
        for client in list(self.absent):
            self.absent[client] -= 1
            if not self.absent[client]:
                del self.absent[client]
                self.nodes[max(self.nodes) + 1] = client

    def _stamped(self, request: Request, client: int) -> RecordDict:
        return RecordDict({"answer": ConfigRecord(answer_values(request.stamp(client), self.rules))})

    def sound(self, phase: str, round_number: int) -> dict[int, dict[str, Any]]:
        """What arrived in time and whole, by client."""
        found = {n: fate for (p, r, n), fate in self.fates.items() if (p, r) == (phase, round_number) and fate.arrived}
        return {n: fate.arrays for n, fate in sorted(found.items()) if fate.arrays is not None}
