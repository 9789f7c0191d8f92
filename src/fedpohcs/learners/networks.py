"""Policy and critic: tanh perceptrons as plain pytrees, and the distribution a policy gives.

What acts takes NumPy arrays as well as JAX's, and does not load JAX.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedpohcs.core.types import AnyArray
from fedpohcs.learners.distributions import Categorical, Gaussian, categorical
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions


class Dense(NamedTuple):
    """One affine layer."""

    kernel: AnyArray
    bias: AnyArray


Affine = Callable[[AnyArray, Dense], AnyArray]


def affine(x: AnyArray, layer: Dense) -> AnyArray:
    """What a layer makes of rows x."""
    return x @ layer.kernel + layer.bias


class PolicyParams(NamedTuple):
    """Layers of the policy; `log_std` is empty for discrete actions."""

    layers: tuple[Dense, ...]
    log_std: AnyArray


class AgentParams(NamedTuple):
    """All that is federated: policy, critic, and the KL coefficient beta, which is averaged like a weight."""

    controls = ("kl_coefficient",)  # parts with a rule of their own, which no server optimiser changes

    policy: PolicyParams
    critic: tuple[Dense, ...]
    kl_coefficient: AnyArray


def init_layers(key: AnyArray, sizes: Sequence[int]) -> tuple[Dense, ...]:
    """Glorot-normal kernels, zero biases."""
    import jax
    import jax.numpy as jnp

    glorot = jax.nn.initializers.glorot_normal()
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = itertools.pairwise(sizes)
    return tuple(Dense(glorot(k, shape), jnp.zeros(shape[1])) for k, shape in zip(keys, shapes, strict=True))


def apply_layers(layers: tuple[Dense, ...], x: AnyArray, through: Affine = affine) -> AnyArray:
    """Tanh between layers, none after the last."""
    xp = x.__array_namespace__()
    for layer in layers[:-1]:
        x = xp.tanh(through(x, layer))
    return through(x, layers[-1])


def init_agent(
    key: AnyArray,
    observation_size: int,
    actions: ContinuousActions | DiscreteActions,
    hidden_sizes: Sequence[int],
    kl_coefficient: float,
) -> AgentParams:
    """Fresh weights. A Gaussian policy starts with standard deviation 1 everywhere."""
    import jax
    import jax.numpy as jnp

    key_policy, key_critic = jax.random.split(key)
    continuous = isinstance(actions, ContinuousActions)
    outputs = actions.size if isinstance(actions, ContinuousActions) else actions.num_choices
    policy = PolicyParams(
        layers=init_layers(key_policy, (observation_size, *hidden_sizes, outputs)),
        log_std=jnp.zeros(outputs if continuous else 0),
    )
    critic = init_layers(key_critic, (observation_size, *hidden_sizes, 1))
    return AgentParams(policy, critic, jnp.asarray(kl_coefficient, jnp.float32))


def action_distribution(
    policy: PolicyParams, observation: AnyArray, through: Affine = affine
) -> Gaussian | Categorical:
    """pi(. | s) for a batch of filtered observations; `through`: how rows go through a layer, if not as usual."""
    output = apply_layers(policy.layers, observation, through)
    if policy.log_std.size:
        has_rows = policy.log_std.shape == output.shape
        xp = output.__array_namespace__()
        return Gaussian(output, policy.log_std if has_rows else xp.broadcast_to(policy.log_std, output.shape))
    return categorical(output)


def state_value(critic: tuple[Dense, ...], observation: AnyArray) -> AnyArray:
    """V(s) for a batch of filtered observations."""
    return apply_layers(critic, observation)[..., 0]
