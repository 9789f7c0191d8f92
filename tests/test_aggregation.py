"""Averages by hand, and updates that must not count."""

import jax
import numpy as np
import pytest

from fedpohcs.aggregation import AGGREGATORS, aggregate, parameter_mean, policy_mean, tabular_policy
from fedpohcs.envs.base import DiscreteActions
from fedpohcs.learners.networks import AgentParams, init_agent
from fedpohcs.types import ClientUpdates


def stacked_agents(count: int) -> AgentParams:
    agents = [init_agent(jax.random.key(k), 4, DiscreteActions(3), (), 1.0) for k in range(count)]
    return jax.tree.map(lambda *rows: np.stack(rows), *agents)


def updates(params: AgentParams, steps: list[int]) -> ClientUpdates:
    return ClientUpdates(np.arange(10, 10 + len(steps)), params, np.array(steps))


def test_parameter_mean_equals_the_loop() -> None:
    agents, weight = stacked_agents(3), np.array([0.2, 0.3, 0.5])
    mean = parameter_mean(agents, weight)
    expected = sum(w * agents.policy.layers[0].kernel[k] for k, w in enumerate(weight))
    np.testing.assert_allclose(mean.policy.layers[0].kernel, expected, rtol=1e-6)
    assert mean.policy.layers[0].kernel.dtype == np.float32


def test_policy_mean_mixes_probabilities() -> None:
    agents, weight = stacked_agents(3), np.array([0.2, 0.3, 0.5])
    (layer,) = agents.policy.layers
    expected = np.tensordot(weight, tabular_policy(layer.kernel, layer.bias), axes=1)
    (mixed,) = policy_mean(agents, weight).policy.layers
    np.testing.assert_allclose(tabular_policy(mixed.kernel[None], mixed.bias[None])[0], expected, rtol=1e-5)
    (averaged,) = parameter_mean(agents, weight).policy.layers
    assert not np.allclose(tabular_policy(averaged.kernel[None], averaged.bias[None])[0], expected, rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_update_that_is_not_finite_is_left_out_and_named(bad: float, position: int) -> None:
    agents = stacked_agents(3)
    agents.critic[0].bias[position] = bad
    result = aggregate(agents, updates(agents, [5, 5, 5]), np.full(3, 5.0), AGGREGATORS["parameter-mean"])
    np.testing.assert_array_equal(result.rejected, [10 + position])
    others = [k for k in range(3) if k != position]
    np.testing.assert_allclose(
        result.params.policy.layers[0].kernel, agents.policy.layers[0].kernel[others].mean(axis=0), rtol=1e-5
    )


def test_a_round_without_a_valid_update_keeps_the_policy() -> None:
    agents, previous = stacked_agents(2), object()
    agents.kl_coefficient[:] = np.nan
    result = aggregate(previous, updates(agents, [5, 5]), np.full(2, 5.0), AGGREGATORS["parameter-mean"])
    assert result.params is previous
    np.testing.assert_array_equal(result.rejected, [10, 11])


def test_an_update_without_weight_is_left_out() -> None:
    agents = stacked_agents(2)
    result = aggregate(agents, updates(agents, [0, 7]), np.array([0.0, 7.0]), AGGREGATORS["parameter-mean"])
    np.testing.assert_array_equal(result.rejected, [10])
    np.testing.assert_allclose(result.params.kl_coefficient, agents.kl_coefficient[1])
