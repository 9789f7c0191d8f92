"""Evaluation rollouts of Mountain Cars in steps per second, policy included, beside Gymnasium and the limit in C.

Measured, in turns within one process:
- `executor`: `InProcessExecutor.evaluate` of 60 clients x 10 episodes, trajectories stored, filters updated;
- `program`: the compiled program behind it, on inputs already in place;
- `c loop`: the same episodes by hand in C (`car_loop.c`, compiled here) on all cores, trajectories stored, one call
  after the other into the same memory. It updates no filters and draws simpler random numbers, which is in its favour;
- `gymnasium`: one MountainCarContinuous-v0, a NumPy policy of the same weights (two tanh layers of 64, Gaussian noise),
  one BLAS thread. It filters and stores nothing, which is in its favour.

The policy's last layer is zero and its noise small: a car under constant force never arrives, so that every episode
lasts the full 999 steps. Steps are counted, not assumed.

Goals: executor >= 0.6 of the c loop and >= 130 times gymnasium (medians of the ratios of each turn). Without a C
compiler there is no c loop.
"""

import os
import statistics
from collections.abc import Callable
from typing import Any

from _common import (
    Figure,
    Goal,
    argument_parser,
    benchmark_config,
    interleaved_rates,
    machine_facts,
    median_ratio,
    write_results,
)
from _limits import C_LOOP, Rollouts, client_rows, with_limit

GOAL, LIMIT_GOAL = Goal(">=", 130, "times"), Goal(">=", 0.6, "")
SMALL_LOG_STD = -5.0
CALLS_PER_TURN = 5  # so that all contenders take turns of about the same time


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # read when NumPy is imported
    facts = machine_facts()
    executor, params = make_executor(arguments.quick)
    contenders = {
        "executor": executor_contender(executor, params),
        "program": program_contender(executor, params),
        "gymnasium": gymnasium_contender(params, num_steps=999 if arguments.quick else 29_970),
    }
    with_limit(contenders, lambda: c_contender(executor, params))
    steps = {name: contender() for name, contender in contenders.items()}
    rates = interleaved_rates(contenders, repetitions=2 if arguments.quick else 11)
    samples = {"steps_per_call": steps, "steps_per_second": rates}
    write_results("rollouts", facts, headline(rates), samples, quick=arguments.quick)


def make_executor(quick: bool) -> tuple[Any, Any]:
    """An executor at paper size, and a policy under which no car arrives."""
    from fedpohcs.execution.devices import configure_jax

    config = benchmark_config(quick=quick)
    configure_jax(config.groups)
    from fedpohcs.execution.in_process import InProcessExecutor

    executor = InProcessExecutor(config)
    return executor, idle_policy(executor.initial_params())


def idle_policy(params: Any) -> Any:
    import numpy as np

    *hidden, last = params.policy.layers
    still = last._replace(kernel=np.zeros_like(last.kernel), bias=np.zeros_like(last.bias))
    log_std = np.full_like(params.policy.log_std, SMALL_LOG_STD)
    return params._replace(policy=params.policy._replace(layers=(*hidden, still), log_std=log_std))


def executor_contender(executor: Any, params: Any) -> Callable[[], int]:
    import numpy as np

    everyone = np.arange(executor.num_clients)

    def play() -> int:
        return sum(int(executor.evaluate(params, 0, everyone).steps.sum()) for _ in range(CALLS_PER_TURN))

    return play


def program_contender(executor: Any, params: Any) -> Callable[[], int]:
    """What the executor calls, on inputs that are made once."""
    import jax
    import numpy as np

    from fedpohcs.core.randomness import Purpose, device_key
    from fedpohcs.execution.mapping import compiled_for_groups
    from fedpohcs.learners.base import Broadcast
    from fedpohcs.learners.client import ClientInputs, ClientProgram

    program = compiled_for_groups(ClientProgram.evaluate, executor.program, 1, executor.config.groups)
    shared = Broadcast(params, device_key(0, Purpose.EVALUATION), executor.learner.schedule(0))
    own = ClientInputs(np.arange(executor.num_clients), executor.population, executor.state.filters)

    def play() -> int:
        results = [jax.block_until_ready(program(shared, own)) for _ in range(CALLS_PER_TURN)]
        return sum(int(result.steps.sum()) for result in results)

    return play


def c_contender(executor: Any, params: Any) -> Callable[[], int]:
    rows = client_rows(executor.world, executor.state.filters)
    return Rollouts(executor.learner, params, rows, executor.config.federation.evaluation_episodes, CALLS_PER_TURN)


def gymnasium_contender(params: Any, num_steps: int) -> Callable[[], int]:
    import gymnasium
    import numpy as np

    environment = gymnasium.make("MountainCarContinuous-v0")
    layers = [(np.asarray(layer.kernel), np.asarray(layer.bias)) for layer in params.policy.layers]
    hidden, (last_kernel, last_bias) = layers[:-1], layers[-1]
    std = np.exp(np.asarray(params.policy.log_std))
    generator = np.random.default_rng(0)

    def play() -> int:
        observation, _ = environment.reset(seed=0)
        for _ in range(num_steps):
            x = observation
            for kernel, bias in hidden:
                x = np.tanh(x @ kernel + bias)
            action = x @ last_kernel + last_bias + std * generator.standard_normal(1, np.float32)
            observation, _, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                observation, _ = environment.reset()
        return num_steps

    return play


def headline(rates: dict[str, list[float]]) -> list[Figure]:
    figures = [Figure(name, statistics.median(values), "steps/s") for name, values in rates.items()]
    figures += [
        Figure("executor / gymnasium", median_ratio(rates["executor"], rates["gymnasium"]), "times", GOAL),
        Figure("program / gymnasium", median_ratio(rates["program"], rates["gymnasium"]), "times"),
    ]
    if C_LOOP in rates:
        ratio = median_ratio(rates["executor"], rates[C_LOOP])
        figures.append(Figure(f"executor / {C_LOOP}", ratio, "", LIMIT_GOAL))
    return figures


if __name__ == "__main__":
    main()
