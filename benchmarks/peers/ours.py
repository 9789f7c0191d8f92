"""The same work with fedpohcs: local PPO training, rounds of a tiny federation, and evaluation rollouts."""

from dataclasses import replace
from typing import Any

import numpy as np
from _serve import Turn, serve

SELECTED, ROUNDS, ITERATIONS = 10, 100, 5
MANY_ROUNDS = 1_000_000


def ppo(agents: int, envs: int) -> Turn:
    """Each agent plays whole episodes: at least 1,024 steps in one environment, or one episode in each of several.

    An episode has 999 steps as long as the policy does not reach the flag.
    """
    from fedpohcs import preset
    from fedpohcs.execution.devices import configure_jax

    config = preset("mountain-cars", selector="fedavg")
    learner = replace(
        config.learner,
        local_iterations=ITERATIONS,
        steps_per_iteration=1024,
        episodes_per_iteration=envs if envs > 1 else None,
        critic_epochs=1,
        filter_warmup_steps=1_000,
    )
    federation = replace(config.federation, num_clients=max(agents, 2), num_candidates=agents, num_selected=agents)
    config = replace(config, learner=learner, federation=federation, groups=min(agents, config.groups))
    configure_jax(config.groups)
    from fedpohcs.execution.in_process import InProcessExecutor

    executor = InProcessExecutor(config, record=False)
    params = executor.initial_params()
    return lambda: int(executor.train(params, 0, np.arange(agents)).steps.sum())


def rounds(clients: int) -> Turn:
    """K of N clients move a vector of 4 numbers by one step, as those of the other libraries do."""
    from _vector import vector_config

    return turn_of_rounds(vector_config(clients, SELECTED, MANY_ROUNDS))


def learning_rounds(clients: int) -> Turn:
    """K of N clients play one short episode in a table of states and learn from it by PPO."""
    from fedpohcs import preset

    config = preset("tabular", selector="fedavg")
    learner = replace(config.learner, local_iterations=1, steps_per_iteration=1, critic_epochs=1)
    federation = replace(
        config.federation,
        num_clients=clients,
        num_candidates=SELECTED,
        num_selected=SELECTED,
        evaluation_every=MANY_ROUNDS,
        evaluation_episodes=1,
    )
    return turn_of_rounds(replace(config, learner=learner, federation=federation, rounds=MANY_ROUNDS, groups=1))


def turn_of_rounds(config: Any) -> Turn:
    """Rounds of a run whose records are not stored. Only round 0 is evaluated."""
    from fedpohcs.runs.experiment import start_training

    records = start_training(config).remaining_rounds()
    next(records)  # the evaluation before training

    def turn() -> int:
        for _ in range(ROUNDS):
            next(records)
        return ROUNDS

    return turn


def steps() -> Turn:
    """60 cars x 10 episodes with the preset's policy, trajectories stored and filters updated."""
    from fedpohcs import preset
    from fedpohcs.execution.devices import configure_jax

    config = preset("mountain-cars", selector="fedavg")
    config = replace(config, learner=replace(config.learner, filter_warmup_steps=1_000))
    configure_jax(config.groups)
    from fedpohcs.execution.in_process import InProcessExecutor

    executor = InProcessExecutor(config)
    params = executor.initial_params()
    return lambda: int(executor.evaluate(params, 0, np.arange(60)).steps.sum())


def some(number: int, thing: str) -> str:
    """A number of things: `1 agent`, `6 agents`."""
    return f"{number} {thing}{'s' if number > 1 else ''}"


if __name__ == "__main__":
    learning = {f"{some(a, 'agent')} x {e} env": lambda a=a, e=e: ppo(a, e) for a in (1, 6) for e in (1, 16, 64)}
    federated = {f"{n} clients": lambda n=n: rounds(n) for n in (60, 1000, 10000)}
    federated |= {f"{n} clients with PPO": lambda n=n: learning_rounds(n) for n in (60, 1000, 10000)}
    serve({**learning, **federated, "600 env": steps})
