"""PPO of Stable-Baselines3 on Gymnasium's MountainCarContinuous-v0: one agent, as the library trains one at a time."""

from typing import Any

from _one_agent import SETTINGS, serve_ppo


def make(environments: Any) -> Any:
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)  # a second thread does not help networks so small
    return PPO("MlpPolicy", environments, device="cpu", **SETTINGS)  # two tanh layers of 64 are its default


if __name__ == "__main__":
    serve_ppo(make)
