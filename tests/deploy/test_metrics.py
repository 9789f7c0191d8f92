"""Every metric over Flower's messages: as in one process, in the clear and hidden."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, RecordDict

from fedpohcs.core.config import ExperimentConfig, ProtectionConfig
from fedpohcs.core.registries import METRICS, SELECTORS
from fedpohcs.core.types import CandidateMetrics, Selection
from fedpohcs.deploy.codec import to_record
from fedpohcs.deploy.keys import load_members, make_keys
from fedpohcs.deploy.private import make_flower_executor
from fedpohcs.metrics.base import Metric, each
from fedpohcs.runs.experiment import start_training
from fedpohcs.server.selection import Question, Selector, top_k

from .loop import LoopGrid, give_plan
from .test_executor import SHORT, assert_same, in_process, training_on

NUMBERS = ("mean_return", "return_std", "episode_length", "gradient_norm")


def reads_everything(names: tuple[str, ...]) -> Selector:
    """Selects by the return; notes every number, and the size of everything else."""

    def select(question: Question, metrics: CandidateMetrics, state: Any) -> tuple[Selection, Any]:
        scores = {name: x for name, x in metrics.columns.items() if isinstance(x, np.ndarray) and x.ndim == 1}
        if "policy_gradient" in metrics.columns:
            scores["length"] = np.linalg.norm(metrics.column("policy_gradient"), axis=1).astype(float)
        if "weighted_advantage" in metrics.columns:
            scores["pairs"] = np.array([len(table.pair) for table in metrics.column("weighted_advantage")], float)
        return Selection(top_k(metrics.client, metrics.column("mean_return"), question.num_selected), scores), state

    return Selector(select, frozenset(names), private=True)


@pytest.fixture
def config(config: ExperimentConfig, monkeypatch: pytest.MonkeyPatch) -> ExperimentConfig:
    monkeypatch.setitem(SELECTORS, "everything", lambda: reads_everything(tuple(METRICS)))
    monkeypatch.setitem(SELECTORS, "hidden", lambda: reads_everything((*NUMBERS, "weighted_advantage")))
    return replace(config, selector="everything", rounds=2)


@pytest.mark.parametrize("evaluation_every", [1, 2])
def test_every_metric_is_measured_over_messages_as_in_one_process(
    evaluation_every: int, config: ExperimentConfig, states: Path
) -> None:
    config = replace(config, federation=replace(config.federation, evaluation_every=evaluation_every))
    there, here = training_on(LoopGrid(config, states), config), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
        assert not one.round or set(one.selection.scores) == {
            *NUMBERS,
            "gradient_scale",
            "return_gradient",
            "episode_return",
            "update_norm",
            "length",
            "pairs",
        }


def test_every_metric_that_can_be_hidden_is_measured_privately_as_in_one_process(
    config: ExperimentConfig, states: Path, tmp_path: Path
) -> None:
    keys = make_keys(tmp_path / "keys", 4, ["localhost"])
    protection = ProtectionConfig(sketch_size=1024, min_cohort=3, release="scores")
    config = replace(config, selector="hidden", privacy="masked", protection=protection)
    grid, names = LoopGrid(config, states, keys=keys), set()

    def listen(question: Message, answer: Message) -> Message:
        for record in answer.content.array_records.values():
            names.update((name, array.dtype) for name, array in record.items() if name.startswith("measured/"))
        return answer

    grid.fault = listen
    plan = give_plan(grid, config, keys)
    make = partial(make_flower_executor, grid=grid, limits=SHORT, members=load_members(keys.members), plan=plan)
    there, here = start_training(config, make), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
        assert not one.round or set(one.selection.scores) == {*NUMBERS, "selection_metric"}
    assert names == {(f"measured/{name}", "|u1") for name in (*NUMBERS, "weighted_advantage")}


def test_candidates_behind_flower_draw_as_those_of_one_process_with_the_same_nonces(
    config: ExperimentConfig, states: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no message of a node holds its number. Nodes draw nonces from the operating system, so both are given one."""
    monkeypatch.setattr("fedpohcs.privacy.client.PrivateClient._nonce", lambda self: bytes([self.client]) * 16)
    keys = make_keys(tmp_path / "keys", 4, ["localhost"])
    config = replace(config, selector="gradient-sampling", privacy="masked", protection=ProtectionConfig(min_cohort=3))
    grid, sent = LoopGrid(config, states, keys=keys), []

    def listen(question: Message, answer: Message) -> Message:
        for record in answer.content.array_records.values():
            sent.extend(array.data for name, array in record.items() if name.startswith("measured/"))
        return answer

    grid.fault = listen
    plan = give_plan(grid, config, keys)
    make = partial(make_flower_executor, grid=grid, limits=SHORT, members=load_members(keys.members), plan=plan)
    there, here = start_training(config, make), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
        assert not one.round or (len(one.selection.client) and not one.selection.scores)
    assert sent
    for client in range(4):
        assert not any(bytes([client]) * 16 in message for message in sent if client)  # the nonce travels sealed


