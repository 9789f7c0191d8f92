"""The same work with fedpohcs: local PPO training, rounds of a tiny federation, and evaluation rollouts."""

from dataclasses import replace

import numpy as np
from _serve import Turn, serve

SELECTED, ROUNDS, ITERATIONS = 10, 20, 5
MANY_ROUNDS = 1_000_000


def ppo(agents: int) -> Turn:
    """Each agent plays one environment per iteration, at least 1,024 steps in whole episodes."""
    from fedpohcs import preset
    from fedpohcs.execution.devices import configure_jax

    config = preset("mountain-cars", selector="fedavg")
    learner = replace(
        config.learner,
        local_iterations=ITERATIONS,
        steps_per_iteration=1024,
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
    """K of N clients play one short episode in a table of states and learn from it. Only round 0 is evaluated."""
    from fedpohcs import preset
    from fedpohcs.runs.experiment import start_training

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
    running = start_training(replace(config, learner=learner, federation=federation, rounds=MANY_ROUNDS))
    records = running.remaining_rounds()
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


if __name__ == "__main__":
    learning = {"6 agents x 1 env": lambda: ppo(6), "1 agent x 1 env": lambda: ppo(1)}
    federated = {f"{n} clients": lambda n=n: rounds(n) for n in (60, 1000, 10000)}
    serve({**learning, **federated, "600 env": steps})
