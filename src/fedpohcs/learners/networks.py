"""Policy and critic: tanh perceptrons as plain pytrees, and the distribution a policy gives.

Functions for acting take NumPy or JAX arrays and do not load JAX.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.errors import UserError, require
from fedpohcs.core.imports import import_function
from fedpohcs.core.learning import LearningConfig
from fedpohcs.core.types import AnyArray
from fedpohcs.learners.distributions import Categorical, Gaussian, categorical
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions


class Dense(NamedTuple):
    """One affine layer."""

    kernel: AnyArray
    bias: AnyArray


Affine = Callable[[AnyArray, Dense], AnyArray]
Apply = Callable[[Any, AnyArray], AnyArray]
"""(weights, observations [..., obs]) to outputs [..., out]."""


class Network(NamedTuple):
    """Initialisation and application of a network. A user's `learner.network` returns one for given sizes."""

    init: Callable[[AnyArray], Any]  # from a JAX key to a tree of float32 arrays
    apply: Apply


class Networks(NamedTuple):
    """The functions that compute policy and critic from weights."""

    policy: Apply
    critic: Apply


def affine(x: AnyArray, layer: Dense) -> AnyArray:
    """The layer applied to rows x."""
    return x @ layer.kernel + layer.bias


class PolicyParams(NamedTuple):
    """Weights of the policy's network; `log_std` is empty for discrete actions."""

    layers: Any  # a tuple of `Dense`, or the weights of a user's own network
    log_std: AnyArray


class AgentParams(NamedTuple):
    """All that is federated: policy, critic, and the KL coefficient beta, which is averaged like a weight."""

    policy: PolicyParams
    critic: Any  # as the policy's layers
    kl_coefficient: AnyArray

    controls = ("kl_coefficient",)  # parts that are averaged like weights, but that no server optimiser changes


class ActorCriticParams(NamedTuple):
    """All that is federated of a learner whose penalty has no coefficient: policy and critic."""

    policy: PolicyParams
    critic: Any  # as the policy's layers


class PolicyOnlyParams(NamedTuple):
    """All that is federated of a learner without a critic."""

    policy: PolicyParams


class MomentumParams(NamedTuple):
    """All that is federated of a learner whose direction is averaged like its weights."""

    policy: PolicyParams
    direction: PolicyParams  # of the latest step

    controls = ("direction",)  # no server optimiser changes it


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


TANH_LAYERS = Networks(apply_layers, apply_layers)


def perceptron(sizes: Sequence[int]) -> Network:
    """Tanh layers from `sizes[0]` inputs to `sizes[-1]` outputs."""
    return Network(lambda key: init_layers(key, sizes), apply_layers)


class Embedded(NamedTuple):
    """Weights of a network with a vector before its observations."""

    vector: AnyArray
    within: Any  # weights of the network that reads both


def with_embedding(network: Network, size: int) -> Network:
    """The network before whose observations stands a vector, at first 0."""

    def init(key: AnyArray) -> Embedded:
        import jax.numpy as jnp

        return Embedded(jnp.zeros(size), network.init(key))

    def apply(weights: Embedded, observation: AnyArray) -> AnyArray:
        xp = observation.__array_namespace__()
        vector = xp.broadcast_to(weights.vector, (*observation.shape[:-1], size))
        return network.apply(weights.within, xp.concatenate([vector, observation], axis=-1))

    return Network(init, apply)


@cache
def make_network(config: LearningConfig, inputs: int, outputs: int) -> Network:
    """Tanh layers of these sizes, or the network that the user's function returns for them, with its embedding."""
    size = config.embedding_size
    network = _plain_network(config, inputs + size, outputs)
    return with_embedding(network, size) if size else network


def _plain_network(config: LearningConfig, inputs: int, outputs: int) -> Network:
    if config.network is None:
        return perceptron((inputs, *config.hidden_sizes, outputs))
    function = import_function("learner.network", config.network)
    require(function is not None, "learner.network", config.network, "must name a function: module:function")
    try:
        made = function(inputs, outputs)
    except Exception as error:
        raise UserError(f"learner.network (={config.network!r}) cannot make a network: {error}") from error
    rule = "must return fedpohcs.Network(init, apply)"
    require(isinstance(made, Network), "learner.network", config.network, rule)
    return made


class OwnNetwork(NamedTuple):
    """Applies a network that it makes from its config; so it can be pickled, unlike the function itself."""

    config: LearningConfig
    inputs: int
    outputs: int

    def __call__(self, weights: Any, observation: AnyArray) -> AnyArray:
        """NumPy arrays in, NumPy arrays out; JAX arrays in, JAX arrays out."""
        output = make_network(*self).apply(weights, observation)
        return np.asarray(output) if isinstance(observation, np.ndarray) else output


def apply_of(config: LearningConfig, inputs: int, outputs: int) -> Apply:
    """The function that applies a network of these sizes."""
    plain = config.network is None and not config.embedding_size
    return apply_layers if plain else OwnNetwork(config, inputs, outputs)


def num_outputs(actions: ContinuousActions | DiscreteActions) -> int:
    """Number of outputs of a policy: means of actions, or logits."""
    return actions.size if isinstance(actions, ContinuousActions) else actions.num_choices


def init_agent(
    key: AnyArray,
    observation_size: int,
    actions: ContinuousActions | DiscreteActions,
    hidden_sizes: Sequence[int],
    kl_coefficient: float,
) -> AgentParams:
    """Initial weights of tanh layers."""
    policy = perceptron((observation_size, *hidden_sizes, num_outputs(actions)))
    return agent_of(key, actions, policy, perceptron((observation_size, *hidden_sizes, 1)), kl_coefficient)


def agent_of(
    key: AnyArray, actions: ContinuousActions | DiscreteActions, policy: Network, critic: Network, kl_coefficient: float
) -> AgentParams:
    """Initial weights of any networks. A Gaussian policy starts with standard deviation 1 everywhere."""
    import jax
    import jax.numpy as jnp

    key_policy, key_critic = jax.random.split(key)
    log_std = jnp.zeros(actions.size if isinstance(actions, ContinuousActions) else 0)
    weights = PolicyParams(policy.init(key_policy), log_std)
    return AgentParams(weights, critic.init(key_critic), jnp.asarray(kl_coefficient, jnp.float32))


def action_distribution(
    policy: PolicyParams, observation: AnyArray, apply: Apply = apply_layers
) -> Gaussian | Categorical:
    """pi(. | s) for a batch of filtered observations."""
    output = apply(policy.layers, observation)
    if policy.log_std.size:
        return Gaussian(output, output.__array_namespace__().broadcast_to(policy.log_std, output.shape))
    return categorical(output)


def state_value(critic: Any, observation: AnyArray, apply: Apply = apply_layers) -> AnyArray:
    """V(s) for a batch of filtered observations."""
    return apply(critic, observation)[..., 0]
