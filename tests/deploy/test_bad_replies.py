"""Every kind of bad reply, at every place among six: left out, named and counted; the others are averaged."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import RoundRecord, ServerState
from fedpohcs.deploy.codec import to_record
from fedpohcs.deploy.executor import QUARANTINE_ROUNDS, FlowerExecutor, Limits
from fedpohcs.deploy.protocol import TRAIN, Request, answer_values, request_from, rules_of
from fedpohcs.learners.actor_critic import UpdateInfo
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import load_run
from fedpohcs.server.round import run_round

from .kinds import KINDS, Reply, sound_replies
from .loop import identify_process

K = 6
FEDERATION = FederationConfig(num_clients=K, num_candidates=K, num_selected=K, evaluation_every=10**6)
CONFIG = replace(preset("tabular", selector="full"), federation=FEDERATION)


class ScriptedGrid:
    """Six nodes that answer a training with the replies they were given; their ids are out of order."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.rules = rules_of(config)
        self.clients = {(n * 7919 + 13) % 1009: n for n in range(K)}
        self.replies: list[Reply] = []
        identify_process()

    def get_node_ids(self) -> list[int]:
        return list(self.clients)

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        del timeout
        questions = {self.clients[message.metadata.dst_node_id]: message for message in messages}
        requests = {
            client: request_from(dict(message.content.config_records["request"]), self.rules)
            for client, message in questions.items()
        }
        if next(iter(requests.values())).phase != TRAIN:
            return [Message(self.stamped(request, n), reply_to=questions[n]) for n, request in requests.items()]
        return [
            self.message(questions[reply.client], requests[reply.client], reply)
            for reply in self.replies
            if reply.client in questions
        ]

    def stamped(self, request: Request, client: int) -> RecordDict:
        return RecordDict({"answer": ConfigRecord(answer_values(request.stamp(client), self.rules))})

    def message(self, question: Message, request: Request, reply: Reply) -> Message:
        if reply.error:
            return Message(Error(2, "the simulator\nis gone"), reply_to=question)
        content = self.stamped(request, reply.client)
        steps = np.array(reply.weight, np.int64 if isinstance(reply.weight, int) else np.float64)
        info = {f"info/{name}": np.float64(0.5) for name in UpdateInfo._fields}
        arrays: dict[str, Any] = {f"params/{name}": array for name, array in reply.arrays.items()}
        content["arrays"] = to_record({**arrays, "steps": steps, **info, **reply.more})
        return Message(content, reply_to=question)


class Bench:
    """A server between rounds, and its clients."""

    def __init__(self) -> None:
        self.grid = ScriptedGrid(CONFIG)
        self.executor = FlowerExecutor(CONFIG, grid=self.grid, limits=Limits(startup_timeout=0.01))  # pyright: ignore[reportArgumentType]
        self.state = ServerState(0, self.executor.initial_params(), None)
        self.template = named_arrays(self.state.params)

    def round(self, replies: list[Reply]) -> RoundRecord:
        self.grid.replies = replies
        self.state, record = run_round(self.state, self.executor, SELECTORS["full"](), FEDERATION, 0)
        return record


def assert_mean_of(params: Any, replies: list[Reply], previous: Any) -> None:
    if not replies:
        jax.tree.map(np.testing.assert_array_equal, params, previous)
        return
    total = sum(reply.weight for reply in replies)
    for name, found in named_arrays(params).items():
        mean = sum(reply.weight / total * reply.arrays[name].astype(float) for reply in replies)
        np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("position", range(K))
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_reply_is_left_out_and_named_and_the_run_goes_on(
    kind: str, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    case, bench = KINDS[kind], Bench()
    before = bench.state.params
    replies = sound_replies(bench.template, K, seed=position)
    record = bench.round(case.spoil(replies, position))
    lost = range(K) if case.num_lost is None else [position][: case.num_lost]
    assert_mean_of(bench.state.params, [one for one in replies if one.client not in lost], before)
    assert record.rejected.tolist() == list(lost)
    named = {"first": f"params/{next(iter(bench.template))}", "weight": "steps"}.get(case.array, "")
    blamed = [] if not case.rule else lost or [position]
    assert [(bad.client, bad.phase, bad.rule, bad.array) for bad in record.bad_replies] == [
        (client, "train", case.rule, named) for client in blamed
    ]
    for client in blamed:
        assert any(f"client {client}, round 1: its answer to train" in line for line in caplog.messages)
    following = bench.round(sound_replies(bench.template, K, seed=99))
    assert following.round == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(bench.state.params))
    guilty = [] if case.rule in ("", "error", "twice") else blamed
    assert following.rejected.tolist() == list(guilty)  # left alone for a while
    assert bench.executor.quarantine == dict.fromkeys(guilty, QUARANTINE_ROUNDS)


def test_what_was_left_out_is_in_the_stored_tables(tmp_path: Path) -> None:
    bench = Bench()
    array = next(iter(bench.template))
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        replies = sound_replies(bench.template, K, seed=0)
        folder.append(bench.round(KINDS["infinite weights"].spoil(replies, 4))._replace(round=0))
    rows = (folder.path / "clients.csv").read_text().splitlines()
    assert f"0,4,bad-reply,train/finite/params/{array},1.0" in rows
    assert load_run(folder.path).bad_replies == {"train, finite": 1}


def test_a_late_answer_does_not_hide_the_right_one() -> None:
    """Both come in one phase; the late one bears another attempt."""
    bench = Bench()
    before = bench.state.params
    replies = sound_replies(bench.template, K, seed=0)
    send, stale = bench.grid.send_and_receive, []

    def with_late_ones(messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        answers = send(messages, timeout=timeout)
        late, stale[:] = [Message(one.content, reply_to=messages[n]) for n, one in enumerate(stale)], answers
        return [*late, *answers]

    bench.round(replies)
    bench.state = bench.state._replace(params=before)
    bench.grid.send_and_receive = with_late_ones  # type: ignore[method-assign]
    bench.round(replies)
    record = bench.round(replies)
    assert_mean_of(bench.state.params, replies, before)
    assert [(bad.client, bad.rule) for bad in record.bad_replies] == [(n, "stamp") for n in range(K)]
    assert not len(record.rejected)
    assert not bench.executor.quarantine
