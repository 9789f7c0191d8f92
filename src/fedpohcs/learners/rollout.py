"""Collecting whole episodes in a traced world, several side by side."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpohcs.envs.base import ContinuousActions, EnvParams, TracedWorld

CLIENT_AXIS = "clients"
"""Name of the axis over which executors map the functions of one client."""


def largest_of_clients(x: jax.Array) -> jax.Array:
    """The maximum over the clients mapped together.

    A loop whose length is the same for all of them needs no masking of its state at every turn.
    """
    return jax.lax.pmax(x, CLIENT_AXIS)


class Trajectory(NamedTuple):
    """Steps of one client, [T, E, ...]: time, then the episodes that run side by side.

    Every lane holds whole episodes from the front; what follows them is padding, where `valid` is false.
    """

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    next_observation: jax.Array  # before any reset
    terminated: jax.Array
    truncated: jax.Array  # cut by the time limit
    valid: jax.Array

    @property
    def last(self) -> jax.Array:
        """Whether an episode ends with the step."""
        return self.terminated | self.truncated


class Noise(NamedTuple):
    """All the randomness of a rollout, drawn at once because one large draw is far cheaper than many small ones."""

    action: jax.Array
    reset: jax.Array
    step: jax.Array


class _Loop(NamedTuple):
    time: jax.Array
    env_state: Any
    observation: jax.Array  # [E, obs]
    episode_step: jax.Array  # [E]
    active: jax.Array  # [E] the lane still collects
    trajectory: Trajectory


def draw_noise(key: jax.Array, world: TracedWorld, length: int, lanes: int) -> Noise:
    """One row more than steps for resets: the first one starts the lanes."""
    key_action, key_reset, key_step = jax.random.split(key, 3)
    if isinstance(world.actions, ContinuousActions):
        action = jax.random.normal(key_action, (length, lanes, world.actions.size))
    else:
        action = jax.random.gumbel(key_action, (length, lanes, world.actions.count))
    reset = jax.random.uniform(key_reset, (length + 1, lanes, world.reset_noise))
    step = jax.random.uniform(key_step, (length, lanes, world.step_noise))
    return Noise(action, reset, step)


def collect_episodes(
    key: jax.Array,
    world: TracedWorld,
    params: EnvParams,
    act: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    lanes: int,
    min_steps: int,
) -> Trajectory:
    """Each of `lanes` copies of the world plays whole episodes until it has more than `min_steps` steps.

    With `min_steps` 0 that is one episode a lane. The loop stops as soon as no lane of any client mapped together
    with this one is active.

    Args:
        key: randomness of this rollout.
        world: the environment.
        params: this client's parameters of it.
        act: (observations, noise) to actions, for all lanes at once.
        lanes: episodes side by side.
        min_steps: of each lane.
    """
    length = min_steps + world.horizon
    noise = draw_noise(key, world, length, lanes)
    reset = jax.vmap(world.reset, in_axes=(0, None))
    step = jax.vmap(world.step, in_axes=(0, 0, 0, None))

    def advance(loop: _Loop) -> _Loop:
        action = act(loop.observation, noise.action[loop.time])
        moved = step(loop.env_state, action, noise.step[loop.time], params)
        episode_step = loop.episode_step + 1
        truncated = ~moved.terminated & (episode_step >= world.horizon)
        row = Trajectory(
            loop.observation, action, moved.reward, moved.observation, moved.terminated, truncated, loop.active
        )
        trajectory = jax.tree.map(lambda buffer, x: buffer.at[loop.time].set(x), loop.trajectory, row)
        last = row.last
        env_state, observation = _where_lane(
            last, reset(noise.reset[loop.time + 1], params), (moved.state, moved.observation)
        )
        # Lanes are in step with the clock while active, so the clock counts their steps.
        active = loop.active & ~(last & (loop.time + 1 > min_steps))
        return _Loop(loop.time + 1, env_state, observation, jnp.where(last, 0, episode_step), active, trajectory)

    def goes_on(loop: _Loop) -> jax.Array:
        return (loop.time < length) & (largest_of_clients(loop.active.any().astype(jnp.int32)) > 0)

    env_state, observation = reset(noise.reset[0], params)
    start = _Loop(
        time=jnp.zeros((), jnp.int32),
        env_state=env_state,
        observation=observation,
        episode_step=jnp.zeros(lanes, jnp.int32),
        active=jnp.ones(lanes, bool),
        trajectory=_empty_trajectory(act, observation, noise, length),
    )
    return jax.lax.while_loop(goes_on, advance, start).trajectory


def _where_lane(condition: jax.Array, chosen: Any, other: Any) -> Any:
    def pick(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(pick, chosen, other)


def _empty_trajectory(act: Any, observation: jax.Array, noise: Noise, length: int) -> Trajectory:
    action = jax.eval_shape(act, observation, noise.action[0])
    lanes = observation.shape[0]
    return Trajectory(
        observation=jnp.zeros((length, *observation.shape)),
        action=jnp.zeros((length, *action.shape), action.dtype),
        reward=jnp.zeros((length, lanes)),
        next_observation=jnp.zeros((length, *observation.shape)),
        terminated=jnp.zeros((length, lanes), bool),
        truncated=jnp.zeros((length, lanes), bool),
        valid=jnp.zeros((length, lanes), bool),
    )
