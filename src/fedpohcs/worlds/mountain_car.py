"""Mountain Cars: MountainCarContinuous-v0 with a constant added to every action. Paper: Sec. 5.1."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fedpohcs.core.config import Placement
from fedpohcs.core.lazy import LazyModule
from fedpohcs.worlds.base import ContinuousActions, TracedWorld, Transition, with_held_out

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:  # the class is read for options and help texts, which must not wait for JAX
    jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")

MAX_SPEED = 0.07
MIN_POSITION, MAX_POSITION, GOAL_POSITION = -1.2, 0.6, 0.45
POWER, GRAVITY = 0.0015, 0.0025
GOAL_REWARD, ACTION_COST = 100.0, 0.1
FEDKL_DEVIATION, FEDKL_LIMIT = 0.8, 1.0


class CarParams(NamedTuple):
    """The parameter that differs between cars: the constant theta_n added to every action."""

    action_shift: jax.Array


class MountainCars(TracedWorld):
    """N cars whose shifts are spread evenly over an interval, ascending with the id of the client.

    The paper counts n = 1..N and states theta_n = -1.5 + n / 20 for `medium` and N = 60: the interval is open below and
    closed above. `low` and `high` follow the same rule. The authors' code has [-2, 3) at the high level, closed below:
    `high-authors`. At the level `fedkl` shifts are normal with standard deviation 0.8, clipped to [-1, 1], as Xie and
    Song (2023) draw them: here they are the N quantiles (n - 1/2) / N of that distribution, so none are drawn.
    """

    levels: ClassVar[tuple[str, ...]] = ("low", "medium", "high", "high-authors", "fedkl")
    thresholds = (0, 25, 50, 60)
    held_out = extrapolates = True
    painter = "fedpohcs.worlds.pictures:MOUNTAIN_CAR"
    observation_size = 2
    actions = ContinuousActions(size=1, low=-1.0, high=1.0)
    horizon = 999
    reset_noise = 1
    step_noise = 0

    def __init__(
        self, level: str, num_clients: int, num_held_out: int = 0, *, placement: Placement = "between"
    ) -> None:
        shifts = with_held_out(action_shifts(level, num_clients), num_held_out, placement)
        self.population = CarParams(action_shift=jnp.asarray(shifts, jnp.float32))

    def reset(self, noise: jax.Array, params: CarParams) -> tuple[jax.Array, jax.Array]:
        """A car at rest at a random position in the valley."""
        del params
        state = jnp.stack([-0.6 + 0.2 * noise[0], jnp.zeros_like(noise[0])])
        return state, state

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: CarParams) -> Transition:
        """One step of Gymnasium's physics. The shifted action is clipped for the force, but not for its cost."""
        del noise
        position, velocity = state[0], state[1]
        shifted = action[0] + params.action_shift
        velocity = velocity + jnp.clip(shifted, -1.0, 1.0) * POWER - GRAVITY * jnp.cos(3 * position)
        velocity = jnp.clip(velocity, -MAX_SPEED, MAX_SPEED)
        position = jnp.clip(position + velocity, MIN_POSITION, MAX_POSITION)
        velocity = jnp.where((position == MIN_POSITION) & (velocity < 0), 0.0, velocity)
        terminated = (position >= GOAL_POSITION) & (velocity >= 0)
        reward = GOAL_REWARD * terminated - ACTION_COST * shifted**2
        state = jnp.stack([position, velocity])
        return Transition(state, state, reward, terminated)


def action_shifts(level: str, num_clients: int) -> np.ndarray:
    """theta_n of every client at a level of heterogeneity. Paper: Sec. 5.1."""
    if level == "high-authors":
        return -2.0 + 5.0 * np.arange(num_clients) / num_clients
    if level == "fedkl":
        quantiles = [FEDKL_DEVIATION * NormalDist().inv_cdf((n + 0.5) / num_clients) for n in range(num_clients)]
        return np.clip(quantiles, -FEDKL_LIMIT, FEDKL_LIMIT)
    reach = {"low": 1.0, "medium": 1.5, "high": 2.0}[level]
    return -reach + 2 * reach * np.arange(1, num_clients + 1) / num_clients
