"""Mistakes in a selector are refused with its name, before a client trains."""

import re
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
from fedpohcs.server.round import run_round
from fedpohcs.server.selection import Question, Selection, Selector, fedavg, make_selector

FEDERATION = FederationConfig(num_clients=8, num_candidates=5, num_selected=3)
Answer = Callable[[Question], Any]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    return lambda make: monkeypatch.setitem(SELECTORS.entries, "mine", make)


def play(answer: Answer, **parts: Any) -> tuple[ShiftingClients, Any]:
    """One round with a selector that gives this answer, and the clients it was played with."""
    clients = ShiftingClients(np.ones((8, 2)))
    selector = Selector(lambda question, metrics, state: (answer(question), state), name="mine", **parts)
    _, record = run_round(ServerState(0, clients.initial_params(), None), clients, selector, FEDERATION, seed=1)
    return clients, record


def scored(question: Question, **scores: Any) -> Selection:
    return Selection(question.candidates[:3], scores)


def stranger(question: Question) -> int:
    return int(np.setdiff1d(np.arange(8), question.candidates)[0])


WRONG_CHOICES: dict[str, tuple[Answer, str]] = {
    "unknown id": (lambda q: Selection(np.array([999])), "chose id 999, which is not a candidate"),
    "negative id": (lambda q: Selection(np.array([-1])), "chose id -1, which is not a candidate"),
    "no candidate": (lambda q: Selection(np.array([stranger(q)])), r"chose id \d, which is not a candidate"),
    "one id twice": (lambda q: Selection(q.candidates[[0, 0, 1]]), r"chose id \d more than once"),
    "too many": (lambda q: Selection(q.candidates), r"chose 5 clients, more than num_selected \(=3\)"),
    "floats": (lambda q: Selection(q.candidates[:3].astype(float)), r"chose an array of type float64 and shape \(3,\)"),
    "a mask": (lambda q: Selection(np.isin(q.candidates, [1])), "chose an array of type bool"),
    "a matrix": (lambda q: Selection(q.candidates[None, :3]), r"shape \(1, 3\)"),
    "one number": (lambda q: Selection(q.candidates[0]), r"shape \(\)"),
    "no selection": (lambda q: q.candidates[:3], "returned an object of type ndarray as its choice"),
    "scores of the chosen alone": (lambda q: scored(q, loss=np.ones(3)), r"score 'loss' of shape \(3,\) for 5"),
    "one score for all": (lambda q: scored(q, loss=1.0), r"score 'loss' of shape \(\) for 5"),
    "an infinite score": (
        lambda q: scored(q, loss=[1, 2, -np.inf, 3, 4]),
        "gave client 4 the score 'loss' -inf, which is not finite",
    ),
    "a text as score": (lambda q: scored(q, loss=["high"] * 5), "an object of type list as score 'loss'"),
    "scores without names": (lambda q: Selection(q.candidates[:3], np.ones(5)), "of type ndarray as scores"),
}


@pytest.mark.parametrize("kind", WRONG_CHOICES)
def test_a_wrong_choice_is_refused_with_selector_rule_and_value_and_nobody_trains(kind: str) -> None:
    answer, message = WRONG_CHOICES[kind]
    clients = ShiftingClients(np.ones((8, 2)))
    selector = Selector(lambda question, metrics, state: (answer(question), state), name="mine")
    with pytest.raises(UserError, match=message) as refused:
        run_round(ServerState(0, clients.initial_params(), None), clients, selector, FEDERATION, seed=1)
    assert re.match(r"selector 'mine' .+\. .+\.$", str(refused.value))
    assert clients.trained == []


def test_an_answer_without_a_state_is_refused() -> None:
    clients = ShiftingClients(np.ones((8, 2)))
    selector = Selector(lambda question, metrics, state: Selection(question.candidates[:3]), name="mine")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="selector 'mine' returned an object of type Selection"):
        run_round(ServerState(0, clients.initial_params(), None), clients, selector, FEDERATION, seed=1)


def test_fewer_than_k_nobody_and_plain_lists_are_allowed() -> None:
    for size in (0, 1, 3):
        clients, record = play(lambda question, size=size: Selection(question.candidates[:size].tolist()))
        assert record.selection.client.dtype == np.int64
        assert clients.trained == [record.candidates[:size].tolist()]


def test_a_score_that_is_not_a_number_means_that_there_is_none() -> None:
    _, record = play(lambda question: scored(question, loss=[1, np.nan, 3, 4, 5]))
    np.testing.assert_array_equal(record.selection.scores["loss"], [1, np.nan, 3, 4, 5])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([8], "selector 'mine' asks id 8, which does not exist. Ids run from 0 to 7."),
        ([-1], "asks id -1, which does not exist"),
        ([2, 2], "asks id 2 more than once"),
        ([0.5], "asks an array of type float64"),
    ],
)
def test_only_clients_that_exist_are_asked(asked: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        play(lambda question: Selection(question.candidates[:3]), asks=lambda question, state: np.array(asked))


@pytest.mark.parametrize("name", SELECTORS)
def test_every_registered_selector_knows_its_name(name: str) -> None:
    assert make_selector(name).name == name


def failing() -> Selector:
    raise KeyError("no such\nfile")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (failing, "selector 'mine' cannot be made: KeyError: 'no such"),
        (lambda: None, "selector 'mine' is made by a function that returns an object of type NoneType"),
        (lambda config: fedavg(), "cannot be made: TypeError: .* missing 1 required positional argument"),
        (fedavg(), "cannot be made: TypeError: 'Selector' object is not callable"),
        (lambda: fedavg()._replace(requires="mean_return"), r"has requires \(='mean_return'\). It must be a set"),
        (
            lambda: fedavg()._replace(requires=frozenset({"mean_retrun"})),
            r"metric that selector 'mine' requires \(='mean_retrun'\) is not known. Did you mean 'mean_return'",
        ),
    ],
)
def test_a_selector_that_cannot_work_is_refused_before_anything_is_written(
    make: Any, message: str, register: Callable[[Any], None], tmp_path: Path
) -> None:
    register(make)
    with pytest.raises(UserError, match=message) as refused:
        run_experiment(replace(preset("tabular"), selector="mine"), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_requires_may_be_any_collection_of_names(register: Callable[[Any], None]) -> None:
    register(lambda: fedavg()._replace(requires=["mean_return"]))
    assert make_selector("mine").requires == frozenset({"mean_return"})


def test_a_wrong_choice_in_a_run_ends_it_with_one_line(register: Callable[[Any], None], tmp_path: Path) -> None:
    def wrong() -> Selector:
        return Selector(lambda question, metrics, state: (Selection(np.array([999])), state))

    register(wrong)
    with pytest.raises(UserError, match="selector 'mine' chose id 999, which is not a candidate"):
        run_experiment(replace(preset("tabular"), selector="mine"), tmp_path / "run")
