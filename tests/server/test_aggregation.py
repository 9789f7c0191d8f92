"""Averages by hand, updates that must not count, and what Byzantine clients can do to a robust aggregator."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.registries import AGGREGATORS
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import ClientUpdates
from fedpohcs.learners.networks import AgentParams, init_agent
from fedpohcs.server.aggregation import (
    Aggregation,
    SoundUpdates,
    aggregate,
    parameter_mean,
    policy_mean,
    tabular_policy,
)
from fedpohcs.server.replies import sound_updates
from fedpohcs.server.round import client_weight, update_weight
from fedpohcs.worlds.base import DiscreteActions


def stacked_agents(count: int) -> AgentParams:
    agents = [init_agent(jax.random.key(k), 4, DiscreteActions(3), (), 1.0) for k in range(count)]
    return jax.tree.map(lambda *rows: np.stack(rows), *agents)


def updates(params: AgentParams, steps: list[int]) -> ClientUpdates:
    return ClientUpdates(np.arange(10, 10 + len(steps)), params, np.array(steps))


def checked_aggregate(previous: AgentParams, sent: ClientUpdates, federation: FederationConfig) -> Aggregation:
    """As a round does it: only updates that pass the checks count, each by its steps."""
    sound = sound_updates(sent, sent.client, previous, most_steps=10)
    return aggregate(previous, sound, update_weight(sound, client_weight(federation), federation), federation)


def test_parameter_mean_equals_the_loop() -> None:
    agents, weight = stacked_agents(3), np.array([0.2, 0.3, 0.5])
    mean = parameter_mean(SoundUpdates(agents, weight, None)).params
    expected = sum(w * agents.policy.layers[0].kernel[k] for k, w in enumerate(weight))
    np.testing.assert_allclose(mean.policy.layers[0].kernel, expected, rtol=1e-6)
    assert mean.policy.layers[0].kernel.dtype == np.float32


def test_policy_mean_mixes_probabilities() -> None:
    agents, weight = stacked_agents(3), np.array([0.2, 0.3, 0.5])
    (layer,) = agents.policy.layers
    expected = np.tensordot(weight, tabular_policy(layer.kernel, layer.bias), axes=1)
    (mixed,) = policy_mean(SoundUpdates(agents, weight, None)).params.policy.layers
    np.testing.assert_allclose(tabular_policy(mixed.kernel[None], mixed.bias[None])[0], expected, rtol=1e-5)
    (averaged,) = parameter_mean(SoundUpdates(agents, weight, None)).params.policy.layers
    assert not np.allclose(tabular_policy(averaged.kernel[None], averaged.bias[None])[0], expected, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_update_that_is_not_finite_is_left_out_and_named(bad: float, position: int) -> None:
    agents = stacked_agents(3)
    agents.critic[0].bias[position] = bad
    result = checked_aggregate(take_clients(stacked_agents(1), 0), updates(agents, [5, 5, 5]), FederationConfig())
    np.testing.assert_array_equal(result.rejected, [10 + position])
    others = [k for k in range(3) if k != position]
    np.testing.assert_allclose(
        result.params.policy.layers[0].kernel, agents.policy.layers[0].kernel[others].mean(axis=0), rtol=1e-5
    )


def test_a_round_without_a_valid_update_keeps_the_policy() -> None:
    agents, previous = stacked_agents(2), take_clients(stacked_agents(1), 0)
    agents.kl_coefficient[:] = np.nan
    result = checked_aggregate(previous, updates(agents, [5, 5]), FederationConfig())
    assert result.params is previous
    np.testing.assert_array_equal(result.rejected, [10, 11])


def test_an_update_without_weight_is_left_out() -> None:
    agents = stacked_agents(2)
    result = aggregate(agents, updates(agents, [0, 7]), np.array([0.0, 7.0]), FederationConfig())
    np.testing.assert_array_equal(result.rejected, [10])
    np.testing.assert_allclose(result.params.kl_coefficient, agents.kl_coefficient[1])


ROBUST = [name for name, aggregator in AGGREGATORS.items() if aggregator.least(1) > 1]
HULL = {"coordinate-median": 0, "trimmed-mean": 0, "phocas": 1}  # by how much of the honest range they may leave it
START = jax.tree.map(lambda x: np.asarray(x), init_agent(jax.random.key(99), 4, DiscreteActions(3), (), 1.0))
numbers = st.floats(-1e3, 1e3, width=32)


def from_rows(rows: np.ndarray) -> AgentParams:
    """Stacked agents made of the numbers in each row."""
    leaves, tree = jax.tree.flatten(START)
    ends = np.cumsum([x.size for x in leaves])
    pieces = np.split(rows[:, : ends[-1]].astype(np.float32), ends[:-1], axis=1)
    return jax.tree.unflatten(tree, [p.reshape(len(rows), *x.shape) for p, x in zip(pieces, leaves, strict=True)])


def to_rows(stacked: AgentParams) -> np.ndarray:
    return np.concatenate([np.reshape(x, (len(x), -1)) for x in jax.tree.leaves(stacked)], axis=1)


NUM_NUMBERS = sum(x.size for x in jax.tree.leaves(START))


@st.composite
def some_rows(draw: st.DrawFn, least: int = 5, most: int = 9) -> np.ndarray:
    """Few distinct numbers, spread over many rows, so that ties are frequent."""
    k, pool = draw(st.integers(least, most)), draw(arrays(np.float32, 6, elements=numbers))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    return pool[generator.integers(0, 6, (k, NUM_NUMBERS))].astype(float)


def combined(name: str, rows: np.ndarray, byzantine: int = 1, clients: np.ndarray | None = None) -> np.ndarray:
    clients = np.arange(len(rows)) if clients is None else clients
    federation = FederationConfig(aggregator=name, tolerated_liars=byzantine)
    sent = ClientUpdates(clients, from_rows(rows), np.arange(1, len(rows) + 1))
    result = aggregate(START, sent, sent.steps.astype(float), federation)
    assert len(result.rejected) == 0
    return to_rows(jax.tree.map(lambda x: np.asarray(x)[None], result.params))[0]


@pytest.mark.parametrize("name", ROBUST)
@settings(max_examples=25, deadline=None)
@given(rows=some_rows(), seed=st.integers(0, 99))
def test_the_order_of_arrival_changes_nothing(name: str, rows: np.ndarray, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(rows))
    np.testing.assert_array_equal(combined(name, rows), combined(name, rows[order], clients=order))


@pytest.mark.parametrize("name", ROBUST)
@settings(max_examples=25, deadline=None)
@given(row=arrays(np.float32, NUM_NUMBERS, elements=numbers), k=st.integers(5, 9))
def test_equal_updates_are_the_result(name: str, row: np.ndarray, k: int) -> None:
    np.testing.assert_allclose(combined(name, np.repeat(row[None], k, axis=0)), row, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("name", HULL)
@settings(max_examples=25, deadline=None)
@given(rows=some_rows(), forged=arrays(np.float32, NUM_NUMBERS, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_one_byzantine_client_cannot_leave_the_range_of_the_honest(
    name: str, rows: np.ndarray, forged: np.ndarray
) -> None:
    result = combined(name, np.concatenate([rows, forged[None]]))
    slack = HULL[name] * np.ptp(rows, axis=0) * (1 + 1e-6)
    assert (result >= rows.min(axis=0) - slack).all()
    assert (result <= rows.max(axis=0) + slack).all()


@settings(max_examples=25, deadline=None)
@given(
    rows=some_rows(7, 9),
    forged=arrays(np.float32, (2, NUM_NUMBERS), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
)
def test_two_byzantine_clients_need_two_to_be_tolerated(rows: np.ndarray, forged: np.ndarray) -> None:
    result = combined("trimmed-mean", np.concatenate([rows, forged]), byzantine=2)
    assert (result >= rows.min(axis=0)).all()
    assert (result <= rows.max(axis=0)).all()
    far = np.full_like(forged, 1e30)
    assert (combined("trimmed-mean", np.concatenate([rows, far]), byzantine=1) > rows.max(axis=0)).all()


@pytest.mark.parametrize("name", ["krum", "multi-krum"])
def test_krum_leaves_out_whoever_is_far_from_the_others(name: str) -> None:
    rows = np.random.default_rng(0).normal(size=(6, NUM_NUMBERS))
    for byzantine in range(6):
        attacked = rows.copy()
        attacked[byzantine] += 100
        assert (combined(name, attacked) < 50).all()
    mean = np.delete(rows, 5, axis=0).mean(axis=0)
    rows[5] = 1e6
    if name == "multi-krum":
        np.testing.assert_allclose(combined(name, rows), mean, rtol=1e-5, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(rows=some_rows(), forged=arrays(np.float32, NUM_NUMBERS, elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_norm_clip_moves_no_part_farther_than_the_limit(rows: np.ndarray, forged: np.ndarray) -> None:
    start = to_rows_of(START)[0]
    attacked = np.concatenate([rows, forged[None]])
    ends = np.cumsum([sum(x.size for x in jax.tree.leaves(part)) for part in START])[:-1]
    changes = np.split(attacked - start, ends, axis=1)
    for moved, change in zip(np.split(combined("norm-clip", attacked) - start, ends), changes, strict=True):
        largest = FederationConfig().change_limit * np.median(np.linalg.norm(change, axis=1))
        assert np.linalg.norm(moved) <= largest * (1 + 1e-6) + 1e-3


@pytest.mark.parametrize("k", [5, 6, 9])
def test_the_rules_agree_with_plain_implementations(k: int) -> None:
    """The policy is one vector, the critic another, the KL coefficient a third."""
    rows = np.random.default_rng(k).normal(size=(k, NUM_NUMBERS)).astype(np.float32).astype(float)
    np.testing.assert_allclose(combined("coordinate-median", rows), np.median(rows, axis=0), rtol=1e-6)
    np.testing.assert_allclose(combined("trimmed-mean", rows), trim_mean(rows, 1 / k + 1e-9, axis=0), rtol=1e-5)
    np.testing.assert_allclose(combined("phocas", rows), [plain_phocas(column) for column in rows.T], rtol=1e-5)
    sizes = [sum(x.size for x in jax.tree.leaves(part)) for part in START]
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    order = [krum_order(part, byzantine=1) for part in parts]
    krum = np.concatenate([part[best[0]] for part, best in zip(parts, order, strict=True)])
    np.testing.assert_allclose(combined("krum", rows), krum, rtol=1e-6)
    several = np.concatenate([part[best[: k - 1]].mean(axis=0) for part, best in zip(parts, order, strict=True)])
    np.testing.assert_allclose(combined("multi-krum", rows), several, rtol=1e-5, atol=1e-7)


def plain_phocas(column: np.ndarray) -> float:
    centre = np.mean(sorted(column)[1:-1])
    return float(np.mean(sorted(column, key=lambda value: abs(value - centre))[:-1]))


def krum_order(rows: np.ndarray, byzantine: int) -> list[int]:
    """By brute force: the least sum of squared distances over all sets of K - f - 2 others."""

    def score(one: int) -> float:
        others = [float(np.sum((rows[one] - rows[other]) ** 2)) for other in range(len(rows)) if other != one]
        return min(sum(some) for some in itertools.combinations(others, len(rows) - byzantine - 2))

    return sorted(range(len(rows)), key=score)


@settings(max_examples=25, deadline=None)
@given(rows=some_rows(5, 7))
def test_equally_good_updates_are_chosen_by_the_lower_id(rows: np.ndarray) -> None:
    doubled = np.concatenate([rows, rows])
    ids = np.arange(len(doubled))
    federation = FederationConfig(aggregator="krum")
    sent = ClientUpdates(ids, from_rows(doubled), np.ones(len(ids), int))
    counted = aggregate(START, sent, np.ones(len(ids)), federation).info["counted"]
    assert counted[len(rows) :].sum() == 0


@pytest.mark.parametrize("name", ROBUST)
def test_what_each_update_contributed_is_told(name: str) -> None:
    rows = np.random.default_rng(1).normal(size=(6, NUM_NUMBERS))
    rows[2] = 1e4
    federation = FederationConfig(aggregator=name, filter_sigma=10.0)
    sent = ClientUpdates(np.arange(10, 16), from_rows(rows), np.ones(6, int))
    counted = aggregate(START, sent, np.ones(6), federation).info["counted"]
    assert ((counted >= 0) & (counted <= 1)).all()
    assert counted[2] == counted.min() < 0.01
    assert counted.max() > 0.1


def test_steps_that_a_client_claims_do_not_weigh_in_a_robust_aggregator() -> None:
    agents = from_rows(np.random.default_rng(2).normal(size=(6, NUM_NUMBERS)))
    for name in ROBUST:
        results = [
            aggregate(START, updates(agents, [1] * 6), np.array([claim, *[1.0] * 5]), FederationConfig(aggregator=name))
            for claim in (1.0, 1e9)
        ]
        np.testing.assert_array_equal(to_rows_of(results[0].params), to_rows_of(results[1].params))


class Critics(NamedTuple):
    """The parameters of a learner without a policy; one of its parts has no numbers."""

    first: dict
    second: tuple
    nothing: tuple = ()


def critics(numbers: np.ndarray) -> Critics:
    numbers = numbers.astype(np.float32)
    return Critics({"w": numbers[..., :4].reshape(*numbers.shape[:-1], 2, 2)}, (numbers[..., 4], numbers[..., 5:]))


@pytest.mark.parametrize("kind", ["named tuple", "dict"])
@pytest.mark.parametrize("name", ROBUST)
def test_parts_of_any_name_are_treated_apart(name: str, kind: str) -> None:
    """Each part of the result is what the rule makes of that part alone."""
    numbers = np.random.default_rng(4).normal(size=(7, 9))
    numbers[0, :4] += 1000  # farthest off in one part,
    numbers[1, 4:] += 100  # and another client in the other part

    def merge(make: Callable[[np.ndarray], Any]) -> Any:
        params = make(numbers)
        sent = ClientUpdates(np.arange(7), params, np.ones(7, int))
        return aggregate(make(np.zeros(9)), sent, np.ones(7), FederationConfig(aggregator=name)).params

    whole = merge(critics if kind == "named tuple" else lambda x: critics(x)._asdict())
    assert isinstance(whole, Critics if kind == "named tuple" else dict)
    parts = whole._asdict() if isinstance(whole, Critics) else whole
    alone = {part: merge(lambda x, part=part: {part: getattr(critics(x), part)})[part] for part in ("first", "second")}
    for part, expected in alone.items():
        jax.tree.map(np.testing.assert_array_equal, parts[part], expected)
    assert parts["nothing"] == ()
    together = merge(lambda x: {"all": x.astype(np.float32)})["all"]
    if name in ("krum", "multi-krum", "norm-clip"):  # the others treat every single number apart
        assert not np.allclose(together[4:], np.concatenate([[parts["second"][0]], parts["second"][1]]))


def to_rows_of(params: AgentParams) -> np.ndarray:
    return to_rows(jax.tree.map(lambda x: np.asarray(x)[None], params))


@pytest.mark.parametrize("name", ROBUST)
def test_too_few_sound_updates_keep_the_policy_and_all_are_named(name: str) -> None:
    rows = np.random.default_rng(3).normal(size=(5, NUM_NUMBERS))
    least = AGGREGATORS[name].least(1)
    rows[: 5 - least + 1] = np.nan
    federation = FederationConfig(aggregator=name)
    agents = from_rows(rows)
    result = checked_aggregate(START, updates(agents, [1] * 5), federation)
    assert result.params is START
    np.testing.assert_array_equal(result.rejected, np.arange(10, 15))
    enough = checked_aggregate(START, updates(agents, [1] * 5), replace(federation, tolerated_liars=0))
    assert (enough.params is START) == (least - 1 < AGGREGATORS[name].least(0))
