"""PPO of Stable-Baselines3 on Gymnasium's MountainCarContinuous-v0: one agent, as the library trains one at a time."""

from _serve import Turn, serve

STEPS, BATCH = 1024, 128


def ppo(envs: int) -> Turn:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)  # a second thread does not help networks so small
    world = VecNormalize(make_vec_env("MountainCarContinuous-v0", n_envs=envs, seed=0))
    model = PPO("MlpPolicy", world, n_steps=STEPS, batch_size=BATCH, n_epochs=1, seed=0, device="cpu")

    def turn() -> int:
        before = model.num_timesteps
        model.learn(STEPS * envs, reset_num_timesteps=False)
        return model.num_timesteps - before

    return turn


if __name__ == "__main__":
    serve({"1 agent x 1 env": lambda: ppo(1), "1 agent x 16 env": lambda: ppo(16)})
