"""PPO of sbx on Gymnasium's MountainCarContinuous-v0: one agent, as the library trains one at a time."""

from _serve import Turn, serve

STEPS, BATCH = 1024, 128


def ppo(envs: int) -> Turn:
    import flax.linen as nn
    from sbx import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    world = VecNormalize(make_vec_env("MountainCarContinuous-v0", n_envs=envs, seed=0))
    networks = {"net_arch": [64, 64], "activation_fn": nn.tanh}
    model = PPO("MlpPolicy", world, n_steps=STEPS, batch_size=BATCH, n_epochs=1, seed=0, policy_kwargs=networks)

    def turn() -> int:
        before = model.num_timesteps
        model.learn(STEPS * envs, reset_num_timesteps=False)
        return model.num_timesteps - before

    return turn


if __name__ == "__main__":
    serve({"1 agent x 1 env": lambda: ppo(1), "1 agent x 16 env": lambda: ppo(16)})
