"""The one place from which these tests import the learner, and how they call it for one client."""

# ruff: noqa: F401  the tests beside this file import them from here
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from fedpohcs.config import LearnerConfig
from fedpohcs.envs.base import ContinuousActions, DiscreteActions, TracedWorld, Transition
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.learners.client import Learner, Own, Shared
from fedpohcs.learners.distributions import Categorical, Gaussian, categorical
from fedpohcs.learners.filters import (
    Filters,
    Moments,
    filter_observation,
    filter_reward,
    init_filters,
    no_moments,
    update_moments,
)
from fedpohcs.learners.gae import generalised_advantage
from fedpohcs.learners.networks import AgentParams, Dense, PolicyParams
from fedpohcs.learners.ppo import (
    Batch,
    OptimiserState,
    Samples,
    Schedule,
    UpdateInfo,
    adapt_kl_coefficient,
    advantages,
    clipped_surrogate,
    critic_loss,
    init_optimisers,
    kl_penalty_surrogate,
    make_batch,
    policy_loss,
    run_epochs,
    update,
    valid_first,
)
from fedpohcs.learners.rollout import CHUNK, CLIENT_AXIS, Noise, collect_episodes, draw_noise
from fedpohcs.learners.trajectory import Status, Trajectory
from fedpohcs.presets import preset
from fedpohcs.randomness import Purpose, device_key, host_generator

Optimised = tuple[AgentParams, OptimiserState, UpdateInfo]


# Compiled once for each config and shape; all tests share them.
advantages_of = jax.jit(advantages, static_argnums=0)
batch_of = jax.jit(make_batch, static_argnums=0)
policy_loss_of = jax.jit(jax.value_and_grad(policy_loss), static_argnums=1)
critic_loss_of = jax.jit(jax.value_and_grad(critic_loss))


@partial(jax.jit, static_argnums=0)
def updated(config: LearnerConfig, schedule: Schedule, *own: Any) -> Optimised:
    """`update` of clients side by side: params, optimisers, batches and shuffles have a leading client axis."""
    return jax.vmap(partial(update, config, schedule), axis_name=CLIENT_AXIS)(*own)


def updated_alone(config: LearnerConfig, schedule: Schedule, *own: Any) -> Optimised:
    """The same of a single client, without that axis."""
    result = updated(config, schedule, *jax.tree.map(lambda x: np.asarray(x)[None], own))
    return jax.tree.map(lambda x: np.asarray(x)[0], result)


def optimisers_at(state: OptimiserState, **values: Any) -> OptimiserState:
    """Optimisers with other values: `trace` is the velocity of the policy; `count`, `mu` and `nu` are Adam's."""
    return optax.tree_utils.tree_set(state, **values)


def optimiser_value(state: OptimiserState, name: str) -> Any:
    """One of these values."""
    return optax.tree_utils.tree_get(state, name)


def float32(values: Any) -> Any:
    """An array as the program has them."""
    return np.asarray(values, np.float32)


def assert_same(ours: Any, exact: Any, tolerance: float = 1e-5) -> None:
    """Every array of one tree is within `tolerance` times the largest entry of its counterpart."""
    for own, other in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True):
        assert np.shape(own) == np.shape(other)
        scale = np.abs(other).max(initial=0.0)
        np.testing.assert_allclose(own, other, rtol=0, atol=tolerance * scale)
