"""The rules that answers of clients must keep, whoever runs the clients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.core.array_rules import ArrayRule, BadReplyError
from fedpohcs.core.config import ExperimentConfig, FederationConfig, ModellingConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import CandidateMetrics, ClientUpdates, Evaluation, ServerState, WeightedAdvantage
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.metrics import AdvantagePredictor
from fedpohcs.metrics.comparison import selection_metric, stack_tables
from fedpohcs.server.replies import (
    RawArray,
    Stamp,
    check_stamp,
    checked_arrays,
    sound_evaluation,
    sound_metrics,
    sound_updates,
)
from fedpohcs.server.round import run_round

K, MOST = 6, 1000
ASKED = np.array([3, 5, 8, 9, 11, 20])
PREVIOUS = {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}


def updates() -> ClientUpdates:
    rows = {name: np.stack([array + n for n in range(K)]).astype(np.float32) for name, array in PREVIOUS.items()}
    return ClientUpdates(ASKED, rows, np.arange(K, dtype=np.int64) + 10, {"kl": np.full(K, 0.1)})


def with_kernel(value: float) -> Callable[[ClientUpdates, int], ClientUpdates]:
    def spoil(given: ClientUpdates, position: int) -> ClientUpdates:
        kernel = given.params["kernel"].copy()
        kernel[position, 1, 2] = value
        return given._replace(params=given.params | {"kernel": kernel})

    return spoil


def with_steps(value: int) -> Callable[[ClientUpdates, int], ClientUpdates]:
    return lambda given, position: given._replace(steps=np.where(np.arange(K) == position, value, given.steps))


def with_client(value: int) -> Callable[[ClientUpdates, int], ClientUpdates]:
    return lambda given, position: given._replace(client=np.where(np.arange(K) == position, value, given.client))


ONE_ROW = {
    "not a number": (with_kernel(np.nan), "finite", "kernel"),
    "infinite": (with_kernel(-np.inf), "finite", "kernel"),
    "negative steps": (with_steps(-5), "range", "steps"),
    "absurd steps": (with_steps(10**18), "range", "steps"),
    "nobody asked this client": (with_client(99), "unasked", ""),
}


@pytest.mark.parametrize("position", range(K))
@pytest.mark.parametrize("kind", ONE_ROW)
def test_a_bad_row_has_no_steps_and_the_policy_as_it_was(kind: str, position: int) -> None:
    spoil, rule, array = ONE_ROW[kind]
    given = spoil(updates(), position)
    found = sound_updates(given, ASKED, PREVIOUS, MOST)
    np.testing.assert_array_equal(found.client, ASKED)
    np.testing.assert_array_equal(found.steps, np.where(np.arange(K) == position, 0, updates().steps))
    for name, array_before in PREVIOUS.items():
        np.testing.assert_array_equal(found.params[name][position], array_before)
        others = np.arange(K) != position
        np.testing.assert_array_equal(found.params[name][others], updates().params[name][others])
    assert np.isnan(found.info["kl"]).tolist() == (np.arange(K) == position).tolist()
    assert [(bad.client, bad.rule, bad.array) for bad in found.bad] == [(given.client[position], rule, array)]


@pytest.mark.parametrize("position", range(1, K))
def test_a_row_that_comes_twice_counts_once(position: int) -> None:
    given = with_client(int(ASKED[0]))(updates(), position)
    found = sound_updates(given, ASKED, PREVIOUS, MOST)
    np.testing.assert_array_equal(found.steps, np.where(np.arange(K) == position, 0, updates().steps))
    assert [(bad.client, bad.rule) for bad in found.bad] == [(ASKED[0], "twice")]


def reshaped(shape: tuple[int, ...], dtype: type = np.float32) -> dict[str, np.ndarray]:
    return updates().params | {"kernel": np.zeros((K, *shape), dtype)}


WHOLE_STACK: dict[str, tuple[dict[str, Any], str]] = {
    "a shape that would broadcast": ({"params": reshaped((1, 3))}, "shape"),
    "a shape that would not": ({"params": reshaped((4, 4))}, "shape"),
    "double precision": ({"params": reshaped((2, 3), np.float64)}, "type"),
    "whole numbers": ({"params": reshaped((2, 3), np.int64)}, "type"),
    "an array is missing": ({"params": {"bias": updates().params["bias"]}}, "names"),
    "an array too much": ({"params": updates().params | {"virus": np.zeros((K, 1))}}, "names"),
    "fewer rows than clients": ({"params": {name: x[:-1] for name, x in updates().params.items()}}, "shape"),
    "fractions of steps": ({"steps": np.full(K, 0.5)}, "type"),
}


@pytest.mark.parametrize("kind", WHOLE_STACK)
def test_arrays_of_another_form_are_never_averaged(kind: str) -> None:
    changes, rule = WHOLE_STACK[kind]
    found = sound_updates(updates()._replace(**changes), ASKED, PREVIOUS, MOST)
    assert not found.steps.any()
    assert [(bad.client, bad.rule) for bad in found.bad] == [(client, rule) for client in ASKED.tolist()]
    for name, array in PREVIOUS.items():
        np.testing.assert_array_equal(found.params[name], np.stack([array] * K))


def test_who_sends_nothing_is_silent_and_breaks_no_rule() -> None:
    given = jax.tree.map(lambda x: x[1:], updates())
    found = sound_updates(given, ASKED, PREVIOUS, MOST)
    assert found.steps.tolist() == [0, 11, 12, 13, 14, 15]
    assert found.bad == ()


def test_sound_updates_are_handed_on_as_they_are() -> None:
    given = updates()
    assert sound_updates(given, ASKED, PREVIOUS, MOST) is given


@pytest.mark.parametrize("position", range(K))
@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("mean_return", np.nan, "finite"),
        ("mean_return", np.inf, "finite"),
        ("mean_return", 1e300, "range"),
        ("steps", 0, "range"),
        ("steps", MOST + 1, "range"),
        ("client", 99, "unasked"),
    ],
)
def test_a_bad_evaluation_is_left_out(name: str, value: float, rule: str, position: int) -> None:
    given = Evaluation(ASKED.copy(), np.arange(K) / 2, np.full(K, 7), {"lost_episodes": np.zeros(K)})
    getattr(given, name)[position] = value
    found = sound_evaluation(given, ASKED, MOST)
    np.testing.assert_array_equal(found.client, np.delete(ASKED, position))
    assert found.mean_return.tolist() == np.delete(np.arange(K) / 2, position).tolist()
    assert len(found.info["lost_episodes"]) == K - 1
    assert [bad.rule for bad in found.bad] == [rule]


def sound(metrics: CandidateMetrics) -> CandidateMetrics:
    return sound_metrics(metrics, ASKED, ExperimentConfig(), PREVIOUS)


def table(**changes: Any) -> WeightedAdvantage:
    return WeightedAdvantage(np.array([2, 5, 9], np.uint64), np.array([0.1, -0.2, 0.3]))._replace(**changes)


BAD_TABLES = {
    "not a number": (table(value=np.array([0.1, np.nan, 0.3])), "finite"),
    "absurd": (table(value=np.array([0.1, 1e200, 0.3])), "range"),
    "another type": (table(value=np.array([0.1, 0.2, 0.3], np.float32)), "type"),
    "keys of another type": (table(pair=np.array([2, 5, 9])), "type"),
    "of different lengths": (table(value=np.array([0.1, 0.2])), "shape"),
    "with another axis": (table(value=np.zeros((3, 1))), "shape"),
    "keys that do not ascend": (table(pair=np.array([5, 2, 9], np.uint64)), "order"),
    "a key that comes twice": (table(pair=np.array([5, 5, 9], np.uint64)), "order"),
}


@pytest.mark.parametrize("position", range(K))
@pytest.mark.parametrize("kind", BAD_TABLES)
def test_a_bad_table_makes_its_client_silent(kind: str, position: int) -> None:
    bad, rule = BAD_TABLES[kind]
    tables = tuple(bad if n == position else table() for n in range(K))
    found = sound(CandidateMetrics(ASKED, {"mean_return": np.zeros(K), "weighted_advantage": tables}))
    np.testing.assert_array_equal(found.client, np.delete(ASKED, position))
    assert len(found.column("weighted_advantage")) == K - 1
    assert [(one.client, one.phase, one.rule) for one in found.bad] == [(ASKED[position], "measure", rule)]


PREDICTED = replace(ExperimentConfig(), modelling=ModellingConfig(missing="predicted"))


def predictor(width: int = 2, num_pairs: int = 3, num_states: int = 2) -> AdvantagePredictor:
    """A predictor of four features whose states are keys 1, 2 and so on; its pairs are all in the first."""
    return AdvantagePredictor(
        state_key=np.arange(1, num_states + 1, dtype=np.uint64),
        visitation=np.ones(num_states),
        pair_state_key=np.ones(num_pairs, np.uint64),
        pair_centre=np.ones((num_pairs, width), np.float32),
        frequency=np.ones((width, 4), np.float32),
        phase=np.zeros(4, np.float32),
        coefficient=np.ones(5),
    )


def empty_table(fill: AdvantagePredictor | None) -> WeightedAdvantage:
    return WeightedAdvantage(np.empty(0, np.uint64), np.empty(0), fill)


MISFITS = {
    "another width": (table(fill=predictor(width=3)), "weighted_advantage/fill/pair_centre"),
    "no states but pairs": (table(fill=predictor(num_states=0)), "weighted_advantage/fill/state_key"),
    "neither states nor pairs": (
        empty_table(predictor(num_pairs=0, num_states=0)),
        "weighted_advantage/fill/state_key",
    ),
}


@pytest.mark.parametrize("position", range(K))
@pytest.mark.parametrize("kind", MISFITS)
def test_a_predictor_that_fits_no_other_makes_its_client_silent(kind: str, position: int) -> None:
    bad, array = MISFITS[kind]
    tables = tuple(bad if n == position else table(fill=predictor()) for n in range(K))
    found = sound_metrics(CandidateMetrics(ASKED, {"weighted_advantage": tables}), ASKED, PREDICTED, PREVIOUS)
    np.testing.assert_array_equal(found.client, np.delete(ASKED, position))
    assert [(one.client, one.rule, one.array) for one in found.bad] == [(ASKED[position], "shape", array)]


def test_the_width_of_a_reply_that_is_bad_already_counts_for_nothing() -> None:
    nan, sound_table = np.full(3, np.nan), table(fill=predictor())
    bad = table(value=nan, fill=predictor(width=3))
    tables = (bad, bad, sound_table, table(fill=predictor(width=3)), sound_table, bad)
    found = sound_metrics(CandidateMetrics(ASKED, {"weighted_advantage": tables}), ASKED, PREDICTED, PREVIOUS)
    assert found.client.tolist() == [ASKED[2], ASKED[4]]


def test_a_client_that_has_seen_nothing_sends_no_predictor_and_is_sound() -> None:
    tables = (empty_table(None), *(table(fill=predictor()) for _ in range(K - 1)))
    found = sound_metrics(CandidateMetrics(ASKED, {"weighted_advantage": tables}), ASKED, PREDICTED, PREVIOUS)
    assert len(found.client) == K and not found.bad


@pytest.mark.parametrize("name", ["visitation", "pair_centre", "frequency", "phase", "coefficient"])
def test_a_predictor_whose_products_overflow_predicts_nothing_absurd(name: str) -> None:
    array = getattr(predictor(), name)
    huge = predictor()._replace(**{name: np.full_like(array, 0.9 * np.finfo(array.dtype).max)})
    others = [table(pair=np.array([1, 5, 8 + n % 2], np.uint64), fill=predictor()) for n in range(K - 1)]
    tables = (table(fill=huge), *others)
    found = sound_metrics(CandidateMetrics(ASKED, {"weighted_advantage": tables}), ASKED, PREDICTED, PREVIOUS)
    scores = selection_metric(stack_tables(found.column("weighted_advantage")), np.ones(K))
    assert not found.bad and np.isfinite(scores).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e13])
def test_a_bad_number_makes_its_candidate_silent(value: float) -> None:
    norms = np.array([1.0, 2.0, value, 3.0, 4.0, 5.0])
    found = sound(CandidateMetrics(ASKED, {"gradient_norm": norms}))
    assert found.column("gradient_norm").tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(found.bad) == 1


def test_a_private_score_may_be_missing_but_not_infinite() -> None:
    scores = np.array([0.1, np.nan, np.inf, 0.2, 0.3, 0.4])
    metrics = CandidateMetrics(ASKED, {"selection_metric": scores}, {"attempts": np.ones(K)}, private=True)
    found = sound(metrics)
    np.testing.assert_array_equal(found.client, np.delete(ASKED, 2))
    assert len(found.costs["attempts"]) == K - 1
    assert [(bad.client, bad.rule, bad.array) for bad in found.bad] == [(8, "finite", "selection_metric")]


def test_an_oversized_reply_is_refused_by_its_description_alone() -> None:
    promise = RawArray("<f4", (10**12,), b"1234")
    with pytest.raises(BadReplyError, match=r"weights claims the shape .* for 4 bytes"):
        checked_arrays({"weights": promise}, {"weights": ArrayRule(np.float32, (None,))})
    with pytest.raises(BadReplyError, match="holds 4 bytes, more than 3"):
        checked_arrays({"weights": promise}, {"weights": ArrayRule(np.float32, (None,))}, largest=3)


@pytest.mark.parametrize("other", [{"client": 4}, {"phase": "evaluate"}, {"round": 8}, {"attempt": 0}])
def test_the_answer_to_another_question_is_refused(other: dict[str, Any]) -> None:
    asked = Stamp(client=3, phase="train", round=7, attempt=1)
    check_stamp(asked, asked)
    with pytest.raises(BadReplyError, match="was asked") as refused:
        check_stamp(asked._replace(**other), asked)
    assert refused.value.rule == "stamp"


SMALL = FederationConfig(num_clients=K, num_candidates=K, num_selected=K, evaluation_episodes=2)
CONFIG = replace(preset("tabular", selector="fedpohcs"), rounds=2, federation=SMALL)


@pytest.mark.parametrize("executor", ["vectorised", "one-by-one"])
def test_a_client_that_goes_wrong_in_this_process_is_named_and_the_round_goes_on(executor: str) -> None:
    class ByzantineExecutor(InProcessExecutor):
        """Client 1 is wrong in every phase."""

        def measure(self, params, round_number, clients, names):  # type: ignore[no-untyped-def]
            metrics = super().measure(params, round_number, clients, names)
            tables = enumerate(metrics.column("weighted_advantage"))
            spoiled = tuple(one._replace(value=one.value * np.nan) if n == 1 else one for n, one in tables)
            return metrics._replace(columns={"weighted_advantage": spoiled})

        def evaluate(self, params, round_number, clients):  # type: ignore[no-untyped-def]
            result = super().evaluate(params, round_number, clients)
            return result._replace(mean_return=np.where(result.client == 1, np.inf, result.mean_return))

    selector, byzantine = SELECTORS["fedpohcs"](), ByzantineExecutor(replace(CONFIG, executor=executor))
    state = ServerState(0, byzantine.initial_params(), selector.init())
    byzantine.evaluate(state.params, 0, np.arange(K))
    state, record = run_round(state, byzantine, selector, replace(SMALL, num_selected=3), 0)
    assert [(bad.client, bad.phase, bad.rule, bad.array) for bad in record.bad_replies] == [
        (1, "measure", "finite", "weighted_advantage/value"),
        (1, "evaluate", "finite", "mean_return"),
    ]
    assert record.candidates.tolist() == [0, 2, 3, 4, 5]
    assert 1 not in record.selection.client
    assert record.evaluation.client.tolist() == [0, 2, 3, 4, 5]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
