"""Optimal client sampling: probabilities, draws, and updates that count by 1/p without bias."""

from dataclasses import replace

import numpy as np
import pytest
from shifting_clients import Weights, weights

from fedpohcs.core.config import FederationConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import CandidateMetrics, ClientUpdates, Selection
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.server.aggregation import aggregate
from fedpohcs.server.round import update_weight
from fedpohcs.server.selection import Question, Selector, make_selector
from fedpohcs.server.selection.checks import choose_clients
from fedpohcs.server.selection.optimal import approximate_probabilities
from fedpohcs.server.selection.sampling import inclusion_probabilities

CLIENTS = np.arange(5)
NORMS = np.array([8.0, 1.0, 3.0, 2.0, 0.5])
NAMES = ["optimal-sampling", "optimal-sampling-approximate"]
SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=3, evaluation_episodes=1)
CONFIG = replace(preset("tabular"), rounds=2, federation=SMALL)


def published_probabilities(size: np.ndarray, number: int) -> np.ndarray:
    """As published: l is the largest integer with 0 < K + l - d <= sum of the l smallest over the l-th smallest."""
    order, count = np.argsort(size), len(size)
    ascending = size[order]
    fitting = [
        largest
        for largest in range(1, count + 1)
        if 0 < number + largest - count <= ascending[:largest].sum() / ascending[largest - 1]
    ]
    largest = max(fitting)
    probability = np.ones(count)
    probability[order[:largest]] = (number + largest - count) * ascending[:largest] / ascending[:largest].sum()
    return probability


@pytest.mark.parametrize("seed", range(10))
def test_exact_probabilities_are_the_published_ones(seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = generator.lognormal(sigma=2, size=9)
    for number in range(1, 9):
        expected = published_probabilities(size, number)
        np.testing.assert_allclose(inclusion_probabilities(size, number), expected, rtol=1e-9)


def test_approximate_probabilities_are_adjusted_at_most_four_times() -> None:
    """By hand, K = 3: 3/125 of 100, 20, 4 and 1 are 2.4, .48, .096 and .024. The first is cut to 1, and the others,
    which sum to .6, are scaled to 3 - 4 + 3 = 2 in all: 1.6, .32, .08. The second is cut, and .4 is scaled to 1."""
    np.testing.assert_allclose(approximate_probabilities(np.array([100.0, 20, 4, 1]), 3), [1, 1, 0.8, 0.2])
    steep = 100.0 ** np.arange(9)
    assert approximate_probabilities(steep, 8).sum() < 8 - 1e-3  # every adjustment cuts one of the eight largest
    np.testing.assert_allclose(approximate_probabilities(steep, 2), inclusion_probabilities(steep, 2), rtol=1e-9)


def chosen(selector: Selector, norms: np.ndarray, k: int, seed: int) -> tuple[Question, Selection]:
    question = Question(CLIENTS, k, 5, np.full(5, 0.2), np.random.default_rng(seed))
    metrics = CandidateMetrics(CLIENTS, {"update_norm": norms})
    return question, choose_clients(selector, question, metrics, None)[0]


def after_a_round(selector: Selector, norms: np.ndarray, k: int, seed: int) -> tuple[Weights, Weights, ClientUpdates]:
    """The new policy if client n changes the policy by its norm in direction n, its mean, and the updates."""
    question, selection = chosen(selector, norms, k, seed)
    rows = np.diag(norms).astype(np.float32)[selection.client]
    count = len(rows)
    stacked = Weights(rows, (np.zeros(count, np.float32),), np.full(count, 2.0, np.float32))
    updates = ClientUpdates(selection.client, stacked, np.full(count, 10))
    weight = update_weight(updates, question.weight, SMALL, selection)
    start = weights(np.zeros(5))
    new = aggregate(start, updates, weight, SMALL, selection.total).params
    return new, aggregate(start, updates, np.ones(count), SMALL).params, updates


@pytest.mark.parametrize("name", NAMES)
def test_the_change_is_on_average_that_of_all_candidates(name: str) -> None:
    """A mean that is divided by the sum of the weights is not: it is too long for some and too short for others."""
    selector = make_selector(name)
    rounds = [after_a_round(selector, NORMS, 2, seed) for seed in range(1000)]
    np.testing.assert_allclose(np.mean([new.policy for new, _, _ in rounds], axis=0), NORMS / 5, rtol=0.15)
    assert not np.allclose(np.mean([mean.policy for _, mean, _ in rounds], axis=0), NORMS / 5, rtol=0.3)
    assert all(len(updates.client) <= 2 for _, _, updates in rounds)
    assert {float(new.temperature) for new, _, _ in rounds} == {2.0}  # a control is averaged


@pytest.mark.parametrize("name", NAMES)
def test_equal_norms_give_plain_averaging_to_the_byte(name: str) -> None:
    for seed in range(50):
        new, mean, updates = after_a_round(make_selector(name), np.full(5, 3.0), 3, seed)
        assert len(updates.client) == 3
        assert new.policy.tobytes() == mean.policy.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_clients_without_a_norm_are_drawn_only_where_nobody_has_one(name: str) -> None:
    selector = make_selector(name)
    drawn = {len(chosen(selector, np.full(5, np.nan), 2, seed)[1].client) for seed in range(20)}
    assert drawn == {2}
    some = np.array([np.nan, 1, 1, 1, np.nan])
    assert all(set(chosen(selector, some, 2, seed)[1].client) <= {1, 2, 3} for seed in range(50))


def test_a_total_that_is_no_number_is_refused() -> None:
    wrong = Selector(lambda question, metrics, state: (Selection(CLIENTS[:1], total=-1.0), state), name="mine")
    with pytest.raises(UserError, match=r"selector 'mine' returned -1.0 as total"):
        chosen(wrong, NORMS, 2, 0)


def test_the_norm_is_that_of_the_update_that_is_then_sent_and_measuring_leaves_no_trace() -> None:
    executor, other = InProcessExecutor(CONFIG), InProcessExecutor(CONFIG)
    params, clients = executor.initial_params(), np.array([3, 0, 4])
    norms = executor.measure(params, 0, clients, {"update_norm"}).column("update_norm")
    sent, unmeasured = executor.train(params, 0, clients), other.train(params, 0, clients)
    (layer,), (start,) = sent.params.policy.layers, params.policy.layers
    change = [np.append(layer.kernel[row] - start.kernel, layer.bias[row] - start.bias) for row in range(3)]
    np.testing.assert_allclose(norms, np.linalg.norm(np.array(change, float), axis=1), rtol=1e-6)
    assert layer.kernel.tobytes() == unmeasured.params.policy.layers[0].kernel.tobytes()
    memory, untouched = executor.state.memory, other.state.memory
    assert str(memory) == str(untouched)


@pytest.mark.parametrize("privacy", ["none", "masked"])
def test_a_run_costs_one_number_per_candidate(privacy: str) -> None:
    if privacy == "masked":
        pytest.importorskip("cryptography")
    config = replace(CONFIG, selector="optimal-sampling", protection=ProtectionConfig(release="scores"))
    records = run_experiment(replace(config, privacy=privacy)).records[1:]  # type: ignore[arg-type]
    for record in records:
        assert len(record.selection.client) == 3
        assert record.selection.total == pytest.approx(4 / 5)
        assert len(record.upload_bytes) == 4
    if privacy == "none":
        assert {size for record in records for size in record.upload_bytes.values()} == {8}
