"""What each selector does. What all of them must do is in tests/testing/test_contracts.py."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import CandidateMetrics, ClientIds, WeightedAdvantage
from fedpohcs.server.selection import OnePhaseState, Question, top_k

NUM_CLIENTS = 12


def table(client: int) -> WeightedAdvantage:
    generator = np.random.default_rng(client)
    return WeightedAdvantage(np.arange(20, dtype=np.uint64), generator.normal(size=20))


def metrics_of(clients: ClientIds) -> CandidateMetrics:
    return CandidateMetrics(
        clients,
        {
            "mean_return": np.sin(clients.astype(float)),
            "gradient_norm": np.cos(clients.astype(float)),
            "return_gradient": 2 + np.cos(clients.astype(float)),
            "episode_length": 1.0 + clients,
            **{name: 2 + np.cos(clients + 1.0) for name in ("update_norm", "episode_return", "return_std")},
            "gradient_scale": 1.0 + clients,
            "policy_gradient": np.cos(clients[:, None] * np.arange(1.0, 4)),
            "weighted_advantage": tuple(table(int(client)) for client in clients),
        },
    )


def choose(name: str, candidates: ClientIds, k: int, seed: int = 0) -> ClientIds:
    selector = SELECTORS[name]()
    k = len(candidates) if selector.everyone else k
    weight = np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)
    question = Question(candidates, k, NUM_CLIENTS, weight, np.random.default_rng(seed))
    state = selector.init()
    metrics = metrics_of(selector.asks(question, state))
    return selector.select(question, metrics, state)[0].client


FEWER = {"optimal-sampling-approximate", "clustered-sampling"}  # they may draw fewer, or one client twice


@pytest.mark.parametrize("name", SELECTORS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_selects_exactly_k_candidates(name: str, data: st.DataObject) -> None:
    candidates = np.array(data.draw(st.lists(st.integers(0, NUM_CLIENTS - 1), min_size=2, unique=True)))
    k = data.draw(st.integers(1, len(candidates)))
    number = len(choose(name, candidates, k))
    if name in FEWER:
        assert 1 <= number <= k
    else:
        assert number == (len(candidates) if name == "full" else k)


def test_fedavg_chooses_each_candidate_equally_often() -> None:
    counts = np.zeros(6)
    for seed in range(3000):
        counts[choose("fedavg", np.arange(6), 2, seed=seed)] += 1
    np.testing.assert_allclose(counts / 3000, 1 / 3, atol=0.03)


@pytest.mark.parametrize("name", ["fedavg", "full"])
def test_a_selector_without_a_metric_asks_nobody(name: str) -> None:
    question = Question(np.arange(5), 2, 5, np.ones(5), np.random.default_rng(0))
    assert SELECTORS[name]().asks(question, None).size == 0


def test_power_of_choice_takes_the_lowest_returns() -> None:
    candidates = np.arange(8)
    np.testing.assert_array_equal(choose("power-of-choice", candidates, 3), np.sort(np.argsort(np.sin(candidates))[:3]))


def test_gradient_norm_takes_the_largest() -> None:
    candidates = np.arange(8)
    np.testing.assert_array_equal(choose("gradient-norm", candidates, 3), np.sort(np.argsort(-np.cos(candidates))[:3]))


def test_ties_go_to_the_lower_id_and_nan_loses() -> None:
    clients = np.array([7, 3, 5, 1])
    np.testing.assert_array_equal(top_k(clients, np.array([1.0, 1.0, 1.0, np.nan]), 2), [3, 5])


def test_fedpohcs_takes_the_largest_difference_of_potential_and_heterogeneity() -> None:
    candidates = np.arange(6)
    rows = np.stack([table(int(client)).value for client in candidates])
    delta = np.linalg.norm(rows, axis=1) - np.linalg.norm(rows.mean(axis=0) - rows, axis=1)
    np.testing.assert_array_equal(choose("fedpohcs", candidates, 2), np.sort(np.argsort(-delta)[:2]))
    far = np.linalg.norm(rows.mean(axis=0) - rows, axis=1)
    np.testing.assert_array_equal(choose("heterogeneity-only", candidates, 2), np.sort(np.argsort(far)[:2]))
    potential = np.linalg.norm(rows, axis=1)
    np.testing.assert_array_equal(choose("potential-only", candidates, 2), np.sort(np.argsort(-potential)[:2]))


def test_one_phase_asks_everyone_once_and_then_only_those_that_trained() -> None:
    selector = SELECTORS["fedpohcs-one-phase"]()
    weight = np.ones(NUM_CLIENTS)
    first = Question(np.array([1, 4, 6, 9]), 2, NUM_CLIENTS, weight, np.random.default_rng(0))
    state = selector.init()
    np.testing.assert_array_equal(selector.asks(first, state), np.arange(NUM_CLIENTS))
    selection, state = selector.select(first, metrics_of(np.arange(NUM_CLIENTS)), state)
    second = first._replace(candidates=np.array([0, 2, 3, 5]))
    np.testing.assert_array_equal(selector.asks(second, state), selection.client)
    fresh = CandidateMetrics(selection.client, {"weighted_advantage": tuple(table(99) for _ in selection.client)})
    _, refreshed = selector.select(second, fresh, state)
    assert isinstance(refreshed, OnePhaseState)
    np.testing.assert_array_equal(refreshed.tables[int(selection.client[0])].value, table(99).value)
    np.testing.assert_array_equal(refreshed.tables[11].value, table(11).value)


def test_importing_selection_and_making_every_selector_loads_nothing_heavy() -> None:
    program = """
import sys
from fedpohcs.server.selection import SELECTORS, fedpohcs
made = [SELECTORS[name]() for name in SELECTORS]
assert callable(fedpohcs), "the function, not the module of the same name"
print(sorted({"jax", "scipy", "numba"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", "[]\n")
