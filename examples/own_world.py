"""A world of your own: a point on a line, pushed towards 0 against a drag that differs from client to client."""

from pathlib import Path
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs import ExperimentConfig, FederationConfig, PPOConfig, run_experiment
from fedpohcs.core.registries import WORLDS
from fedpohcs.runs.experiment import History
from fedpohcs.worlds.base import ContinuousActions, TracedWorld, Transition

LARGEST_DRAG = {"none": 0.0, "low": 0.5, "high": 2.0}
TIME_STEP = 0.1


class PointParams(NamedTuple):
    """What differs between clients."""

    drag: jax.Array


class PointMass(TracedWorld):
    """N points whose drag grows with the client's id, from 0 to the largest of the level."""

    levels: ClassVar[tuple[str, ...]] = tuple(LARGEST_DRAG)
    observation_size = 2  # position and velocity
    actions = ContinuousActions(size=1, low=-1.0, high=1.0)
    horizon = 50  # steps after which an episode is cut
    reset_noise = 1  # uniform numbers a reset needs
    step_noise = 0  # uniform numbers a step needs

    def __init__(self, level: str, num_clients: int) -> None:
        drag = np.linspace(0, LARGEST_DRAG[level], num_clients)
        self.population = PointParams(drag=jnp.asarray(drag, jnp.float32))

    def reset(self, noise: jax.Array, params: PointParams) -> tuple[jax.Array, jax.Array]:
        """At rest, between -1 and 1. The state is also the observation."""
        state = jnp.stack([2 * noise[0] - 1, jnp.zeros_like(noise[0])])
        return state, state

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: PointParams) -> Transition:
        """One step of one client. A policy may exceed the box of actions, so the world clips."""
        position, velocity = state[0], state[1]
        force = jnp.clip(action[0], -1.0, 1.0)
        velocity = velocity + TIME_STEP * (force - params.drag * velocity)
        position = position + TIME_STEP * velocity
        state = jnp.stack([position, velocity])
        reward = -(position**2) - 0.01 * force**2
        return Transition(state, state, reward, terminated=jnp.zeros((), bool))


WORLDS["point-mass"] = f"{__name__}:PointMass"


def main(rounds: int = 20, out: Path | None = None) -> History:
    """Train eight points with FedPOHCS and return what happened."""
    config = ExperimentConfig(
        world="point-mass",
        level="high",
        rounds=rounds,
        groups=1,  # so few clients fit in one compiled call, which then compiles once
        federation=FederationConfig(num_clients=8, num_candidates=4, num_selected=2, evaluation_episodes=4),
        learner=PPOConfig(
            hidden_sizes=(16,),
            local_iterations=2,
            steps_per_iteration=500,
            learning_rate=0.01,
            kl_target=0.02,
            entropy_coefficient=0.0,
            filter_warmup_steps=500,
        ),
    )
    return run_experiment(config, out)


if __name__ == "__main__":
    for number, mean_return in enumerate(main().mean_returns):
        print(f"round {number:2d}  mean return {mean_return:7.2f}")
