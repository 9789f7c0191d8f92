"""Selectors that draw clients at random and say how: with inverse probabilities no client is preferred on average."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shifting_clients import ShiftingClients

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import ServerState
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loading import load_run
from fedpohcs.server.round import run_round
from fedpohcs.server.selection import Question, Selection, Selector

NUM_CLIENTS, NUM_DRAWS = 24, 400
CLIENT_WEIGHTS = tuple(1.0 + np.arange(NUM_CLIENTS) % 3)
Draw = Callable[[Question, np.ndarray], np.ndarray]


def poisson(question: Question, probability: np.ndarray) -> np.ndarray:
    """Each candidate independently of the others."""
    return question.candidates[question.generator.random(len(probability)) < probability]


def systematic(question: Question, probability: np.ndarray) -> np.ndarray:
    """As many as the probabilities add up to: a comb with teeth at distance 1 over their running sum."""
    ends = np.cumsum(probability)
    teeth = question.generator.random() + np.arange(round(ends[-1]))
    return question.candidates[np.unique(np.searchsorted(ends, teeth))]


def sampling_selector(draw: Draw, *, told: bool) -> Selector:
    """Draws clients with higher ids more often; `told`: and says so."""

    def select(question: Question, metrics: Any, state: Any) -> tuple[Selection, Any]:
        score = 4.0 + question.candidates
        probability = np.minimum(1.0, 12 * score / score.sum())
        client = draw(question, probability)
        drawn = probability[np.isin(question.candidates, client)]
        return Selection(client, probability=drawn if told else None), state

    return Selector(select, name="sampling")


def mean_change(selector: Selector, seed: int) -> np.ndarray:
    """How one round changes the policy, on average over many draws."""
    federation = FederationConfig(
        num_clients=NUM_CLIENTS,
        num_candidates=NUM_CLIENTS,
        num_selected=NUM_CLIENTS,
        client_weights=CLIENT_WEIGHTS,
        update_weights="clients",
    )
    clients = ShiftingClients(shifts_of(seed))
    start = ServerState(0, clients.initial_params(), None)
    changes = [run_round(start, clients, selector, federation, draw)[0].params.policy for draw in range(NUM_DRAWS)]
    return np.mean(changes, axis=0)


def shifts_of(seed: int) -> np.ndarray:
    """Changes that grow with the id, with noise."""
    noise = np.random.default_rng(seed).normal(size=(NUM_CLIENTS, 3))
    return np.linspace(-1, 1, NUM_CLIENTS)[:, None] + 0.3 * noise


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("draw", [poisson, systematic])
def test_updates_weighted_by_inverse_probability_have_the_mean_of_full_participation(draw: Draw, seed: int) -> None:
    full = np.average(shifts_of(seed), axis=0, weights=CLIENT_WEIGHTS)
    told = mean_change(sampling_selector(draw, told=True), seed)
    untold = mean_change(sampling_selector(draw, told=False), seed)
    np.testing.assert_allclose(told, full, atol=0.06)
    assert (untold - full > 0.2).all()


def play(selection: Callable[[Question], Selection], steps: Any = None, **settings: Any) -> Any:
    """The record and the new state of one round of three clients that shift the policy by 1, 10 and 100."""
    clients = ShiftingClients([[1.0], [10.0], [100.0]], steps)
    selector = Selector(lambda question, metrics, state: (selection(question), state), name="mine")
    federation = FederationConfig(num_clients=3, num_candidates=3, num_selected=3, **settings)
    state, record = run_round(ServerState(0, clients.initial_params(), None), clients, selector, federation, 0)
    return record, state.params.policy[0]


def test_weights_of_the_selection_replace_steps_and_probabilities() -> None:
    everyone = np.arange(3)
    record, policy = play(lambda q: Selection(everyone, probability=[0.1, 0.5, 1.0], weight=[1, 0, 3]), [5, 6, 7])
    assert policy == pytest.approx((1 * 1 + 3 * 100) / 4)
    np.testing.assert_array_equal(record.rejected, [1])
    np.testing.assert_array_equal(record.updates_info["weight"], [1, 0, 3])
    np.testing.assert_array_equal(record.updates_info["probability"], [0.1, 0.5, 1.0])


def test_with_probabilities_alone_an_update_counts_by_its_client_weight_over_its_probability() -> None:
    _, policy = play(
        lambda q: Selection(np.array([2, 0]), probability=[0.25, 0.5]), [5, 6, 7], client_weights=(1.0, 1.0, 3.0)
    )
    assert policy == pytest.approx((100 * 3 / 0.25 + 1 * 1 / 0.5) / (3 / 0.25 + 1 / 0.5))


@pytest.mark.parametrize("given", [{"weight": [1.0, 1.0, 1.0]}, {"probability": [0.5, 0.5, 0.5]}])
def test_an_update_without_steps_counts_nothing_whatever_the_selection_says(given: dict) -> None:
    record, policy = play(lambda q: Selection(np.arange(3), **given), steps=[5, 0, 5])
    assert policy == pytest.approx((1 + 100) / 2)
    np.testing.assert_array_equal(record.rejected, [1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"probability": [0.5, 0.0, 1.0]}, r"selector 'mine' gave client 1 the probability 0.0. It must be above 0"),
        ({"probability": [0.5, 0.5, 1.5]}, "gave client 2 the probability 1.5"),
        ({"probability": [np.nan, 0.5, 1.0]}, "gave client 0 the probability nan"),
        ({"probability": [0.5, 0.5]}, r"returned probability of shape \(2,\) for 3 chosen clients"),
        ({"weight": [1.0, -1.0, 1.0]}, r"gave client 1 the weight -1.0. It must be finite and not below 0"),
        ({"weight": [1.0, np.inf, 1.0]}, "gave client 1 the weight inf"),
        ({"weight": [0.0, 0.0, 0.0]}, "gave weights whose sum is 0.0"),
        ({"weight": [1e308, 1e308, 1e308]}, "gave weights whose sum is inf"),
        ({"weight": "equal"}, "returned an object of type str as weight"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_probability_or_weight_that_cannot_be_is_refused(given: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        play(lambda q: Selection(np.arange(3), **given))


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, set()),
        ({"probability": 0.5}, {"probability"}),
        ({"probability": 0.5, "weight": 2.0}, {"probability", "weight"}),
    ],
)
def test_probability_and_weight_are_stored_only_where_the_selector_gives_them(
    given: dict, written: set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def select(question: Question, metrics: Any, state: Any) -> tuple[Selection, Any]:
        client = question.candidates[: question.num_selected]
        return Selection(client, **{name: np.full(len(client), value) for name, value in given.items()}), state

    monkeypatch.setitem(SELECTORS.entries, "mine", lambda: Selector(select))
    run_experiment(replace(preset("tabular"), selector="mine", rounds=2), tmp_path / "run")
    table = load_run(tmp_path / "run").clients
    selected = table["role"] == "selected"
    assert {"probability", "weight"} & set(table["metric"][selected].tolist()) == written
    for name in written:
        assert table["value"][selected & (table["metric"] == name)].tolist() == [given[name]] * 2 * 3
