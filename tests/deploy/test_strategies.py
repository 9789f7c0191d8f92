"""The drop-in strategies in a Flower app that knows nothing of reinforcement learning."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedpohcs.core.errors import UserError
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import CandidateMetrics, WeightedAdvantage
from fedpohcs.deploy import strategies
from fedpohcs.deploy.strategies import FedPOHCS, GradientNorm, PowerOfChoice, table_record
from fedpohcs.server.selection import Question

from .loop import AppGrid, finds_app

EXAMPLE = Path(__file__).parents[2] / "examples" / "power-of-choice" / "softmax.py"
NODES = {1000 - 7 * n: {"partition-id": n} for n in range(8)}


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("softmax", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_sixty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.parametrize("reference", ["softmax:server", "softmax:client"])
def test_flower_finds_the_apps_of_the_example(reference: str) -> None:
    """It reads the source and does not run it."""
    assert finds_app(reference, EXAMPLE.parent) == (True, None)


def test_the_example_app_learns(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    grid = AppGrid(example.client, dict(NODES), {"rounds": 20})
    example.server(grid, Context(1, 1, {}, RecordDict(), {"rounds": 20}))
    assert grid.counts == {"query.selection": 20 * 6, "train": 20 * 2, "evaluate": 20 * 8}
    losses = ast.literal_eval(capsys.readouterr().out.partition("mean loss by round: ")[2])
    assert losses[20] < 0.5 * losses[1]


def test_power_of_choice_trains_the_candidates_of_highest_loss(example: ModuleType) -> None:
    grid = AppGrid(example.client, dict(NODES), {})
    losses = {}

    def listen(question: Message, answer: Message) -> Message:
        losses[question.metadata.dst_node_id] = answer.content.metric_records["metrics"]["loss"]
        return answer

    grid.fault = listen
    weight = np.random.default_rng(5).normal(size=(example.FEATURES, example.CLASSES))
    strategy = PowerOfChoice(num_candidates=5, num_selected=2)
    messages = list(strategy.configure_train(1, ArrayRecord([weight]), ConfigRecord({}), grid))
    chosen = {message.metadata.dst_node_id for message in messages}
    assert len(losses) == 5
    assert chosen == set(sorted(losses, key=losses.__getitem__)[-2:])
    assert {message.metadata.message_type for message in messages} == {"train"}


def answering(answers: dict[int, RecordDict]) -> AppGrid:
    """A grid whose nodes answer every question with what is given."""
    app = ClientApp()

    @app.query("selection")
    def answer(message: Message, context: Context) -> Message:
        return Message(answers[context.node_id], reply_to=message)

    return AppGrid(app, {node: {} for node in answers}, {})


def chosen_by(strategy: Any, answers: dict[int, RecordDict]) -> list[int]:
    start = ArrayRecord([np.zeros(1)])
    messages = strategy.configure_train(1, start, ConfigRecord({}), answering(answers))
    return sorted(message.metadata.dst_node_id for message in messages)


def numbers(**values: float) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({name.replace("_", "-"): value for name, value in values.items()})})


def test_gradient_norm_trains_the_candidates_of_largest_gradient() -> None:
    answers = {node: numbers(gradient_norm=float(size)) for node, size in ((40, 3), (11, 9), (25, 1), (7, 5))}
    assert chosen_by(GradientNorm(4, 2), answers) == [7, 11]


def test_fedpohcs_chooses_as_the_selector_does() -> None:
    generator = np.random.default_rng(3)
    tables = [WeightedAdvantage(np.arange(6, dtype=np.uint64), generator.normal(size=6)) for _ in range(5)]
    nodes = [101, 55, 300, 12, 77]
    answers = {
        node: RecordDict({"table": table_record(table.pair, table.value)})
        for node, table in zip(nodes, tables, strict=True)
    }
    order = np.argsort(nodes)
    metrics = CandidateMetrics(np.arange(5), {"weighted_advantage": tuple(tables[place] for place in order)})
    question = Question(np.arange(5), 2, 5, np.full(5, 0.2), generator)
    selection, _ = SELECTORS["fedpohcs"]().select(question, metrics, None)
    assert chosen_by(FedPOHCS(5, 2), answers) == sorted(int(np.sort(nodes)[place]) for place in selection.client)


@pytest.mark.parametrize("answer", [numbers(loss=float("nan")), numbers(accuracy=1.0), RecordDict({})])
def test_a_candidate_without_a_sound_answer_is_not_selected(answer: RecordDict) -> None:
    answers = {1: numbers(loss=0.5), 2: answer, 3: numbers(loss=0.1)}
    assert chosen_by(PowerOfChoice(3, 3), answers) == [1, 3]


@pytest.mark.parametrize(
    "table",
    [
        table_record(np.array([2, 1]), np.zeros(2)),
        table_record(np.array([1, 2]), np.zeros(3)),
        ArrayRecord([np.ones(2)]),
    ],
)
def test_a_table_that_cannot_be_right_is_not_selected(table: ArrayRecord) -> None:
    sound = {node: RecordDict({"table": table_record(np.arange(3), np.ones(3) * node)}) for node in (1, 2)}
    assert chosen_by(FedPOHCS(3, 3), sound | {3: RecordDict({"table": table})}) == [1, 2]


class JoiningGrid(AppGrid):
    """One more node is connected each time the connected nodes are listed."""

    connected = -1

    def get_node_ids(self) -> list[int]:
        self.connected += 1
        assert self.connected < 100, "the strategy waits for nodes that never come"
        return super().get_node_ids()[: self.connected]


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "SECONDS_PER_POLL", 0.001)


def start(strategy: Any, grid: AppGrid, example: ModuleType, rounds: int) -> Any:
    return strategy.start(grid, ArrayRecord([np.zeros((example.FEATURES, example.CLASSES))]), num_rounds=rounds)


@pytest.mark.usefixtures("quick_polls")
@pytest.mark.parametrize("option", ["min_available_nodes", "min_train_nodes"])
def test_training_waits_for_the_nodes_it_needs(
    option: str, example: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    grid = JoiningGrid(example.client, dict(NODES), {})
    strategy = PowerOfChoice(num_candidates=8, num_selected=2, fraction_evaluate=0.0, **{option: 5})
    result = start(strategy, grid, example, rounds=3)
    assert grid.counts == {"query.selection": 5 + 6 + 7, "train": 3 * 2}
    assert np.abs(result.arrays.to_numpy_ndarrays()[0]).max() > 0
    assert "round 1 waits for nodes: 4 of 5 are connected" in caplog.messages


def test_evaluation_waits_for_the_nodes_it_needs(example: ModuleType) -> None:
    grid = JoiningGrid(example.client, dict(NODES), {})
    grid.connected = 0
    strategy = PowerOfChoice(num_candidates=8, num_selected=2, fraction_train=0.0, min_available_nodes=3)
    start(strategy, grid, example, rounds=1)
    assert grid.counts == {
        "evaluate": 2
    }  # Flower computes the number from the nodes it sees first, and takes at least 2
    assert grid.connected == 3


@pytest.mark.usefixtures("quick_polls")
def test_one_selected_node_needs_no_second_one(example: ModuleType) -> None:
    grid = JoiningGrid(example.client, {1: {"partition-id": 0}}, {})
    strategy = PowerOfChoice(1, 1, min_available_nodes=1, fraction_evaluate=0.0)
    start(strategy, grid, example, rounds=1)
    assert grid.counts == {"query.selection": 1, "train": 1}


def fail(question: Message, answer: Message) -> Message:
    return Message(Error(2, "no data"), reply_to=question)


def forged(question: Message, answer: Message) -> Message:
    arrays = ArrayRecord([np.full((20, 4), np.nan)])
    metrics = MetricRecord({"num-examples": 1, "loss": float("nan")})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=question)


UNTRAINED = {
    "silent candidates": ("query.selection", lambda *_: None, "2 of 2 candidates did not answer within 9 s"),
    "failing candidates": ("query.selection", fail, "answer of node 11 is an error: no data; the answer of node 12 is"),
    "candidates without a loss": ("query.selection", forged, "node 11 must hold one finite number called 'loss'; "),
    "silent trainers": ("train", lambda *_: None, "2 of 2 selected nodes did not answer"),
    "failing trainers": ("train", fail, "the answer of node 11 is an error: no data; the answer of node 12 is an"),
    "diverging trainers": ("train", forged, "the answer of node 11 is not finite; the answer of node 12 is not finite"),
}


@pytest.mark.parametrize("case", UNTRAINED)
def test_a_round_that_trains_nobody_is_reported_once_with_the_reason(
    case: str, example: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    phase, fault, reason = UNTRAINED[case]
    grid = AppGrid(example.client, {11: {"partition-id": 0}, 12: {"partition-id": 1}}, {})
    grid.fault = lambda question, answer: fault(question, answer) if question.metadata.message_type == phase else answer
    with pytest.warns(UserWarning) as caught:
        result = start(PowerOfChoice(2, 2, query_timeout=9, fraction_evaluate=0.0), grid, example, rounds=1)
    (text,) = [str(one.message) for one in caught]
    assert text.startswith("round 1 trains nobody, and the weights stay as they are: ")
    assert reason in text
    assert text in caplog.messages
    assert not result.arrays


def test_a_warning_names_three_reasons_and_counts_the_others(example: ModuleType) -> None:
    grid = AppGrid(example.client, dict(NODES), {})
    grid.fault = fail
    with pytest.warns(UserWarning, match=r"(the answer of node \d+ is an error: no data; ){3}and 5 more$"):
        start(PowerOfChoice(8, 2, fraction_evaluate=0.0), grid, example, rounds=1)


@pytest.mark.parametrize("phase", ["query.selection", "train"])
def test_a_traceback_is_cut_to_one_line(phase: str, example: ModuleType) -> None:
    def crash(question: Message, answer: Message) -> Message:
        if question.metadata.message_type != phase:
            return answer
        return Message(Error(2, "Traceback:\n" + 99 * "  File 'app.py'\n" + "ValueError: no data\n"), reply_to=question)

    grid = AppGrid(example.client, {11: {"partition-id": 0}}, {})
    grid.fault = crash
    with pytest.warns(UserWarning, match=r"node 11 is an error: \.\.\.[^\n]{180,200}ValueError: no data$") as caught:
        start(PowerOfChoice(1, 1, min_available_nodes=1, fraction_evaluate=0.0), grid, example, rounds=1)
    assert len(str(caught[0].message)) < 320


def test_one_trained_node_is_enough_for_no_warning(example: ModuleType) -> None:
    grid = AppGrid(example.client, {11: {"partition-id": 0}, 12: {"partition-id": 1}}, {})
    grid.fault = lambda question, answer: fail(question, answer) if question.metadata.dst_node_id == 11 else answer
    result = start(PowerOfChoice(2, 2, fraction_evaluate=0.0), grid, example, rounds=1)
    assert result.arrays


def test_an_update_that_is_not_finite_is_left_out_of_the_mean() -> None:
    def update(value: float) -> Message:
        AppGrid(ClientApp(), {}, {})
        question = Message(
            RecordDict({}), dst_node_id=int(abs(value)) if np.isfinite(value) else 9, message_type="train"
        )
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord([np.array([value])]), "metrics": metrics}), reply_to=question)

    arrays, _ = PowerOfChoice(2, 1).aggregate_train(1, [update(1.0), update(float("nan")), update(3.0)])
    assert arrays is not None
    assert arrays.to_numpy_ndarrays()[0] == 2.0


def test_more_selected_than_candidates_is_refused() -> None:
    with pytest.raises(UserError, match=r"num_candidates \(=2\) must not be below num_selected \(=3\)"):
        PowerOfChoice(2, 3)
