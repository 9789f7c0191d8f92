"""Selectors of the literature, against formulas written out again, cases worked by hand, and rules they reduce to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shifting_clients import Weights, weights

from fedpohcs.core.config import FederationConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import CandidateMetrics, ClientUpdates, Selection, WeightedAdvantage
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.server.selection import Question, make_selector
from fedpohcs.server.selection.afl import softmax_of_largest
from fedpohcs.server.selection.checks import choose_clients
from fedpohcs.server.selection.clustered import angles, equal_groups
from fedpohcs.server.selection.oort import scores as oort_scores

N = 6
WEIGHT = np.array([0.3, 0.1, 0.1, 0.2, 0.1, 0.2])
SMALL = FederationConfig(num_clients=6, num_candidates=5, num_selected=2, evaluation_episodes=2)
CONFIG = replace(preset("tabular"), rounds=4, federation=SMALL)
FILES = ("rounds.csv", "clients.csv", "policy.npz")


def ask(candidates: Any = range(N), k: int = 2, seed: int = 0, weight: np.ndarray = WEIGHT) -> Question:
    return Question(np.array(candidates, int), k, N, weight, np.random.default_rng(seed))


def choose(name: str, question: Question, state: Any = None, **columns: Any) -> tuple[Selection, Any]:
    """The choice among candidates whose metrics are given for all clients, and the new state."""
    selector = make_selector(name)
    state = selector.init() if state is None else state
    asked = selector.asks(question, state)
    metrics = CandidateMetrics(asked, {key: np.asarray(column)[asked] for key, column in columns.items()})
    return choose_clients(selector, question, metrics, state)


# Power-of-Choice


def test_cpow_d_takes_the_lowest_of_single_episodes() -> None:
    selection, _ = choose("cpow-d", ask([5, 1, 3, 2]), episode_return=[0.0, 4, 3, -1, 0, 9])
    assert selection.client.tolist() == [2, 3]


def test_cpow_d_is_power_of_choice_where_clients_play_a_single_episode() -> None:
    single = replace(CONFIG, rounds=2, federation=replace(SMALL, evaluation_episodes=1))
    chosen = [run_experiment(replace(single, selector=name)).records for name in ("cpow-d", "power-of-choice")]
    for one, other in zip(*chosen, strict=True):
        assert one.selection.client.tolist() == other.selection.client.tolist()
        assert one.evaluation.mean_return.tobytes() == other.evaluation.mean_return.tobytes()


def test_rpow_d_takes_clients_that_never_trained_and_then_the_lowest_of_remembered_returns() -> None:
    returns = np.array([5.0, 1, 2, 3, 4, 0])
    first, state = choose("rpow-d", ask([0, 1, 2]), mean_return=returns)
    assert first.client.tolist() == [0, 1] and np.isnan(first.scores["loss"]).all()
    second, state = choose("rpow-d", ask([0, 1, 2, 3]), state, mean_return=returns)
    assert second.client.tolist() == [2, 3]
    assert second.scores["loss"][:2].tolist() == [-5, -1]  # they trained last, so they were asked
    changed = np.zeros(N) + 100
    third, state = choose("rpow-d", ask([0, 1, 2, 3]), state, mean_return=changed)
    assert third.scores["loss"].tolist() == [-5, -1, -100, -100]
    assert third.client.tolist() == [0, 1]
    assert make_selector("rpow-d").asks(ask(), state).tolist() == [0, 1]


def test_rpow_d_is_power_of_choice_once_the_candidates_are_those_that_trained() -> None:
    returns = np.sin(np.arange(N))
    _, state = choose("rpow-d", ask(k=N), mean_return=returns)
    remembered, _ = choose("rpow-d", ask(k=3), state, mean_return=returns)
    fresh, _ = choose("power-of-choice", ask(k=3), mean_return=returns)
    assert remembered.client.tolist() == fresh.client.tolist()
    assert remembered.scores["loss"].tolist() == fresh.scores["loss"].tolist()


# Scores


def test_learnability_prefers_clients_that_succeed_in_half_of_their_episodes() -> None:
    success = np.array([0.0, 0.9, 0.5, 1.0, 0.4, 0.2])
    selection, _ = choose("learnability", ask(), return_std=np.sqrt(success * (1 - success)))
    assert selection.client.tolist() == [2, 4]
    np.testing.assert_allclose(selection.scores["learnability"], success * (1 - success))


def test_leave_one_out_compares_with_the_weighted_mean_of_the_others() -> None:
    rows = np.random.default_rng(0).normal(size=(N, 8))
    candidates = [4, 0, 2, 3]
    tables = tuple(WeightedAdvantage(np.arange(8, dtype=np.uint64), rows[client]) for client in candidates)
    metrics = CandidateMetrics(np.array(candidates), {"weighted_advantage": tables})
    selection, _ = make_selector("leave-one-out").select(ask(candidates), metrics, None)
    expected = []
    for client in candidates:
        others = [other for other in candidates if other != client]
        mean = sum(WEIGHT[other] * rows[other] for other in others) / sum(WEIGHT[other] for other in others)
        expected.append(np.linalg.norm(rows[client]) - np.linalg.norm(rows[client] - mean))
    np.testing.assert_allclose(selection.scores["leave_one_out"], expected)
    assert selection.client.tolist() == sorted(np.array(candidates)[np.argsort(expected)[-2:]].tolist())


def test_leave_one_out_of_a_single_candidate_is_its_learning_potential() -> None:
    table = WeightedAdvantage(np.arange(2, dtype=np.uint64), np.array([3.0, 4.0]))
    metrics = CandidateMetrics(np.array([1]), {"weighted_advantage": (table,)})
    selection, _ = make_selector("leave-one-out").select(ask([1], k=1), metrics, None)
    assert selection.scores["leave_one_out"].tolist() == [5.0]


def test_agreement_is_the_gain_of_the_others_along_the_direction_of_a_client() -> None:
    gradient = np.random.default_rng(1).normal(size=(N, 4)).astype(np.float32)
    candidates = [5, 1, 0, 3]
    selection, _ = choose("gradient-agreement", ask(candidates), policy_gradient=gradient)
    expected = []
    for client in candidates:
        others = [other for other in candidates if other != client]
        mean = np.average(gradient[others].astype(float), axis=0, weights=WEIGHT[others])
        expected.append(gradient[client] @ mean / np.linalg.norm(gradient[client].astype(float)))
    np.testing.assert_allclose(selection.scores["agreement"], expected, rtol=1e-5)
    lengthened, _ = choose("gradient-agreement", ask(candidates, 1), policy_gradient=100 * gradient)
    assert lengthened.client.tolist() == [candidates[int(np.argmax(expected))]]
    flat, _ = choose("gradient-agreement", ask(candidates), policy_gradient=0 * gradient)
    assert flat.scores["agreement"].tolist() == [0, 0, 0, 0]


# DivFL


def test_divfl_takes_one_client_of_each_group_and_counts_it_for_the_group() -> None:
    """Clients 0, 1, 2 and 4, 5 have similar gradients, client 3 stands alone. The first one taken is nearest to all."""
    gradient = np.array([[0.0, 1.0], [0.0, 1.2], [0.0, 0.9], [9.0, 0.0], [5.0, 5.0], [5.0, 5.1]], np.float32)
    selection, _ = choose("divfl", ask(k=3, weight=np.full(N, 1 / N)), policy_gradient=gradient)
    assert selection.client.tolist() == [1, 3, 4]  # 4 and 5 are a tie, which the lower id wins
    np.testing.assert_allclose(np.asarray(selection.weight) * N, [3, 1, 2])
    shuffled, _ = choose("divfl", ask([3, 5, 0, 4, 2, 1], k=3, weight=np.full(N, 1 / N)), policy_gradient=gradient)
    assert shuffled.client.tolist() == [1, 3, 4]
    assert shuffled.scores["distance"][[0, 3, 5]].tolist() == [0, 0, 0]


def test_divfl_adds_in_every_step_the_client_that_lowers_the_cost_most() -> None:
    gradient = np.random.default_rng(2).normal(size=(N, 3))
    selection, _ = choose("divfl", ask(k=4), policy_gradient=gradient)

    def cost(members: list[int]) -> float:
        return sum(WEIGHT[k] * min(((gradient[k] - gradient[i]) ** 2).sum() for i in members) for k in range(N))

    members: list[int] = []
    for _ in range(4):
        members.append(min(set(range(N)) - set(members), key=lambda one: cost([*members, one])))
    assert selection.client.tolist() == sorted(members)


@pytest.mark.parametrize("equal", [False, True])
def test_divfl_with_all_candidates_is_full_participation(equal: bool) -> None:
    gradient = np.ones((N, 2)) if equal else np.random.default_rng(3).normal(size=(N, 2))
    selection, _ = choose("divfl", ask(k=N), policy_gradient=gradient)
    assert selection.client.tolist() == list(range(N))
    np.testing.assert_array_equal(np.asarray(selection.weight), WEIGHT)


# Clustered sampling


def observed(rows: dict[int, list[float]], steps: int = 10) -> Any:
    """The state after these changes of the policy."""
    clients, changes = np.array(list(rows)), np.array(list(rows.values()), np.float32)
    start = weights(np.array([1.0, -1.0]))
    count = len(clients)
    stacked = Weights(start.policy + changes, (np.zeros(count, np.float32),), np.ones(count, np.float32))
    selector = make_selector("clustered-sampling")
    assert selector.observe is not None
    updates = ClientUpdates(clients, stacked, np.full(count, steps))
    return selector.observe(selector.init(), updates, start)


def test_clustered_sampling_draws_one_client_of_each_direction() -> None:
    """The length of an update does not matter, only its direction; half of all weight goes each way."""
    state = observed({0: [1, 0], 1: [9, 1], 2: [2, 0], 3: [0, 1], 4: [0, 7], 5: [1, 9]})
    even = np.full(N, 1 / N)
    pairs = [choose("clustered-sampling", ask(seed=seed, weight=even), state)[0].client for seed in range(60)]
    assert all(one < 3 <= other for one, other in pairs)
    assert len({tuple(pair) for pair in pairs}) == 9  # every pair occurs
    uneven = observed({0: [1, 0], 1: [1, 0.3], 2: [1, 0], 3: [1, 0.3], 4: [1, 0], 5: [0, 1]})  # 5 of 6 are too many
    for seed in range(20):
        chosen = set(choose("clustered-sampling", ask(seed=seed, weight=even), uneven)[0].client)
        assert len(chosen & {0, 2, 4}) == len(chosen & {1, 3, 5}) == 1


@pytest.mark.parametrize("k", [1, 2, 4])
def test_clustered_sampling_counts_every_candidate_by_its_weight_on_average(k: int) -> None:
    state = observed({0: [1, 0], 2: [1, 0.1], 3: [0, 1], 5: [-1, 0]})  # 1 and 4 never trained
    candidates = [0, 1, 3, 4, 5]
    counted = np.zeros(N)
    for seed in range(400):
        selection, _ = choose("clustered-sampling", ask(candidates, k, seed), state)
        assert selection.weight is not None and selection.weight.sum() == k
        counted[selection.client] += selection.weight / k
    expected = np.where(np.isin(np.arange(N), candidates), WEIGHT, 0) / WEIGHT[candidates].sum()
    np.testing.assert_allclose(counted / 400, expected, atol=0.07)


def test_clustered_sampling_of_all_equal_candidates_is_full_participation() -> None:
    state = observed({0: [1, 0], 2: [1, 0.1], 3: [0, 1], 5: [-1, 0]})
    selection, _ = choose("clustered-sampling", ask(k=N, weight=np.full(N, 1 / N)), state)
    assert selection.client.tolist() == list(range(N)) and selection.weight.tolist() == [1] * N


def test_groups_have_equal_weight_and_hold_all_of_every_client() -> None:
    generator = np.random.default_rng(4)
    for _ in range(50):
        count = int(generator.integers(1, 9))
        number, weight = int(generator.integers(1, count + 1)), generator.dirichlet(np.ones(count))
        rows = {client: generator.normal(size=3) for client in range(0, count, 2)}
        groups = equal_groups(angles(list(range(count)), rows), weight, number)
        np.testing.assert_allclose(groups.sum(axis=1), 1)
        np.testing.assert_allclose(groups.sum(axis=0), number * weight)


def test_an_update_without_steps_is_not_remembered() -> None:
    assert observed({2: [1, 0]}, steps=0) == {}


# Oort and AFL


def test_the_first_round_of_oort_is_that_of_fedavg() -> None:
    for seed in range(5):
        selection, _ = choose("oort", ask([4, 2, 0, 5], seed=seed))
        plain, _ = choose("fedavg", ask([4, 2, 0, 5], seed=seed))
        assert selection.client.tolist() == plain.client.tolist()


def test_the_score_of_oort_is_utility_from_0_to_1_and_a_bonus_for_trainings_long_ago() -> None:
    """Of 1, 2 and 5 the 95 % quantile is 4.7, to which 5 is cut; the bonus in round 4 is sqrt(.1 ln 4 / last)."""
    found = oort_scores(np.array([1.0, 2.0, 5.0]), np.array([3, 1, 2]), 4)
    bonus = [np.sqrt(0.1 * np.log(4) / last) for last in (3, 1, 2)]
    np.testing.assert_allclose(found, np.array([0, 1 / 3.7, 1]) + bonus)
    np.testing.assert_allclose(oort_scores(np.array([2.0, 2.0]), np.array([1, 1]), 1), [1, 1])


def test_oort_explores_less_every_round_and_exploits_the_best_of_those_it_knows() -> None:
    """In round 41 the share of clients that never trained is max(.9 .98^40, .3) = .4, which is 1 of 2 by rounding."""
    known = np.array([1.0, 1.0, 10.0, np.nan, np.nan, np.nan])
    state = {
        "known": known,
        "trained": np.arange(0),
        "last": np.array([40, 40, 40, 0, 0, 0]),
        "round": np.array(40),
    }
    choices = [choose("oort", ask(seed=seed), state)[0].client.tolist() for seed in range(40)]
    assert {one for one, _ in choices} == {2} and {other for _, other in choices} == {3, 4, 5}
    _, after = choose("oort", ask(), state)
    assert after["round"] == 41 and after["last"][2] == 41
    assert state["last"][2] == 40
    everyone = {**state, "known": np.arange(1.0, 7), "last": np.full(N, 40)}
    assert {tuple(choose("oort", ask(seed=seed), everyone)[0].client) for seed in range(20)} == {(4, 5)}


def test_afl_draws_by_a_softmax_of_the_largest_losses() -> None:
    """By hand: three quarters of 8 values are left out; the two that stay are drawn like exp(1) to 1."""
    loss = np.array([0.0, 100, 50, 200, -7, np.nan, 3, 1])
    probability = softmax_of_largest(loss, 0.01, 0.75)
    np.testing.assert_allclose(probability[[1, 3]], [1 / (1 + np.e), np.e / (1 + np.e)])
    assert np.count_nonzero(probability) == 2


def test_afl_draws_a_tenth_of_the_clients_at_random_and_knows_everyone_from_the_start() -> None:
    returns = -np.array([0.0, 0.0, 0.0, 0.0, 0.0, 900.0])
    assert make_selector("afl").asks(ask([0, 1]), None).tolist() == list(range(N))
    drawn = [choose("afl", ask(k=1, seed=seed), mean_return=returns)[0].client[0] for seed in range(30)]
    assert set(drawn) == {5}
    _, state = choose("afl", ask(k=1), mean_return=returns)
    assert make_selector("afl").asks(ask([0, 1]), state).tolist() == [5]
    five = [choose("afl", ask(k=5, seed=seed), mean_return=returns)[0].client for seed in range(200)]
    drawn = np.mean([np.isin(np.arange(N), client) for client in five], axis=0)
    np.testing.assert_allclose(drawn, [1, *[0.75] * 4, 1], atol=0.12)  # 2 of 6 by the softmax, the other 3 at random


def test_afl_without_any_loss_is_fedavg() -> None:
    for seed in range(5):
        selection, _ = choose("afl", ask([4, 2, 0, 5], seed=seed), mean_return=np.full(N, np.nan))
        plain, _ = choose("fedavg", ask([4, 2, 0, 5], seed=seed))
        assert selection.client.tolist() == plain.client.tolist()


# In runs

REFUSED = {
    "leave-one-out": "needs the tables themselves",
    "gradient-agreement": "reads the metric 'policy_gradient', which privacy 'masked' cannot hide",
    "divfl": "reads the metric 'policy_gradient', which privacy 'masked' cannot hide",
}


NEEDS_SCORES = ("rpow-d", "afl", "oort", "optimal-sampling", "optimal-sampling-approximate")
SCORES = ProtectionConfig(release="scores")


@pytest.mark.parametrize("name", [*REFUSED, *NEEDS_SCORES])
def test_selectors_that_privacy_cannot_serve_are_refused_in_one_line(name: str) -> None:
    pytest.importorskip("cryptography")
    with pytest.raises(UserError, match=REFUSED.get(name, "--protection.release scores")) as refused:
        check_config(replace(CONFIG, selector=name, privacy="masked"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["cpow-d", "learnability", "clustered-sampling", "rpow-d", "afl", "oort"])
def test_other_selectors_work_under_privacy_with_ids_or_with_scores(name: str) -> None:
    pytest.importorskip("cryptography")
    protection = SCORES if name in NEEDS_SCORES else ProtectionConfig()
    config = replace(CONFIG, selector=name, privacy="masked", protection=protection, rounds=2)
    assert all(len(record.selection.client) for record in run_experiment(config).records[1:])


@pytest.mark.parametrize("name", ["gradient-agreement", "divfl"])
def test_runs_by_gradients_select_and_count_their_bytes(name: str) -> None:
    _, record = run_experiment(replace(CONFIG, selector=name, rounds=1)).records
    assert len(record.selection.client) == 2
    assert set(record.upload_bytes.values()) == {4 * (6 * 3 + 3)}  # one linear layer


@pytest.mark.parametrize("name", ["rpow-d", "clustered-sampling", "oort", "afl"])
def test_runs_of_selectors_that_remember_resume_to_the_byte(name: str, tmp_path: Path) -> None:
    config = replace(CONFIG, selector=name)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=2), tmp_path / "parts")
    resume_experiment(tmp_path / "parts", rounds=4)
    for file in FILES:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
