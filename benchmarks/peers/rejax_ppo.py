"""PPO of rejax on gymnax's MountainCarContinuous-v0: agents are mapped by `vmap`, as its documentation shows."""

import jax
import jax.numpy as jnp
from _serve import Turn, serve
from rejax import PPO

STEPS, BATCH, ITERATIONS = 1024, 128, 5


def ppo(agents: int, envs: int, steps: int = STEPS) -> Turn:
    size = envs * steps
    algorithm = PPO.create(
        env="MountainCarContinuous-v0",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_envs=envs,
        num_steps=steps,
        num_minibatches=size // BATCH,
        num_epochs=1,
        total_timesteps=ITERATIONS * size,
        eval_freq=ITERATIONS * size,
        skip_initial_evaluation=True,
        normalize_observations=True,
        normalize_rewards=True,
        learning_rate=1e-3,
    ).replace(eval_callback=lambda *_: jnp.zeros(()))
    states = jax.jit(jax.vmap(algorithm.init_state))(jax.random.split(jax.random.key(0), agents))
    train = jax.jit(jax.vmap(lambda state: algorithm.train(train_state=state)[0]))

    def turn() -> int:
        nonlocal states
        states = jax.block_until_ready(train(states))
        return agents * ITERATIONS * size

    return turn


if __name__ == "__main__":
    serve(
        {
            "6 agents x 1 env": lambda: ppo(6, 1),
            "6 agents x 16 env": lambda: ppo(6, 16),
            "1 agent x 16 env": lambda: ppo(1, 16),
            "6 agents x 64 env": lambda: ppo(6, 64, 256),
        }
    )
