"""The drop-in strategies in a Flower app that knows nothing of reinforcement learning."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import validate

from fedpohcs.core.errors import UserError
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import CandidateMetrics, WeightedAdvantage
from fedpohcs.deploy.strategies import FedPOHCS, GradientNorm, PowerOfChoice, table_record
from fedpohcs.server.selection import Question

from .loop import AppGrid

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
    assert validate(reference, project_dir=EXAMPLE.parent) == (True, None)


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


def test_without_answers_nobody_trains() -> None:
    assert chosen_by(PowerOfChoice(2, 1), {1: RecordDict({}), 2: RecordDict({})}) == []


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
