"""PPO of sbx on Gymnasium's MountainCarContinuous-v0: one agent, as the library trains one at a time."""

from typing import Any

from _one_agent import SETTINGS, serve_ppo


def make(environments: Any) -> Any:
    import flax.linen as nn
    from sbx import PPO

    networks = {"net_arch": [64, 64], "activation_fn": nn.tanh}
    return PPO("MlpPolicy", environments, policy_kwargs=networks, **SETTINGS)


if __name__ == "__main__":
    serve_ppo(make)
