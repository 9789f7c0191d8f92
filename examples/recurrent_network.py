"""A recurrent network of your own: gated recurrent units that read the latest observations, in a world to remember.

Each episode shows a signal once and rewards the action that equals it a few steps later. A policy that sees only the
latest observation earns 0.5 on average; one that remembers earns 1.
"""

from pathlib import Path
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs import WORLDS, ExperimentConfig, FederationConfig, Network, PPOConfig, run_experiment
from fedpohcs.runs.experiment import History
from fedpohcs.worlds.base import DiscreteActions, TracedWorld, Transition

UNITS, LONGEST_DELAY = 16, 3
WINDOW = LONGEST_DELAY + 1  # observations that the network sees at once


class Recall(TracedWorld):
    """N clients that ask for the signal after 1 to LONGEST_DELAY steps."""

    levels: ClassVar[tuple[str, ...]] = ("mixed",)
    observation_size = 2  # the signal in the first step, then 0; whether the answer counts now
    actions = DiscreteActions(num_choices=2)
    horizon = WINDOW
    reset_noise = 1
    step_noise = 0

    def __init__(self, level: str, num_clients: int) -> None:
        del level
        self.population = jnp.asarray(1 + np.arange(num_clients) % LONGEST_DELAY, jnp.int32)  # delays

    def reset(self, noise: jax.Array, params: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The signal is 1 or -1. The state is the signal and the time."""
        state = jnp.stack([jnp.where(noise[0] < 0.5, -1, 1), 0])
        return state, jnp.stack([state[0], 0]).astype(jnp.float32)

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: jax.Array) -> Transition:
        """The last step rewards the action that names the signal."""
        signal, time = state[0], state[1]
        is_last = time == params
        reward = jnp.where(is_last & (2 * action - 1 == signal), 1.0, 0.0)
        observation = jnp.stack([0, time + 1 == params]).astype(jnp.float32)
        return Transition(jnp.stack([signal, time + 1]), observation, reward, terminated=is_last)


class Weights(NamedTuple):
    """Of the gates and the candidate state, stacked, and of the output."""

    observed: jax.Array  # [obs, 3 * UNITS]
    remembered: jax.Array  # [UNITS, 3 * UNITS]
    bias: jax.Array  # [3 * UNITS]
    head: jax.Array  # [UNITS, outputs]


def recurrent(inputs: int, outputs: int) -> Network:
    """The network for windows with so many numbers: WINDOW observations, oldest first."""
    size = inputs // WINDOW

    def init(key: jax.Array) -> Weights:
        normal, keys = jax.nn.initializers.glorot_normal(), jax.random.split(key, 3)
        observed, remembered = normal(keys[0], (size, 3 * UNITS)), normal(keys[1], (UNITS, 3 * UNITS))
        return Weights(observed, remembered, jnp.zeros(3 * UNITS), normal(keys[2], (UNITS, outputs)))

    def apply(weights: Weights, observation: jax.Array) -> jax.Array:
        """From windows [..., WINDOW * obs] to outputs [..., outputs], by one pass through the sequence."""
        window = jnp.reshape(observation, (*observation.shape[:-1], WINDOW, size))
        memory = jnp.zeros((*observation.shape[:-1], UNITS))
        for time in range(WINDOW):
            seen = jnp.split(window[..., time, :] @ weights.observed + weights.bias, 3, axis=-1)
            kept = jnp.split(memory @ weights.remembered, 3, axis=-1)
            update, reset = jax.nn.sigmoid(seen[0] + kept[0]), jax.nn.sigmoid(seen[1] + kept[1])
            memory = update * memory + (1 - update) * jnp.tanh(seen[2] + reset * kept[2])
        return memory @ weights.head

    return Network(init, apply)


WORLDS["recall"] = f"{__name__}:Recall"


def main(rounds: int = 20, out: Path | None = None, window: int = WINDOW) -> History:
    """Train six clients. With a window of 1 the network of the package is used, which cannot remember."""
    config = ExperimentConfig(
        world="recall",
        level="mixed",
        rounds=rounds,
        groups=1,
        federation=FederationConfig(6, num_candidates=6, num_selected=3, evaluation_episodes=20),
        learner=PPOConfig(
            network="recurrent_network:recurrent" if window > 1 else None,  # this file
            observation_window=window,
            local_iterations=2,
            steps_per_iteration=400,
            learning_rate=0.05,
            kl_target=0.02,
            entropy_coefficient=0.001,
            filter_observations=False,
            filter_warmup_steps=0,
        ),
    )
    return run_experiment(config, out)


if __name__ == "__main__":
    remembering, forgetting = main().mean_returns, main(window=1).mean_returns
    for number, (with_memory, without) in enumerate(zip(remembering, forgetting, strict=True)):
        print(f"round {number:2d}  mean return {with_memory:5.2f}  without memory {without:5.2f}")
