"""The one place from which these tests import the learner, and how they call it for one client."""

# ruff: noqa: F401  the tests beside this file import them from here
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.randomness import Purpose, device_key, host_generator
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.learners.actor_critic import (
    Batch,
    Samples,
    Schedule,
    UpdateInfo,
    advantages,
    critic_loss,
    make_batch,
    run_epochs,
)
from fedpohcs.learners.base import Broadcast
from fedpohcs.learners.client import ClientInputs, ClientProgram
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
    PPO,
    OptimiserState,
    adapt_kl_coefficient,
    clipped_surrogate,
    init_optimisers,
    kl_penalty_surrogate,
    policy_loss,
    update,
)
from fedpohcs.learners.rollout import CHUNK, CLIENT_AXIS, Noise, collect_episodes, draw_noise, valid_first
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions, TracedWorld, Transition

Optimised = tuple[AgentParams, OptimiserState, UpdateInfo]


# Compiled once for each config and shape; all tests share them.
advantages_of = jax.jit(advantages, static_argnums=0)
batch_of = jax.jit(make_batch, static_argnums=0)
policy_loss_of = jax.jit(jax.value_and_grad(policy_loss), static_argnums=1)
critic_loss_of = jax.jit(jax.value_and_grad(critic_loss))


@partial(jax.jit, static_argnums=0)
def updated(config: PPOConfig, schedule: Schedule, *own: Any) -> Optimised:
    """`update` of clients side by side: params, optimisers, batches and shuffles have a leading client axis."""
    return jax.vmap(partial(update, config, schedule), axis_name=CLIENT_AXIS)(*own)


def updated_alone(config: PPOConfig, schedule: Schedule, *own: Any) -> Optimised:
    """The same of a single client, without that axis."""
    result = updated(config, schedule, *jax.tree.map(lambda x: np.asarray(x)[None], own))
    return jax.tree.map(lambda x: np.asarray(x)[0], result)


class Surroundings:
    """The part of a world that learning reads."""

    observation_size, actions, horizon = 1, DiscreteActions(2), 50


def program_of(config: PPOConfig, world: Any, episodes: int = 1, filter_weight: float = 1.0) -> ClientProgram:
    """PPO at work in a world."""
    return ClientProgram(PPO(config, world), episodes, filter_weight)


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
