"""The same round over Flower's messages: equal results, faults, and going on after a stop."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedpohcs.core.config import AttackConfig, DefenceConfig, ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.types import RoundRecord
from fedpohcs.deploy import executor as module
from fedpohcs.deploy.executor import FlowerExecutor, Limits
from fedpohcs.runs import checks, experiment
from fedpohcs.runs.experiment import Training, resume_experiment, run_experiment, start_training

from .loop import LoopGrid, node_config

SHORT = Limits(startup_timeout=0.01)

pytestmark = pytest.mark.usefixtures("no_sleep")


def training_on(grid: LoopGrid, config: ExperimentConfig, limits: Limits = SHORT) -> Training:
    return start_training(config, partial(FlowerExecutor, grid=grid, limits=limits))


def in_process(config: ExperimentConfig) -> Training:
    return start_training(replace(config, executor="one-by-one"))


def assert_same(one: RoundRecord, other: RoundRecord) -> None:
    np.testing.assert_array_equal(one.candidates, other.candidates)
    np.testing.assert_array_equal(one.selection.client, other.selection.client)
    np.testing.assert_array_equal(one.train_steps, other.train_steps)
    np.testing.assert_array_equal(one.evaluation.mean_return, other.evaluation.mean_return)
    assert one.upload_bytes == other.upload_bytes
    for mine, theirs in ((one.selection.scores, other.selection.scores), (one.updates_info, other.updates_info)):
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


@pytest.mark.parametrize(
    "selector", ["fedavg", "power-of-choice", "gradient-norm", "fedpohcs", "fedpohcs-one-phase", "full"]
)
def test_a_run_over_messages_equals_one_in_process(selector: str, config: ExperimentConfig, states: Path) -> None:
    config = replace(config, selector=selector)
    there, here = training_on(LoopGrid(config, states), config), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
    jax.tree.map(np.testing.assert_array_equal, there.state.params, here.state.params)


@pytest.mark.parametrize("change", [{"missing": "predicted"}, {"episodes": 4}])
def test_every_kind_of_table_travels(change: dict[str, object], config: ExperimentConfig, states: Path) -> None:
    config = replace(config, rounds=2, modelling=replace(config.modelling, **change))
    rounds = training_on(LoopGrid(config, states), config).remaining_rounds()
    for one, other in zip(rounds, in_process(config).remaining_rounds(), strict=True):
        assert_same(one, other)


def test_rounds_without_evaluation_equal_those_in_process(config: ExperimentConfig, states: Path) -> None:
    config = replace(config, federation=replace(config.federation, evaluation_every=2))
    rounds = training_on(LoopGrid(config, states), config).remaining_rounds()
    for one, other in zip(rounds, in_process(config).remaining_rounds(), strict=True):
        assert_same(one, other)


def test_an_evaluation_brings_what_the_next_measuring_needs(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)
    list(training_on(grid, config).remaining_rounds())
    assert grid.counts == {"query.hello": 4, "evaluate": 4 * 4, "train": 3 * 2}


@pytest.mark.parametrize("attack", [AttackConfig("inflated-table", (1,)), AttackConfig("zero-update", "one-selected")])
def test_lies_and_defences_over_messages_equal_those_in_process(
    attack: AttackConfig, config: ExperimentConfig, states: Path
) -> None:
    config = replace(config, attack=attack, defence=DefenceConfig(table_clip=1.0, max_selections=2, window=3))
    grid = LoopGrid(config, states)
    there, here = training_on(grid, config), in_process(config)
    capped = 0
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
        np.testing.assert_array_equal(one.capped, other.capped)
        capped += len(one.capped)
    assert capped
    assert "query.measure" not in grid.counts  # whom the cap leaves is known when the evaluation is sent


def test_a_silent_candidate_is_not_selected_and_the_round_goes_on(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)
    rounds = training_on(grid, config).remaining_rounds()
    next(rounds)
    gone = int(next(rounds).selection.client[0])
    grid.fault = lambda question, answer: None if question.metadata.dst_node_id == grid.node_of(gone) else answer
    for record in rounds:
        trained = record.selection.client[~np.isin(record.selection.client, record.rejected)]
        assert len(trained)
        assert gone not in trained
        assert gone not in record.evaluation.client


def test_a_node_that_leaves_is_not_asked_again(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)
    rounds = training_on(grid, config).remaining_rounds()
    next(rounds)
    del grid.node_configs[grid.node_of(2)]
    for record in rounds:
        np.testing.assert_array_equal(record.evaluation.client, [0, 1, 3])


def test_a_node_that_joins_late_is_used_from_the_next_round(config: ExperimentConfig, states: Path) -> None:
    config = replace(config, selector="full")
    grid = LoopGrid(config, states, clients=[0, 1, 2])
    rounds = training_on(grid, config, Limits(startup_timeout=0.01, min_clients=3)).remaining_rounds()
    assert len(next(rounds).evaluation.client) == 3
    np.testing.assert_array_equal(next(rounds).rejected, [3])
    grid.node_configs[77] = node_config(3, states)
    record = next(rounds)
    assert not len(record.rejected)
    assert len(record.evaluation.client) == 4


def test_a_client_that_comes_back_as_another_node_goes_on_as_if_nothing_was(
    config: ExperimentConfig, states: Path
) -> None:
    grid = LoopGrid(config, states)
    for one, other in zip(
        training_on(grid, config).remaining_rounds(), in_process(config).remaining_rounds(), strict=True
    ):
        assert_same(one, other)
        grid.node_configs = {node + 1: given for node, given in grid.node_configs.items()}


def test_a_node_that_hangs_is_greeted_once_per_round(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states, clients=[0, 1, 2])
    rounds = training_on(grid, config, Limits(startup_timeout=0.01, min_clients=3)).remaining_rounds()
    next(rounds)
    grid.node_configs[5000] = node_config(3, states)
    grid.fault = lambda question, answer: None if question.metadata.dst_node_id == 5000 else answer
    greeted = []
    for _ in rounds:
        greeted.append(grid.counts["query.hello"] - 3)
    assert greeted == [2, 3, 4]


def test_a_late_client_is_measured_as_if_it_had_been_there(config: ExperimentConfig, states: Path) -> None:
    """Its table of a round is the one it would have made, because it plays the evaluation it missed."""
    everyone, names = np.arange(4), frozenset({"weighted_advantage", "mean_return"})
    grid = LoopGrid(config, states)
    executor = training_on(grid, config).executor
    params = executor.initial_params()
    before = executor.measure(params, 0, everyone, names)
    executor.evaluate(params, 0, everyone)
    after = executor.measure(params, 0, everyone, names)
    jax.tree.map(np.testing.assert_array_equal, before, after)


def changed(name: str, change: Callable[[Array], Array | None]) -> Callable[[Message, Message], Message]:
    """A client whose trained update is wrong in one array."""

    def fault(question: Message, answer: Message) -> Message:
        if question.metadata.message_type != "train":
            return answer
        arrays = dict(answer.content.array_records["arrays"])
        wrong = change(arrays[name]) if name in arrays else change(Array("<f4", (1,), "fedpohcs.plain", b"0000"))
        arrays = {key: x for key, x in (arrays | {name: wrong}).items() if x is not None}
        content = RecordDict({"answer": answer.content["answer"], "arrays": ArrayRecord(arrays)})
        return Message(content, reply_to=question)

    return fault


def plain(x: np.ndarray) -> Array:
    return Array(x.dtype.str, x.shape, "fedpohcs.plain", x.tobytes())


KERNEL = "params/policy/layers/0/kernel"
MISTAKES = {
    "not finite": changed(KERNEL, lambda old: plain(np.full(old.shape, np.nan, old.dtype))),
    "infinite": changed(KERNEL, lambda old: plain(np.full(old.shape, np.inf, old.dtype))),
    "another shape": changed(KERNEL, lambda old: plain(np.zeros((1, *old.shape), old.dtype))),
    "a shape that would broadcast": changed(KERNEL, lambda old: plain(np.zeros((1, 1), old.dtype))),
    "another type": changed(KERNEL, lambda old: plain(np.zeros(old.shape, np.float64))),
    "an object array": changed(KERNEL, lambda old: Array("|O", old.shape, "fedpohcs.plain", old.data)),
    "another layout": changed(KERNEL, lambda old: Array(np.zeros(old.shape, old.dtype))),
    "more promised than sent": changed(KERNEL, lambda old: Array(old.dtype, old.shape, old.stype, old.data[:-4])),
    "an array is missing": changed(KERNEL, lambda old: None),
    "an array is too much": changed("params/virus", lambda old: old),
    "no steps": changed("steps", lambda old: plain(np.int64(0).reshape(()))),
    "negative steps": changed("steps", lambda old: plain(np.int64(-5).reshape(()))),
    "absurd steps": changed("steps", lambda old: plain(np.int64(10**9).reshape(()))),
}


def restamped(**values: object) -> Callable[[Message, Message], Message]:
    def fault(question: Message, answer: Message) -> Message:
        if question.metadata.message_type != "train":
            return answer
        stamp = ConfigRecord(dict(answer.content.config_records["answer"]) | values)  # pyright: ignore[reportArgumentType]
        return Message(RecordDict({"answer": stamp, "arrays": answer.content["arrays"]}), reply_to=question)

    return fault


MISTAKES |= {
    "of another round": restamped(round=99),
    "of another attempt": restamped(attempt=0),
    "of another client": restamped(client=3),
    "of another phase": restamped(phase="evaluate"),
    "by another protocol": restamped(**{"rules.protocol": 0}),
    "with text for a number": restamped(round="0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_update_never_touches_the_policy(mistake: str, config: ExperimentConfig, states: Path) -> None:
    config = replace(config, selector="fedavg", rounds=1)
    grid = LoopGrid(config, states)
    training = training_on(grid, config)
    rounds = training.remaining_rounds()
    next(rounds)
    before = training.state.params
    grid.fault = MISTAKES[mistake]
    record = next(rounds)
    np.testing.assert_array_equal(record.rejected, record.selection.client)
    jax.tree.map(np.testing.assert_array_equal, training.state.params, before)


def test_a_client_that_sent_nonsense_is_left_alone_for_some_rounds(config: ExperimentConfig, states: Path) -> None:
    config = replace(config, selector="full", rounds=2)
    grid = LoopGrid(config, states)
    training = training_on(grid, config)
    rounds = training.remaining_rounds()
    next(rounds)
    bad = grid.node_of(1)
    spoil = MISTAKES["not finite"]
    grid.fault = lambda question, answer: spoil(question, answer) if question.metadata.dst_node_id == bad else answer
    assert next(rounds).rejected.tolist() == [1]
    grid.fault = lambda question, answer: answer
    assert next(rounds).rejected.tolist() == [1]
    assert training.executor.quarantine == {1: module.QUARANTINE_ROUNDS}  # pyright: ignore[reportAttributeAccessIssue]


def test_an_answer_that_comes_twice_counts_once(config: ExperimentConfig, states: Path) -> None:
    class Doubling(LoopGrid):
        def send_and_receive(self, messages, *, timeout=None):  # type: ignore[no-untyped-def]
            return [copy for one in super().send_and_receive(messages, timeout=timeout) for copy in (one, one)]

    config = replace(config, rounds=1)
    rounds = training_on(Doubling(config, states), config).remaining_rounds()
    for one, other in zip(rounds, in_process(config).remaining_rounds(), strict=True):
        assert_same(one, other)


def test_empty_rounds_keep_the_policy_and_end_the_run_after_five(config: ExperimentConfig, states: Path) -> None:
    config = replace(config, rounds=9)
    grid = LoopGrid(config, states)
    training = training_on(grid, config)
    rounds = training.remaining_rounds()
    next(rounds)
    before = training.state.params
    grid.fault = lambda question, answer: None
    for _ in range(module.MAX_EMPTY_ROUNDS - 1):
        next(rounds)
        assert training.state.params is before
    with pytest.raises(UserError, match="nobody has trained in the last 5 rounds"):
        next(rounds)


def test_two_nodes_with_one_client_id_are_refused_by_name(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)
    grid.node_configs[grid.node_of(3)] = {"client-id": 1}
    with pytest.raises(UserError, match=r"only 3 of 4 clients came .* client-id \(=1\) belongs to node"):
        training_on(grid, config)


def test_the_id_of_an_absent_client_cannot_be_taken(config: ExperimentConfig, states: Path) -> None:
    """Node 900 is registered for no client, and the node of client 1 claims to be client 3."""
    grid = LoopGrid(config, states, clients=[0, 1, 2])
    owners = {client: grid.node_of(client) for client in range(3)} | {3: 55}
    grid.node_configs[900] = node_config(3, states)
    with pytest.raises(UserError, match=r"only 3 of 4 .* client-id \(=3\) belongs to node 55 in the list of members"):
        FlowerExecutor(config, grid=grid, limits=SHORT, owners=owners)
    grid.node_configs[grid.node_of(1)] = node_config(3, states)
    with pytest.raises(UserError, match="only 2 of 4"):
        FlowerExecutor(config, grid=grid, limits=SHORT, owners=owners)
    del owners[3]
    with pytest.raises(UserError, match=r"client-id \(=3\) belongs to no node in the list of members"):
        FlowerExecutor(config, grid=grid, limits=SHORT, owners=owners)


def test_the_owner_of_a_client_id_is_taken(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)
    owners = {client: grid.node_of(client) for client in range(4)}
    assert FlowerExecutor(config, grid=grid, limits=SHORT, owners=owners).nodes == owners


def test_a_node_without_a_client_id_is_told_how_to_get_one(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)
    grid.node_configs[grid.node_of(3)] = {}
    with pytest.raises(UserError, match="flower-supernode --node-config 'client-id=0'"):
        training_on(grid, config)


def test_a_client_id_beyond_the_population_is_refused(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)
    grid.node_configs[grid.node_of(3)] = {"client-id": 4}
    with pytest.raises(UserError, match=r"client-id \(=4\) must be at least 0 and below num_clients \(=4\)"):
        training_on(grid, config)


def test_a_client_with_another_config_is_refused_and_both_are_named(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(replace(config, seed=1), states)
    with pytest.raises(UserError, match=r"protocol 5, config [0-9a-f]{16}.* there; protocol 5, config [0-9a-f]{16}"):
        training_on(grid, config)


def test_a_client_of_an_older_protocol_is_refused_and_both_are_named(config: ExperimentConfig, states: Path) -> None:
    grid = LoopGrid(config, states)

    def older(question: Message, answer: Message) -> Message:
        stamp = ConfigRecord(dict(answer.content.config_records["answer"]) | {"rules.protocol": 2})
        return Message(RecordDict({"answer": stamp}), reply_to=question)

    grid.fault = older
    with pytest.raises(UserError, match=r"protocol 2, config [0-9a-f]{16}, fedpohcs .* there; protocol 5"):
        training_on(grid, config)


@pytest.mark.parametrize("selector", ["fedpohcs", "power-of-choice"])
def test_fewer_candidates_than_wanted_are_all_selected(selector: str, config: ExperimentConfig, states: Path) -> None:
    config = replace(config, selector=selector, federation=replace(config.federation, num_candidates=4))
    grid = LoopGrid(config, states)
    rounds = training_on(grid, config).remaining_rounds()
    next(rounds)
    grid.node_configs = {grid.node_of(1): {"client-id": 1}}
    assert list(rounds)[-1].selection.client.tolist() == [1]


class Interrupted(Exception):  # noqa: N818
    """Stands for a server that dies."""


class StopAfter:
    def __init__(self, round_number: int) -> None:
        self.round = round_number

    def on_start(self, config: ExperimentConfig) -> None: ...

    def on_finish(self) -> None: ...

    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.round:
            raise Interrupted


def tables(folder: Path) -> list[str]:
    return [(folder / f"{name}.csv").read_text() for name in ("rounds", "clients")]


@pytest.mark.parametrize(
    ("selector", "cadence"),
    [
        ("fedpohcs", 2),
        ("fedpohcs-one-phase", 1),
        pytest.param("fedpohcs", 1, marks=pytest.mark.slow),
        pytest.param("fedpohcs-one-phase", 2, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_writes_the_same_bytes(
    selector: str, cadence: int, config: ExperimentConfig, states: Path, tmp_path: Path
) -> None:
    """The clients are ahead of the checkpoint and have answered some questions before: they answer the same."""
    config = replace(config, selector=selector, rounds=5)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_experiment(config, whole, make_clients=partial(FlowerExecutor, grid=LoopGrid(config, tmp_path / "others")))
    grid = LoopGrid(config, states)
    make = partial(FlowerExecutor, grid=grid)
    with pytest.raises(Interrupted):
        run_experiment(config, broken, make_clients=make, observers=[StopAfter(3)], checkpoint_every=cadence)
    resume_experiment(broken, make_clients=make, checkpoint_every=cadence)
    assert tables(broken) == tables(whole)


def test_a_run_on_flower_is_not_resumed_in_process_nor_the_other_way(
    config: ExperimentConfig, states: Path, tmp_path: Path
) -> None:
    make = partial(FlowerExecutor, grid=LoopGrid(config, states))
    run_experiment(config, tmp_path / "there", make_clients=make)
    run_experiment(config, tmp_path / "here")
    with pytest.raises(UserError, match="fedpohcs flower run --resume"):
        resume_experiment(tmp_path / "there", rounds=5)
    with pytest.raises(UserError, match="lived in one process"):
        resume_experiment(tmp_path / "here", rounds=5, make_clients=make)


def test_clients_keep_few_states(config: ExperimentConfig, states: Path) -> None:
    config = replace(config, rounds=12, selector="full")
    list(training_on(LoopGrid(config, states), config).remaining_rounds())
    kept = {len(list(folder.iterdir())) for folder in states.glob("*/client-*")}
    assert max(kept) <= 2 * (Limits().keep_rounds + 1)


def test_the_config_is_checked_once_by_the_server_and_once_by_each_node(
    config: ExperimentConfig, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    for place in (experiment, checks):  # the server's, and the one that nodes import when they begin
        monkeypatch.setattr(place, "check_config", lambda config, elsewhere=False: checked.append(config))
    list(training_on(LoopGrid(config, states), config).remaining_rounds())
    assert checked == [config] * (1 + config.federation.num_clients)


def test_a_node_that_cannot_run_the_config_is_refused_before_anything_begins(
    config: ExperimentConfig, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_elsewhere(given: ExperimentConfig, *, elsewhere: bool) -> None:
        raise UserError("this world needs the package gymnasium. Install it.")

    grid = LoopGrid(config, states)

    def make_clients(given: ExperimentConfig, **rest: object) -> FlowerExecutor:  # after the server has checked it
        monkeypatch.setattr(checks, "check_config", check_elsewhere)
        return FlowerExecutor(given, grid=grid, limits=SHORT)

    with pytest.raises(UserError, match=r"only 0 of 4 clients came.*node \d+: .*needs the package gymnasium"):
        start_training(config, make_clients)
    assert grid.counts == {"query.hello": 4}
