"""Hoppers: how much of the time is MuJoCo's own, and what a round of the paper's size costs.

Measured, in turns within one process, in control steps per second on all cores, from the initial policy:
- `closed loop`: the collector that training uses, 60 clients x 10 lanes: filters, policy, noise, resets, recording;
- `c loop`: `mj_step` in C (`mj_loop.c`, compiled here) on the same 60 models and as many threads, actions from a table;
- `gymnasium`: SyncVectorEnv of 16 Hopper-v5 with the same policy in NumPy, all on one core. MuJoCo times its stages
  there, as it does in Python unless told not to; the other two have it told, or are in C, where it does not.

Then one round of `hoppers` (6 clients x 20 iterations x 2048 steps, 18 candidates, 60 evaluated): seconds by phase, the
share of training that is spent in MuJoCo, and the largest memory of the process.

Goals: closed loop >= 0.9 of the c loop and >= 3.5 times gymnasium; MuJoCo >= 80 % of training; phase one <= 10 % of
the round; memory < 2 GB. Needs a C compiler, and Gymnasium's MuJoCo environments (imageio).
"""

import ctypes
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import (
    Figure,
    Goal,
    argument_parser,
    interleaved_rates,
    machine_facts,
    median_ratio,
    write_results,
)
from _limits import NUM_CORES, compiled

NUM_LANES = 10  # of each of 60 clients


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported
    facts = machine_facts()
    from fedpohcs import preset
    from fedpohcs.execution.devices import configure_jax

    config = small(preset("hoppers")) if arguments.quick else preset("hoppers")
    configure_jax(config.groups)
    from fedpohcs.execution import make_executor

    executor = make_executor(config)
    params = executor.initial_params()
    contenders = {
        "closed loop": closed_loop(executor, params, episodes=10 if arguments.quick else 60),
        "c loop": c_loop(executor, steps=20 if arguments.quick else 500),
        "gymnasium": gymnasium_loop(executor, params, num_steps=20 if arguments.quick else 500),
    }
    by_cpu: dict[str, list[float]] = {name: [] for name in contenders}
    timed = {name: counting_cpu(contender, by_cpu[name]) for name, contender in contenders.items()}
    rates = interleaved_rates(timed, repetitions=1 if arguments.quick else 25)
    by_cpu = {name: values[1:] for name, values in by_cpu.items()}  # the first turn warms up
    round_ = one_round(executor, params)
    samples = {"steps_per_second": rates, "steps_per_cpu_second": by_cpu, "round": round_}
    write_results("hoppers", facts, headline(rates, by_cpu, round_), samples, quick=arguments.quick)


def counting_cpu(contender: Callable[[], int], rates: list[float]) -> Callable[[], int]:
    """The same, with its steps per second of processor time added to `rates`: that suffers less from other programs."""

    def play() -> int:
        start = time.process_time()
        steps = contender()
        rates.append(steps / (time.process_time() - start))
        return steps

    return play


def small(config: Any) -> Any:
    learner = replace(config.learner, local_iterations=1, steps_per_iteration=200, filter_warmup_steps=100)
    return replace(config, learner=learner, modelling=replace(config.modelling, episodes=3))


def closed_loop(executor: Any, params: Any, episodes: int) -> Callable[[], int]:
    from fedpohcs.core.trees import take_clients
    from fedpohcs.worlds.host import Play, Quota
    from fedpohcs.worlds.lockstep import LockstepCollector
    from fedpohcs.worlds.mujoco_batch import MujocoSimulator

    world = executor.world
    models = [world.make_model(value) for value in world.values]
    collector = LockstepCollector(world, MujocoSimulator(world, models, NUM_LANES))
    learner = executor.learner
    plays = [
        Play(
            client, learner.actor(params, take_clients(executor.state.filters, client), (), training=False), (0, client)
        )
        for client in range(len(models))
    ]

    def play() -> int:
        return sum(len(played.trajectory.reward) for played in collector.collect(plays, Quota(episodes=episodes)))

    return play


