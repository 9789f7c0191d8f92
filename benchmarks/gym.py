"""Steps per second of the world `gym`: CartPole-v1 with 8 clients, one worker process per core, the policy included.

Measured, in turns within one process, each with a policy whose poles fall after about 20 steps and with one that
balances for 500:
- `compiled`: the default for a registered environment of classic control, 16 lanes per client in one compiled call;
- `many`: environments of a user's function, 16 per client stepped one by one in Python with one policy call;
- `one`: `environments_per_client` 1, one environment and one policy call at a time, one client after the other;
- `before`: the same with SciPy's log-softmax in every step, as in release 0.1.

Every client plays until it has more than so many steps, as in training. Steps are counted, not assumed.

Goal: compiled >= 5 times before (median of the ratios of each turn), for both policies.
"""

import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from _common import Figure, Goal, argument_parser, interleaved_rates, machine_facts, median_ratio, write_results

NUM_CLIENTS = 8
BALANCE = (0.2, 0.5, 5.0, 1.0)  # weights of position, velocity, angle and angular velocity of a policy that balances
CONTENDERS = {
    "compiled": ("CartPole-v1", 16),
    "many": ("gym:make_client", 16),
    "one": ("gym:make_client", 1),
    "before": ("gym:make_client", 1),
}
"""Environments, and how many of them per client."""


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # read when NumPy is imported
    facts = machine_facts()
    steps, repetitions = (300, 1) if arguments.quick else (4096, 5)
    figures, samples = [], {}
    for policy in ("falls", "balances"):
        with contenders(policy, steps) as contending:
            rates = interleaved_rates(contending, repetitions)
        samples[policy] = rates
        figures += headline(policy, rates)
    write_results("gym", facts, figures, {"steps_per_second": samples}, quick=arguments.quick)


@contextmanager
def contenders(policy: str, steps: int) -> Iterator[dict[str, Callable[[], int]]]:
    collectors = {name: make_collector(*given) for name, given in CONTENDERS.items()}
    try:
        yield {name: contender(collector, policy, steps, name == "before") for name, collector in collectors.items()}
    finally:
        for collector in collectors.values():
            collector.close()


def make_client(client: int) -> Any:
    """An environment as a user makes it."""
    import gymnasium

    return gymnasium.make("CartPole-v1")


def make_collector(env: str, environments_per_client: int) -> Any:
    from fedpohcs.worlds.gym import GymConfig, GymWorld

    return GymWorld("own", NUM_CLIENTS, settings=GymConfig(env, environments_per_client)).make_collector()


class EarlierActor:
    """Normalises logits before it draws an action, which the largest of them does not need."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.noise = actor, actor.noise

    def act(self, observation: Any, noise: Any) -> Any:
        from fedpohcs.learners.networks import action_distribution

        drawn = action_distribution(self.actor.policy, self.actor.sight(observation)).sample(noise)
        return drawn.astype("int32")


def contender(collector: Any, policy: str, steps: int, earlier: bool) -> Callable[[], int]:
    from fedpohcs.worlds.host import Play, Quota

    calls, actor = 0, make_actor(policy)
    actor = EarlierActor(actor) if earlier else actor

    def play() -> int:
        nonlocal calls
        calls += 1
        plays = [Play(client, actor, (0, calls, client)) for client in range(NUM_CLIENTS)]
        return sum(len(one.trajectory.reward) for one in collector.collect(plays, Quota(min_steps=steps)))

    return play


def make_actor(policy: str) -> Any:
    """Two tanh layers of 64, as training has them: drawn weights, or weights that pass on a sum of the observation."""
    import numpy as np

    from fedpohcs.core.noise import ActionNoise
    from fedpohcs.learners.actors import policy_actor, sight_of
    from fedpohcs.learners.filters import init_filters
    from fedpohcs.learners.networks import Dense, PolicyParams

    sizes, generator = (4, 64, 64, 2), np.random.default_rng(0)
    kernels = [generator.normal(0, 0.1, shape).astype(np.float32) for shape in itertools.pairwise(sizes)]
    if policy == "balances":
        for kernel in kernels:
            kernel[:] = 0
        kernels[0][:, 0], kernels[1][0, 0], kernels[2][0] = BALANCE, 1.0, (-50.0, 50.0)
    layers = tuple(Dense(kernel, np.zeros(kernel.shape[1], np.float32)) for kernel in kernels)
    params = PolicyParams(layers, np.zeros(0, np.float32))
    return policy_actor(ActionNoise("gumbel", 2), params, sight_of(init_filters(4), 5.0))


def headline(policy: str, rates: dict[str, list[float]]) -> list[Figure]:
    figures = [Figure(f"{policy}: {name}", statistics.median(values), "steps/s") for name, values in rates.items()]
    for name, goal in (("compiled", Goal(">=", 5, "times")), ("many", None), ("one", None)):
        ratio = median_ratio(rates[name], rates["before"])
        figures.append(Figure(f"{policy}: {name} / before", ratio, "times", goal))
    return figures


if __name__ == "__main__":
    main()
