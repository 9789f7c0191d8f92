"""What a round hands to whom: new weights to evaluations, old ones to training, and each update its weight."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import NO_EXTRA, ClientIds, ClientUpdates, Extra, ServerState
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.server.round import ask_question, client_weight, run_round, update_weight

SMALL = FederationConfig(num_clients=7, num_candidates=5, num_selected=3, evaluation_episodes=2)


class Watched(InProcessExecutor):
    """Notes the parameters and the round of each request."""

    def __init__(self, federation: FederationConfig) -> None:
        super().__init__(replace(preset("tabular", selector="fedavg"), federation=federation))
        self.asked: list[tuple[str, int, Any]] = []

    def train(self, params: Any, round_number: int, clients: ClientIds, extra: Extra = NO_EXTRA) -> ClientUpdates:
        self.asked.append(("train", round_number, params))
        return super().train(params, round_number, clients, extra)

    def evaluate(self, params: Any, round_number: int, clients: ClientIds) -> Any:
        self.asked.append(("evaluate", round_number, params))
        return super().evaluate(params, round_number, clients)


def test_clients_train_from_the_old_weights_and_the_new_ones_are_evaluated() -> None:
    executor = Watched(SMALL)
    before = ServerState(0, executor.initial_params(), None)
    after, record = run_round(before, executor, SELECTORS["fedavg"](), SMALL, 0)
    (trained, first, start), (evaluated, second, end) = executor.asked
    assert (trained, first, evaluated, second) == ("train", 0, "evaluate", 1)
    assert start is before.params
    assert end is after.params
    assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (start, end)), strict=True))
    assert record.round == after.round == 1


def test_only_every_so_many_rounds_are_evaluated() -> None:
    federation = replace(SMALL, evaluation_every=2)
    executor = Watched(federation)
    state = ServerState(0, executor.initial_params(), None)
    for _ in range(4):
        state, _ = run_round(state, executor, SELECTORS["fedavg"](), federation, 0)
    assert [number for phase, number, _ in executor.asked if phase == "evaluate"] == [2, 4]


def test_candidates_are_drawn_anew_in_every_round_and_by_seed() -> None:
    def candidates(number: int, seed: int) -> tuple[int, ...]:
        return tuple(ask_question(number, SELECTORS["fedavg"](), SMALL, seed).candidates.tolist())

    assert len({candidates(number, 0) for number in range(20)}) > 5
    assert len({candidates(0, seed) for seed in range(20)}) > 5


def test_weights_of_clients_sum_to_one() -> None:
    weight = client_weight(replace(SMALL, client_weights=(1.0, 1.0, 2.0, 4.0, 1.0, 1.0, 6.0)))
    np.testing.assert_allclose(weight, np.array([1, 1, 2, 4, 1, 1, 6]) / 16)


@pytest.mark.parametrize(("rule", "expected"), [("steps", [30, 0, 10]), ("clients", [0.4, 0, 0.1])])
def test_an_update_counts_by_its_steps_or_by_its_client_and_not_without_steps(rule: str, expected: list[float]) -> None:
    updates = ClientUpdates(np.array([3, 0, 1]), None, np.array([30, 0, 10]))
    weight = np.array([0.3, 0.1, 0.2, 0.4])
    np.testing.assert_allclose(update_weight(updates, weight, replace(SMALL, update_weights=rule)), expected)
