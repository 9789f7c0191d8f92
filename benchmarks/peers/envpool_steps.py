"""Steps of envpool's MountainCarContinuous-v0 under a NumPy policy of two tanh layers of 64, with Gaussian noise."""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported
import numpy as np
from _serve import Turn, serve


def steps(envs: int, threads: int, length: int = 1000) -> Turn:
    import envpool

    world = envpool.make_gymnasium("MountainCarContinuous-v0", num_envs=envs, num_threads=threads)
    generator = np.random.default_rng(0)
    first, second, last = (generator.standard_normal(shape, np.float32) / 8 for shape in ((2, 64), (64, 64), (64, 1)))

    def turn() -> int:
        observation, _ = world.reset()
        for _ in range(length):
            mean = np.tanh(np.tanh(observation @ first) @ second) @ last
            observation = world.step(mean + generator.standard_normal(mean.shape, np.float32))[0]
        return envs * length

    return turn


if __name__ == "__main__":
    serve({"600 env, 1 thread": lambda: steps(600, 1), "600 env, 2 threads": lambda: steps(600, 2)})
