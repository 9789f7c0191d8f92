"""Steps of gymnax's MountainCarContinuous-v0 under a policy of two tanh layers of 64, with Gaussian noise."""

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from _serve import Turn, serve


def steps(envs: int, length: int = 1000) -> Turn:
    world, params = gymnax.make("MountainCarContinuous-v0")
    keys = jax.random.split(jax.random.key(0), 3)
    layers = [jax.random.normal(key, s) / 8 for key, s in zip(keys, ((2, 64), (64, 64), (64, 1)), strict=True)]

    def advance(carry: Any, key: jax.Array) -> Any:
        observation, state = carry
        noise_key, step_key = jax.random.split(key)
        mean = jnp.tanh(jnp.tanh(observation @ layers[0]) @ layers[1]) @ layers[2]
        action = mean + jax.random.normal(noise_key, mean.shape)
        step_keys = jax.random.split(step_key, envs)
        observation, state, reward, done, *_ = jax.vmap(world.step, (0, 0, 0, None))(step_keys, state, action, params)
        return (observation, state), (reward, done)

    @jax.jit
    def play(key: jax.Array) -> Any:
        start = jax.vmap(world.reset, (0, None))(jax.random.split(key, envs), params)
        return jax.lax.scan(advance, start, jax.random.split(key, length))

    def turn() -> int:
        jax.block_until_ready(play(jax.random.key(1)))
        return envs * length

    return turn


if __name__ == "__main__":
    serve({"60 env": lambda: steps(60), "600 env": lambda: steps(600)})
