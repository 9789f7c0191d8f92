"""What the drivers of libraries with the interface of Stable-Baselines3 share: one agent, trained in turns."""

from collections.abc import Callable
from typing import Any

from _serve import Turn, serve

STEPS = 1024  # per environment and turn
SETTINGS = {"n_steps": STEPS, "batch_size": 128, "n_epochs": 1, "seed": 0}


def serve_ppo(make: Callable[[Any], Any]) -> None:
    """Serve PPO with 1 and 16 environments. `make` gets normalised environments and returns the model."""

    def ppo(envs: int) -> Turn:
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.vec_env import VecNormalize

        model = make(VecNormalize(make_vec_env("MountainCarContinuous-v0", n_envs=envs, seed=0)))

        def turn() -> int:
            before = model.num_timesteps
            model.learn(STEPS * envs, reset_num_timesteps=False)
            return model.num_timesteps - before

        return turn

    serve({"1 agent x 1 env": lambda: ppo(1), "1 agent x 16 env": lambda: ppo(16)})