def c_loop(executor: Any, steps: int) -> Callable[[], int]:
    import mujoco
    import numpy as np

    package = Path(mujoco.__file__).parent
    (library,) = package.glob("libmujoco.so.*")
    loop = compiled("mj_loop.c", [f"-I{package / 'include'}"], [str(library), f"-Wl,-rpath,{package}"]).loop
    world: Any = executor.world
    models = [world.make_model(value) for value in world.values]
    addresses = (ctypes.c_void_p * len(models))(*[model._address for model in models])
    actions = np.random.default_rng(0).standard_normal((10_007, world.actions.size))
    table = actions.ctypes.data_as(ctypes.c_void_p)
    low, angle = ctypes.c_double(world.healthy_height[0]), ctypes.c_double(world.healthy_angle[1])

    def play() -> int:
        loop(addresses, len(models), steps, world.frame_skip, table, len(actions), low, angle, NUM_CORES)
        return steps * len(models)

    return play


def gymnasium_loop(executor: Any, params: Any, num_steps: int) -> Callable[[], int]:
    import gymnasium
    import mujoco
    import numpy as np

    from fedpohcs.core.trees import take_clients
    from fedpohcs.learners.filters import filter_observation
    from fedpohcs.learners.networks import action_distribution

    api: Any = mujoco  # made in C++, where no type checker finds its names
    environments = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("Hopper-v5")] * 16)
    filters, generator = take_clients(executor.state.filters, 0), np.random.default_rng(0)
    observation, _ = environments.reset(seed=0)

    def play() -> int:
        nonlocal observation
        clock = api.get_mjcb_time()
        api.set_mjcb_time(None)  # as Gymnasium's users have it
        num_resets = 0  # each takes the place of a step
        for _ in range(num_steps):
            filtered = filter_observation(filters, observation.astype(np.float32), 5.0)
            noise = generator.standard_normal((16, 3), np.float32)
            action = action_distribution(params.policy, filtered).sample(noise)
            observation, _, terminated, truncated, _ = environments.step(action)
            num_resets += int((terminated | truncated).sum())
        api.set_mjcb_time(clock)
        return 16 * num_steps - num_resets

    return play


def one_round(executor: Any, params: Any) -> dict[str, float]:
    """Seconds of a round's phases, and those of training that MuJoCo takes. A first round compiles."""
    import numpy as np

    federation, simulator = executor.config.federation, executor.collector.simulator
    inside = {"seconds": 0.0}

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = method(*arguments, **options)
            inside["seconds"] += time.perf_counter() - start
            return result

        return call

    simulator._simulate = timed(simulator._simulate)
    candidates, selected = np.arange(federation.num_candidates) * 3, np.arange(federation.num_selected) * 10
    for number in range(2):
        seconds, start = {}, time.perf_counter()

        def lap(name: str) -> None:
            nonlocal start
            seconds[name] = time.perf_counter() - start  # noqa: B023
            start = time.perf_counter()

        executor.measure(params, number, candidates, frozenset({"weighted_advantage"}))
        lap("measure")
        inside["seconds"] = 0.0
        steps = int(executor.train(params, number, selected).steps.sum())
        lap("train")
        seconds |= {"train in mujoco": inside["seconds"], "train steps": steps}
        start = time.perf_counter()
        executor.evaluate(params, number, np.arange(federation.num_clients))
        lap("evaluate")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return seconds | {"peak memory in GB": peak}


def headline(rates: dict[str, list[float]], by_cpu: dict[str, list[float]], round_: dict[str, float]) -> list[Figure]:
    figures = [Figure(name, statistics.median(values), "steps/s") for name, values in rates.items()]
    total = round_["measure"] + round_["train"] + round_["evaluate"]
    share = round_["train in mujoco"] / round_["train"]
    return [
        *figures,
        Figure("closed loop / c loop", median_ratio(rates["closed loop"], rates["c loop"]), "", Goal(">=", 0.9, "")),
        Figure("the same per second of processor time", median_ratio(by_cpu["closed loop"], by_cpu["c loop"]), ""),
        Figure(
            "closed loop / gymnasium",
            median_ratio(rates["closed loop"], rates["gymnasium"]),
            "times",
            Goal(">=", 3.5, "times"),
        ),
        Figure(
            "the same per second of processor time, times the cores",
            NUM_CORES * median_ratio(by_cpu["closed loop"], by_cpu["gymnasium"]),
            "times",
        ),
        Figure("MuJoCo's share of training", 100 * share, "%", Goal(">=", 80, "%")),
        Figure("phase one of the round", 100 * round_["measure"] / total, "%", Goal("<=", 10, "%")),
        Figure("training", round_["train"], "s"),
        Figure("peak memory", round_["peak memory in GB"], "GB", Goal("<", 2, "GB")),
    ]


if __name__ == "__main__":
    main()
