"""Forty kinds of faults, ten seeds each: after every round the server has made the right thing of what arrived."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import CandidateMetrics, RoundRecord
from fedpohcs.deploy.executor import FlowerExecutor, Limits
from fedpohcs.deploy.protocol import EVALUATE, MEASURE, TRAIN
from fedpohcs.metrics.table import unpack_table
from fedpohcs.runs.experiment import start_training
from fedpohcs.server.round import ask_question

from .faulty import KINDS, FaultyGrid

ROUNDS, SEEDS, QUICK_SEEDS = 4, 10, 2
FEDERATION = FederationConfig(
    num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=2, evaluation_every=2
)
PRESET = preset("tabular")
LEARNER = replace(PRESET.learner, local_iterations=1, steps_per_iteration=64, batch_size=32)
CONFIG = replace(PRESET, rounds=ROUNDS, federation=FEDERATION, learner=LEARNER)
LIMITS = Limits(startup_timeout=0.01, min_clients=3)


def expected_selection(grid: FaultyGrid, round_number: int) -> tuple[list[int], list[int]]:
    """Survivors of phase one, and who is selected among them, from what the clients truly measured."""
    selector = SELECTORS[CONFIG.selector]()
    question = ask_question(round_number, selector, FEDERATION, CONFIG.seed)
    measured = {
        client: arrays
        for phase in (EVALUATE, MEASURE)
        for client, arrays in grid.sound(phase, round_number).items()
        if any(name.startswith("measured/") for name in arrays)
    }
    survivors = [client for client in question.candidates.tolist() if client in measured]
    if not survivors:
        return [], []
    tables = tuple(unpack_table(_below("measured/weighted_advantage/", measured[client])) for client in survivors)
    metrics = CandidateMetrics(np.array(survivors), {"weighted_advantage": tables})
    selection, _ = selector.select(question._replace(candidates=metrics.client), metrics, None)
    return survivors, selection.client.tolist()


def _below(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def assert_mean_of_updates(params: Any, updates: dict[int, dict[str, Any]], before: Any) -> None:
    """Each update that arrived counts once, by its steps; with none the policy stays."""
    if not updates:
        assert params is before
        return
    steps = sum(float(arrays["steps"]) for arrays in updates.values())
    for name, found in named_arrays(params).items():
        mean = sum(float(a["steps"]) / steps * a[f"params/{name}"].astype(float) for a in updates.values())
        np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-6)


def assert_right(record: RoundRecord, grid: FaultyGrid, params: Any, before: Any) -> None:
    """All that must hold after a round, worked out from the clients' side."""
    if record.round:
        survivors, selected = expected_selection(grid, record.round - 1)
        assert record.candidates.tolist() == survivors
        assert record.selection.client.tolist() == selected
        updates = grid.sound(TRAIN, record.round - 1)
        assert record.rejected.tolist() == [client for client in selected if client not in updates]
        assert_mean_of_updates(params, updates, before)
    played = grid.sound(EVALUATE, record.round)
    assert record.evaluation.client.tolist() == list(played)
    assert record.evaluation.mean_return.tolist() == [float(arrays["mean_return"]) for arrays in played.values()]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < QUICK_SEEDS else pytest.mark.slow) for seed in range(SEEDS)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_server_makes_the_right_thing_of_what_arrives(kind: str, seed: int) -> None:
    grid = FaultyGrid(CONFIG, kind, seed)
    training = start_training(CONFIG, partial(FlowerExecutor, grid=grid, limits=LIMITS))
    before, numbers = training.state.params, []
    left_out: Counter[tuple[int, str, str]] = Counter()
    for record in training.remaining_rounds():
        assert_right(record, grid, training.state.params, before)
        left_out.update((bad.client, bad.phase, bad.rule) for bad in record.bad_replies)
        assert left_out == grid.broken
        before = training.state.params
        numbers.append(record.round)
    assert numbers == list(range(ROUNDS + 1))
    assert grid.struck
    assert grid.attempts == sorted(set(grid.attempts))
