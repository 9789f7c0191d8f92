"""A world of your own: points on a line, pushed towards 0 against a drag that differs between clients."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs import WORLDS, ExperimentConfig, FederationConfig, PPOConfig, WorldConfig, run_experiment
from fedpohcs.runs.experiment import History
from fedpohcs.worlds.base import ContinuousActions, TracedWorld, Transition, with_held_out

LARGEST_DRAG = {"none": 0.0, "low": 0.5, "high": 2.0}
TIME_STEP = 0.1


@dataclass(frozen=True)
class PointConfig(WorldConfig):
    """Settings of the world `point-mass`."""

    wind: float = 0.0
    """Constant acceleration of all points."""


class PointParams(NamedTuple):
    """Parameters of the clients; every array has one entry per client."""

    drag: jax.Array
    wind: jax.Array


class PointMass(TracedWorld):
    """N points whose drag grows with the id of the client, from 0 to the largest drag of the level."""

    Config = PointConfig
    levels: ClassVar[tuple[str, ...]] = tuple(LARGEST_DRAG)
    thresholds = (-10.0, -5.0)  # mean returns worth reaching
    held_out = True  # the constructor takes their number
    observation_size = 2  # position and velocity
    actions = ContinuousActions(size=1, low=-1.0, high=1.0)
    horizon = 50  # steps after which an episode is cut
    reset_noise = 1  # uniform numbers that a reset needs
    step_noise = 0  # uniform numbers that a step needs

    def __init__(self, level: str, num_clients: int, num_held_out: int, *, settings: PointConfig) -> None:
        drag = with_held_out(np.linspace(0, LARGEST_DRAG[level], num_clients), num_held_out)
        wind = np.full_like(drag, settings.wind)
        self.population = PointParams(jnp.asarray(drag, jnp.float32), jnp.asarray(wind, jnp.float32))

    def reset(self, noise: jax.Array, params: PointParams) -> tuple[jax.Array, jax.Array]:
        """A point at rest between -1 and 1. The state is also the observation."""
        state = jnp.stack([2 * noise[0] - 1, jnp.zeros_like(noise[0])])
        return state, state

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: PointParams) -> Transition:
        """One step of one client. A policy may exceed the box of actions, so the world clips."""
        position, velocity = state[0], state[1]
        force = jnp.clip(action[0], -1.0, 1.0)
        velocity = velocity + TIME_STEP * (force + params.wind - params.drag * velocity)
        position = position + TIME_STEP * velocity
        state = jnp.stack([position, velocity])
        reward = -(position**2) - 0.01 * force**2
        return Transition(state, state, reward, terminated=jnp.zeros((), bool))


WORLDS["point-mass"] = f"{__name__}:PointMass"


def main(rounds: int = 20, out: Path | None = None) -> History:
    """Train eight points with FedPOHCS, evaluate three more, and return what happened."""
    config = ExperimentConfig(
        world="point-mass",
        level="high",
        rounds=rounds,
        groups=1,  # so few clients fit in one compiled call, which then compiles once
        scenario=PointConfig(wind=0.2),
        federation=FederationConfig(8, num_candidates=4, num_selected=2, evaluation_episodes=4, held_out_clients=3),
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
    for record in main().records:
        trained, held_out = record.evaluation.mean_return.mean(), record.held_out.mean_return.mean()
        print(f"round {record.round:2d}  mean return {trained:7.2f}  of held-out clients {held_out:7.2f}")
