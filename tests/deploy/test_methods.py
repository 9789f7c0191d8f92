"""Learners and policy-gradient federations on Flower: equal to the executor `one-by-one`."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.learning import as_kind
from fedpohcs.core.presets import preset
from fedpohcs.deploy.local import LocalFleet
from fedpohcs.deploy.protocol import SIMULATE

from . import test_learners
from .loop import LoopGrid
from .test_executor import MISTAKES, assert_same, in_process, training_on
from .test_processes import PATIENCE, assert_equal_tables, run_in_process, settings_for

over_messages = pytest.mark.usefixtures("no_sleep")
GRADIENTS = ["gpomdp", "svrpg", "fedpg-br", "fedsvrpg-m", "mfpo", "fednpg-admm"]
METHODS = [*GRADIENTS, "qavg", "sarsa"]
SERVER: dict[str, dict[str, Any]] = {
    "svrpg": {"learning_rate": 0.05, "inner_steps": 3, "inner_episodes": 2},
    "fedpg-br": {"learning_rate": 0.05, "inner_episodes": 2, "batch_episodes": (2, 4), "simulated_client": 1},
}
SIMULATIONS = f"query.{SIMULATE}"


def tiny(method: str) -> ExperimentConfig:
    """Three clients, filters of rewards included, so that a simulation reads a client's own state."""
    if method in GRADIENTS:
        config = preset("tabular", "high", algorithm=method)
        iterations = 2 if method in ("fedsvrpg-m", "mfpo") else 1
        learner: Any = replace(config.learner, episodes=4, local_iterations=iterations)
    else:
        config = preset("windy-cliffs" if method == "qavg" else "perturbed-kernels")
        learner = replace(as_kind(config.learner, method), local_iterations=2, steps_per_iteration=20)
    few = {"num_clients": 3, "num_candidates": 3, "num_selected": 3, "evaluation_episodes": 2, "held_out_clients": 0}
    server = replace(config.server_optimiser, **SERVER.get(method, {}))
    federation = replace(config.federation, **few)
    return replace(config, rounds=2, federation=federation, learner=learner, server_optimiser=server)


def three(config: ExperimentConfig) -> ExperimentConfig:
    """With as many clients as the fleet has nodes."""
    return replace(config, federation=replace(config.federation, num_clients=3, num_candidates=3, num_selected=3))


@over_messages
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.slow] * (name not in (*SERVER, "qavg"))) for name in METHODS]
)
def test_a_run_over_messages_equals_one_in_process(method: str, states: Path) -> None:
    config = tiny(method)
    grid = LoopGrid(config, states)
    there, here = training_on(grid, config), in_process(config)
    start = there.state.params
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same(one, other)
        assert not one.bad_replies
    jax.tree.map(np.testing.assert_array_equal, there.state.params, here.state.params)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (start, there.state.params)), strict=True))
    assert (SIMULATIONS in grid.counts) == (method in SERVER)


@over_messages
def test_a_client_keeps_nothing_of_what_it_plays_for_the_server(states: Path) -> None:
    config = tiny("svrpg")
    executor = training_on(LoopGrid(config, states), config).executor
    params, who = executor.initial_params(), np.array([1])
    executor.train(params, 0, who)
    before = {path: path.read_bytes() for path in states.rglob("*.state")}
    first, again, other = (executor.simulate(params, 0, who, {}, attempt) for attempt in (1, 1, 2))
    assert before and before == {path: path.read_bytes() for path in states.rglob("*.state")}
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (first.params, other.params)), strict=True))


@over_messages
@pytest.mark.parametrize("mistake", ["silence", "not finite"])
def test_inner_steps_end_where_the_client_that_plays_for_the_server_fails(mistake: str, states: Path) -> None:
    """The round is then that of one inner step, and an invalid reply is reported with the next evaluation."""
    config = replace(tiny("svrpg"), rounds=1)
    grid = LoopGrid(config, states)

    def fail(question: Message, answer: Message) -> Message | None:
        if question.metadata.message_type != SIMULATIONS:
            return answer
        if mistake == "silence":
            return None
        spoiled = MISTAKES[mistake]
        question.metadata.message_type = "train"  # the mistakes are those of updates
        return spoiled(question, answer)

    grid.fault = fail
    there = training_on(grid, config)
    record = list(there.remaining_rounds())[-1]
    here = in_process(replace(config, server_optimiser=replace(config.server_optimiser, inner_steps=1)))
    list(here.remaining_rounds())
    jax.tree.map(np.testing.assert_array_equal, there.state.params, here.state.params)
    found = [(bad.phase, bad.rule) for bad in record.bad_replies]
    assert found == ([] if mistake == "silence" else [(SIMULATE, "finite")])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Three nodes in processes of their own, which serve one run after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("quick")), prepend=os.pathsep)
        with LocalFleet(3, tmp_path_factory.mktemp("fleet") / "logs", runtime="deployment") as fleet:
            yield fleet


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, *test_learners.KINDS])
def test_a_run_over_processes_equals_one_in_process(method: str, fleet: LocalFleet, tmp_path: Path) -> None:
    config, out = tiny(method) if method in METHODS else three(test_learners.tiny(method)), tmp_path / "run"
    assert fleet.submit(settings_for(config, out)).wait(2 * PATIENCE) == 0
    assert_equal_tables(out, run_in_process(config, tmp_path / "in-process"), range(3))
