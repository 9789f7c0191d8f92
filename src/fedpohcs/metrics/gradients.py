"""Metrics of the gradient with which a client would change the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpohcs.core.array_rules import ArrayRule
from fedpohcs.core.lazy import LazyModule
from fedpohcs.core.types import ClientIds, Params, Vector
from fedpohcs.metrics.base import Metric, MetricContext

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import optax

    from fedpohcs.core.config import ExperimentConfig
    from fedpohcs.core.trajectory import Trajectory
    from fedpohcs.learners.base import Broadcast
    from fedpohcs.learners.client import ClientInputs, ClientProgram
else:  # metrics are looked up before JAX is loaded
    jax, jnp, optax = LazyModule("jax"), LazyModule("jax.numpy"), LazyModule("optax")


def mean_norms(
    program: ClientProgram, sent: Broadcast, own: ClientInputs, trajectory: Trajectory, shuffle: jax.Array
) -> jax.Array:
    """Mean norm of the surrogate's gradient over a few minibatches of each client's recorded steps, [C]."""

    def one(own: ClientInputs, trajectory: Trajectory, shuffle: jax.Array) -> jax.Array:
        norms, is_step = program.minibatch_gradients(sent, own, trajectory, shuffle, optax.tree.norm)
        weight = is_step.any(axis=1)
        return (norms * weight).sum() / jnp.maximum(weight.sum(), 1)

    return jax.vmap(one)(own, trajectory, shuffle)


def mean_gradients(
    program: ClientProgram, sent: Broadcast, own: ClientInputs, trajectory: Trajectory, shuffle: jax.Array
) -> jax.Array:
    """The surrogate's gradient, averaged over the same steps, [C, P]: how a client would change the policy."""

    def one(own: ClientInputs, trajectory: Trajectory, shuffle: jax.Array) -> jax.Array:
        gradients, is_step = program.minibatch_gradients(sent, own, trajectory, shuffle, _flattened)
        weight = is_step.sum(axis=1)
        return -(gradients * weight[:, None]).sum(axis=0) / jnp.maximum(weight.sum(), 1)  # learners descend a loss

    return jax.vmap(one)(own, trajectory, shuffle)


def standard_scales(program: ClientProgram, sent: Broadcast, own: ClientInputs, trajectory: Trajectory) -> jax.Array:
    """Mean episode length times the standard deviation of raw advantages, [C]."""
    valid = trajectory.valid
    advantage = program.step_advantages(sent, own, trajectory)
    steps = jnp.maximum(valid.sum(axis=(1, 2)), 1)
    mean = jnp.where(valid, advantage, 0).sum(axis=(1, 2)) / steps
    squares = jnp.where(valid, (advantage - mean[:, None, None]) ** 2, 0).sum(axis=(1, 2))
    length = steps / jnp.maximum((valid & trajectory.last).sum(axis=(1, 2)), 1)
    return length * jnp.sqrt(squares / steps) * program.learner.reward_scale(own.filters)


def return_gradient_norms(
    program: ClientProgram, sent: Broadcast, own: ClientInputs, trajectory: Trajectory, shuffle: jax.Array
) -> jax.Array:
    """Norm of the gradient of each client's mean return, [C]: the standardised gradient with its scale put back."""
    gradients = mean_gradients(program, sent, own, trajectory, shuffle)
    return standard_scales(program, sent, own, trajectory) * jnp.linalg.norm(gradients, axis=1)


def _flattened(tree: Any) -> jax.Array:
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])


def gradient_norm(context: MetricContext, clients: ClientIds) -> Vector:
    """Mean norm of the policy gradient over a few minibatches of the episodes that tables are made of."""
    return context.compute(mean_norms, clients, shuffled=True)


def gradient_scale(context: MetricContext, clients: ClientIds) -> Vector:
    """L_n sigma_n, the factor from a client's standardised policy gradient to the gradient of its return."""
    return context.compute(standard_scales, clients)


def return_gradient(context: MetricContext, clients: ClientIds) -> Vector:
    """Norm of the gradient of the mean return over the episodes of the latest evaluation."""
    return context.compute(return_gradient_norms, clients, shuffled=True)


def policy_gradient(context: MetricContext, clients: ClientIds) -> np.ndarray:
    """The policy gradient over the episodes of the latest evaluation, a vector in the order of the policy's arrays."""
    return context.compute(mean_gradients, clients, shuffled=True)


def _vector_of_policy_size(config: ExperimentConfig, params: Params) -> Mapping[str, ArrayRule]:
    del config
    return {"": ArrayRule(np.float32, (sum(np.size(leaf) for leaf in jax.tree.leaves(params.policy)),))}


GRADIENT_NORM = Metric(gradient_norm, reads="modelled", hide="number", prefers="high")
GRADIENT_SCALE = Metric(gradient_scale, hide="number", prefers="high", standardised=True)
RETURN_GRADIENT = Metric(return_gradient, hide="number", prefers="high", standardised=True)
POLICY_GRADIENT = Metric(policy_gradient, _vector_of_policy_size, join=np.asarray)
