"""A network of your own: a convolution over neighbouring observations, then one affine layer, in plain JAX."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedpohcs import Network, preset, run_experiment
from fedpohcs.runs.experiment import History

WIDTH, CHANNELS = 3, 8


class Weights(NamedTuple):
    """Any tree of float32 arrays will do."""

    kernel: jax.Array  # [WIDTH, CHANNELS]
    bias: jax.Array  # [CHANNELS]
    head: jax.Array  # [inputs * CHANNELS, outputs]


def convolution(inputs: int, outputs: int) -> Network:
    """The network for so many inputs and outputs. A learner asks for one per role: policy, critic, action values."""

    def init(key: jax.Array) -> Weights:
        key_kernel, key_head = jax.random.split(key)
        normal = jax.nn.initializers.glorot_normal()
        head = normal(key_head, (inputs * CHANNELS, outputs))
        return Weights(normal(key_kernel, (WIDTH, CHANNELS)), jnp.zeros(CHANNELS), head)

    def apply(weights: Weights, observation: jax.Array) -> jax.Array:
        """From observations [..., inputs] to outputs [..., outputs]."""
        around = [(0, 0)] * (observation.ndim - 1) + [(WIDTH // 2, WIDTH // 2)]
        padded = jnp.pad(observation, around)
        windows = jnp.stack([padded[..., place : place + inputs] for place in range(WIDTH)], axis=-1)
        features = jnp.tanh(windows @ weights.kernel + weights.bias)
        return features.reshape(*observation.shape[:-1], inputs * CHANNELS) @ weights.head

    return Network(init, apply)


def main(rounds: int = 20, out: Path | None = None) -> History:
    """Train the small world with it and return what happened."""
    config = preset("tabular")
    learner = replace(config.learner, network="own_network:convolution", learning_rate=0.03)  # this file
    return run_experiment(replace(config, learner=learner, rounds=rounds), out)


if __name__ == "__main__":
    for number, mean_return in enumerate(main().mean_returns):
        print(f"round {number:2d}  mean return {mean_return:6.2f}")
