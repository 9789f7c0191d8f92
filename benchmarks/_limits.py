"""How fast a program written by hand is: `car_loop.c` plays and learns what the package does, on the same inputs.

NumPy is imported late, so that a script can say before how many threads it may use.
"""

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from _common import HERE

C_LOOP = "c loop"
NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
FLAGS = ("-O3", "-march=native", "-fPIC")


def with_limit(contenders: dict[str, Callable[[], int]], make: Callable[[], Callable[[], int]]) -> None:
    """Add the contender `c loop`, if there is a C compiler."""
    if compiler():
        contenders[C_LOOP] = make()
    else:
        print("No C compiler: the limit is not measured")


def compiler() -> str | None:
    names = [(sysconfig.get_config_var("CC") or "cc").split()[0], "cc", "gcc"]
    return next((name for name in names if shutil.which(name)), None)


def compiled(source: str, flags: Sequence[str] = (), links: Sequence[str] = ()) -> ctypes.CDLL:
    """A C file of this folder, as a library.

    The flags are for compiling alone: linked with -ffast-math, a library rounds tiny numbers to 0 in its whole process.
    """
    command, made = [compiler() or "cc"], Path(tempfile.mkdtemp()) / Path(source).stem
    subprocess.run([*command, *FLAGS, *flags, "-c", str(HERE / source), "-o", f"{made}.o"], check=True)
    subprocess.run([*command, "-shared", f"{made}.o", *links, "-lm", "-lpthread", "-o", f"{made}.so"], check=True)
    return ctypes.CDLL(f"{made}.so")


@cache
def car_loop() -> Any:
    library = compiled("car_loop.c", flags=["-ffast-math"])
    library.roll.restype = library.train.restype = ctypes.c_long
    return library


class Settings(ctypes.Structure):
    """As `Settings` in car_loop.c."""

    _fields_ = [
        *[(name, ctypes.c_float) for name in ("observation_limit", "reward_limit", "discount", "gae_discount")],
        *[(name, ctypes.c_float) for name in ("critic_rate", "rate", "momentum", "max_norm", "cap", "entropy")],
        *[("kl_target", ctypes.c_float)],
        *[(name, ctypes.c_int) for name in ("horizon", "min_steps", "iterations", "critic_epochs")],
    ]


def settings_of(learner: Any) -> Settings:
    """Of a learner with the paper's loss and optimisers, in its first round."""
    config, schedule = learner.config, learner.schedule(0)
    return Settings(
        observation_limit=config.observation_limit,
        reward_limit=config.reward_limit,
        discount=config.discount,
        gae_discount=config.gae_discount,
        critic_rate=config.critic_learning_rate,
        rate=schedule.learning_rate,
        momentum=config.momentum,
        max_norm=config.max_gradient_norm,
        cap=config.importance_cap,
        entropy=schedule.entropy_coefficient,
        kl_target=config.kl_target,
        horizon=learner.world.horizon,
        min_steps=config.steps_per_iteration,
        iterations=config.local_iterations,
        critic_epochs=config.critic_epochs,
    )


def client_rows(world: Any, filters: Any) -> Any:
    """`Client` of every client: shift of the engine, then the filters, with inverse standard deviations."""
    import numpy as np

    from fedpohcs.learners.filters import standard_deviation

    shift = np.asarray(world.population.action_shift)[:, None]
    scale = 1 / standard_deviation(filters.observation, np)
    reward_scale = 1 / standard_deviation(filters.reward, np)[:, None]
    return np.concatenate([shift, filters.observation.mean, scale, reward_scale], axis=1, dtype=np.float32)


def flat_net(layers: Any, log_std: Any = 0.0) -> Any:
    """`Net` of tanh layers."""
    import numpy as np

    arrays = [*(x for layer in layers for x in layer), log_std]
    return np.concatenate([np.ravel(x) for x in arrays], dtype=np.float32)


def address(array: Any) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


class Rollouts:
    """Evaluation episodes of some clients, `client_rows`, with one policy. A call plays them and returns the steps."""

    def __init__(self, learner: Any, params: Any, rows: Any, episodes: int, calls: int = 1) -> None:
        import numpy as np

        from fedpohcs.core.trajectory import Trajectory

        self.settings, self.rows, self.episodes, self.calls = settings_of(learner), rows, episodes, calls
        self.policy = flat_net(*params.policy)
        shape = (learner.world.horizon, len(rows) * episodes)
        self.trajectory = Trajectory(
            np.empty((*shape, 2), np.float32),
            np.empty(shape, np.float32),
            np.empty(shape, np.float32),
            np.empty(shape, np.int8),
            None,
        )

    def __call__(self) -> int:
        inputs = ctypes.byref(self.settings), address(self.policy), address(self.rows), len(self.rows), self.episodes
        outputs = [address(array) for array in self.trajectory[:4]]
        return sum(car_loop().roll(*inputs, *outputs, NUM_CORES) for _ in range(self.calls))


class Training:
    """Local training of some clients, `client_rows`. A call trains them and returns the steps."""

    def __init__(self, learner: Any, params: Any, rows: Any) -> None:
        import numpy as np

        self.settings, self.rows = settings_of(learner), rows
        self.policy, self.critic = flat_net(*params.policy), flat_net(params.critic)
        self.policies, self.critics = (
            np.empty((len(rows), net.size), np.float32) for net in (self.policy, self.critic)
        )

    def __call__(self) -> int:
        sent, learned = (self.policy, self.critic), (self.policies, self.critics)
        inputs = ctypes.byref(self.settings), address(self.rows), len(self.rows), *map(address, sent)
        return car_loop().train(*inputs, *map(address, learned), NUM_CORES)
