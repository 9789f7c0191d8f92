"""Metrics of the policy gradient."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import as_kind
from fedpohcs.core.presets import preset
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.learners.actor_critic import make_batch
from fedpohcs.learners.ppo import policy_loss
from fedpohcs.runs.experiment import run_experiment

CLIENTS = np.array([2, 0])


def measured(episodes: int, name: str) -> tuple[InProcessExecutor, np.ndarray]:
    federation = FederationConfig(num_clients=3, num_candidates=2, num_selected=1, evaluation_episodes=episodes)
    executor = InProcessExecutor(replace(preset("tabular"), federation=federation))
    params = executor.initial_params()
    executor.evaluate(params, 0, np.arange(3))
    return executor, executor.measure(params, 0, CLIENTS, frozenset({name})).column(name)


@pytest.mark.parametrize("episodes", [1, 3, 4, 42])
def test_norms_are_measured_from_any_number_of_steps(episodes: int) -> None:
    """Tabular episodes have 50 steps: 50, 150, 200 and 2100 steps, of which 4 minibatches of up to 512 are made."""
    _, norms = measured(episodes, "gradient_norm")
    assert (norms > 0).all()


@pytest.mark.parametrize("episodes", [1, 3, 40])
def test_the_gradient_is_that_of_the_mean_surrogate_over_all_recorded_steps(episodes: int) -> None:
    """Up to 2048 steps all are used; each counts once, wherever minibatches are padded."""
    executor, gradients = measured(episodes, "policy_gradient")
    params = executor.initial_params()
    for client, found in zip(CLIENTS.tolist(), gradients, strict=True):
        filters = jax.tree.map(lambda x: x[client], executor.state.filters)  # noqa: B023
        batch = make_batch(executor.config.learner, params, filters, executor.latest[client])
        loss = (executor.config.learner, batch.samples, batch.valid, params.kl_coefficient, jnp.float32(0))
        leaves = jax.tree.leaves(jax.grad(policy_loss)(params.policy, *loss))
        expected = -np.concatenate([np.ravel(leaf) for leaf in leaves])
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_the_scale_turns_the_standardised_gradient_into_that_of_the_mean_return_per_episode() -> None:
    """sum_t A_t grad log pi(a_t | s_t), averaged over episodes, with raw rewards and advantages minus their mean."""
    federation = FederationConfig(num_clients=3, num_candidates=2, num_selected=1, evaluation_episodes=4)
    learner = replace(preset("tabular").learner, filter_rewards=True, filter_warmup_steps=200)
    executor = InProcessExecutor(replace(preset("tabular"), federation=federation, learner=learner))
    params, names = executor.initial_params(), frozenset({"policy_gradient", "gradient_scale"})
    executor.evaluate(params, 0, np.arange(3))
    found = executor.measure(params, 0, CLIENTS, names)
    ours = found.column("gradient_scale")[:, None] * found.column("policy_gradient")
    for row, client in enumerate(CLIENTS.tolist()):
        filters = jax.tree.map(lambda x: x[client], executor.state.filters)  # noqa: B023
        trajectory = executor.latest[client]
        seen, squares = float(filters.reward.seen), float(filters.reward.squares)
        advantage = np.asarray(executor.learner.step_advantages(params, filters, trajectory)) * np.sqrt(squares / seen)
        valid = np.asarray(trajectory.valid)
        centred = np.where(valid, advantage - advantage[valid].mean(), 0)

        def total(policy, trajectory=trajectory, filters=filters, centred=centred):
            observation = executor.learner.filtered(filters, trajectory.observation)
            new = executor.learner.distribution(params._replace(policy=policy), observation)
            return (centred * new.log_prob(trajectory.action)).sum() / 4

        expected = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.grad(total)(params.policy))])
        np.testing.assert_allclose(ours[row], expected, rtol=2e-3, atol=1e-3 * abs(expected).max())


def test_the_gradient_of_the_return_is_the_standardised_gradient_with_its_scale() -> None:
    federation = FederationConfig(num_clients=3, num_candidates=2, num_selected=1, evaluation_episodes=4)
    executor = InProcessExecutor(replace(preset("tabular"), federation=federation))
    params, names = executor.initial_params(), frozenset({"policy_gradient", "gradient_scale", "return_gradient"})
    executor.evaluate(params, 0, np.arange(3))
    found = executor.measure(params, 0, CLIENTS, names)
    norms = np.sqrt((found.column("policy_gradient").astype(float) ** 2).sum(axis=1))
    np.testing.assert_allclose(found.column("return_gradient"), found.column("gradient_scale") * norms, rtol=1e-5)


@pytest.mark.parametrize("selector", ["gradient-sampling", "gradient-sampling-one-phase"])
def test_a_learner_without_standardised_advantages_has_no_gradient_of_the_return(selector: str, tmp_path) -> None:
    config = preset("tabular", selector=selector)
    config = replace(config, learner=as_kind(config.learner, "dqn"))
    with pytest.raises(UserError, match=r"selector \(='gradient-sampling.*reads return_gradient.*'dqn'"):
        run_experiment(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