def spoiled(answer: Message, question: Message, changes: Mapping[str, Any]) -> Message:
    arrays = {**answer.content.array_records["arrays"], **to_record(changes)}
    return Message(RecordDict({"answer": answer.content["answer"], "arrays": ArrayRecord(arrays)}), reply_to=question)


BAD = {
    "a number that is not finite": ({"measured/return_std": np.float64(np.nan)}, "finite", "return_std"),
    "a number that is absurd": ({"measured/episode_length": np.float64(1e13)}, "range", "episode_length"),
    "a number of another type": ({"measured/gradient_norm": np.float32(1)}, "type", "gradient_norm"),
    "a gradient of another size": ({"measured/policy_gradient": np.zeros(20, np.float32)}, "shape", "policy_gradient"),
    "an array nobody asked for": ({"measured/policy_gradient/more": np.zeros(2)}, "names", ""),
    "a table whose keys do not ascend": (
        {
            "measured/weighted_advantage/pair": np.array([2, 1], np.uint64),
            "measured/weighted_advantage/value": np.zeros(2),
        },
        "order",
        "weighted_advantage/pair",
    ),
    "a table whose arrays do not fit": (
        {"measured/weighted_advantage/value": np.zeros(2)},
        "shape",
        "weighted_advantage/value",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_measurement_that_breaks_a_rule_is_left_out_with_its_metric_named(
    kind: str, config: ExperimentConfig, states: Path
) -> None:
    changes, rule, array = BAD[kind]
    grid = LoopGrid(config, states)
    training = training_on(grid, config)
    asked = training.executor.num_clients - 1  # the last client, which is a candidate of round 1

    def fault(question: Message, answer: Message) -> Message:
        measures = any(name.startswith("measured/") for name in answer.content.array_records.get("arrays", {}))
        wrong = measures and question.metadata.dst_node_id == grid.node_of(asked)
        return spoiled(answer, question, changes) if wrong else answer

    grid.fault = fault
    rounds = training.remaining_rounds()
    (bad,) = next(rounds).bad_replies
    named = f"measured/{array}" if array else ""
    assert (bad.client, bad.phase, bad.rule, bad.array) == (asked, "evaluate", rule, named)
    record = next(rounds)
    assert asked not in record.candidates
    assert len(record.candidates)


def fails(context: Any, client: int) -> float:
    raise RuntimeError("the sensor is gone")


def test_a_metric_that_fails_on_a_node_is_an_error_reply_that_names_it(
    config: ExperimentConfig, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS, "own", Metric(each(fails)))
    monkeypatch.setitem(SELECTORS, "everything", lambda: reads_everything(("mean_return", "own")))
    record = next(training_on(LoopGrid(config, states), config).remaining_rounds())
    assert {bad.rule for bad in record.bad_replies} == {"error"}
    for bad in record.bad_replies:
        assert f"metric (='own') failed for client {bad.client}: RuntimeError: the sensor is gone" in bad.text
