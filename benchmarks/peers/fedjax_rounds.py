"""Rounds of fedjax's federated averaging: K of N clients move a vector of 4 numbers by one gradient step."""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from _serve import Turn, serve

SELECTED, ROUNDS = 10, 100


def rounds(clients: int) -> Turn:
    data = fedjax.InMemoryFederatedData(
        {str(c).encode(): {"x": np.full((1, 4), c, np.float32)} for c in range(clients)}
    )
    gradient = jax.grad(lambda params, batch, rng: 0.5 * jnp.mean((params["w"] - batch["x"]) ** 2))
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient,
        fedjax.optimizers.sgd(0.1),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=1, num_epochs=1),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, SELECTED, seed=0)
    state, number = algorithm.init({"w": jnp.zeros(4)}), 0

    def turn() -> int:
        nonlocal state, number
        for _ in range(ROUNDS):
            sampler.set_round_num(number)
            state, _ = algorithm.apply(state, sampler.sample())
            number += 1
        jax.block_until_ready(state.params)
        return ROUNDS

    return turn


if __name__ == "__main__":
    serve({f"{n} clients": lambda n=n: rounds(n) for n in (60, 1000, 10000)})
