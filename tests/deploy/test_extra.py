"""What a server optimiser sends besides the policy travels in Flower's messages to the loss of every learner."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedpohcs.core.config import ExperimentConfig
from leaning import leaning_config
from pulled import assert_goal_reached_the_loss, pulled_config

from .loop import LoopGrid
from .test_executor import assert_same, in_process, training_on

pytestmark = pytest.mark.usefixtures("no_sleep")


def test_what_the_server_sends_reaches_the_loss_over_messages(
    config: ExperimentConfig, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pulled_config(config, monkeypatch)
    grid, kinds = LoopGrid(config, states), set()

    def listen(question: Message, answer: Message) -> Message:
        if "extra" in question.content.array_records:
            kinds.add(question.metadata.message_type)
        return answer

    grid.fault = listen
    assert_goal_reached_the_loss(training_on(grid, config))
    assert kinds == {"train"}  # the other phases have no loss


def test_scaffold_keeps_its_controls_on_the_clients_over_messages(
    config: ExperimentConfig, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = leaning_config(config, monkeypatch, server_optimiser="scaffold")
    there, here = training_on(LoopGrid(config, states), config), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
    moved = [abs(array).max() for array in there.state.optimiser.values() if array.size]
    assert max(moved) > 0
