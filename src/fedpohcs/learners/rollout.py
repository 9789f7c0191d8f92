"""Collecting whole episodes in a traced world, many side by side."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.trajectory import CHUNK, Status, Trajectory, rollout_length
from fedpohcs.core.types import AnyArray
from fedpohcs.worlds.base import EnvParams, TracedWorld

CLIENT_AXIS = "clients"
"""Name of the axis over which clients that learn side by side are mapped."""


def largest_of_clients(x: jax.Array) -> jax.Array:
    """The maximum over the clients mapped together.

    A loop with the same length for all clients needs no mask on its state.
    """
    return jax.lax.pmax(x, CLIENT_AXIS)


def valid_first(shuffle: jax.Array, valid: jax.Array) -> jax.Array:
    """The shuffled indices of valid steps, in their shuffled order, then padding."""
    chosen = valid[shuffle]
    position = jnp.where(chosen, jnp.cumsum(chosen) - 1, shuffle.size)
    return jnp.zeros_like(shuffle).at[position].set(shuffle, mode="drop", unique_indices=True)


class Noise(NamedTuple):
    """All random numbers of a rollout, drawn at once because one large draw is cheaper than many small ones."""

    start: AnyArray  # [E, ...] starts the first episode of each lane
    action: AnyArray  # [T, E, ...]
    step: AnyArray  # [T, E, ...]
    reset: AnyArray  # [T, E, ...] starts the episode after one that ends here


class _Lanes(NamedTuple):
    """State of the lanes between two steps."""

    env_state: Any
    observation: jax.Array  # [E, obs]
    episode_step: jax.Array  # [E]
    active: jax.Array  # [E] the lane still collects


def draw_noise(key: jax.Array, world: TracedWorld, action_noise: ActionNoise, lanes: int, min_steps: int) -> Noise:
    """Draw the random numbers of a rollout; with `min_steps` 0 no lane starts a second episode."""
    length = rollout_length(world.horizon, min_steps)
    key_start, key_action, key_step, key_reset = jax.random.split(key, 4)
    return Noise(
        start=jax.random.uniform(key_start, (lanes, world.reset_noise)),
        action=action_noise.draw_on_device(key_action, (length, lanes)),
        step=jax.random.uniform(key_step, (length, lanes, world.step_noise)),
        reset=jax.random.uniform(key_reset, (length, lanes, world.reset_noise if min_steps else 0)),
    )


def collect_episodes(
    noise: Noise,
    world: TracedWorld,
    params: EnvParams,
    act: Callable[[jax.Array, jax.Array], jax.Array],
    min_steps: int,
    *,
    record_next: bool,
    largest: Callable[[jax.Array], jax.Array] = largest_of_clients,
) -> Trajectory:
    """Every lane plays whole episodes until it has more than `min_steps` steps; with 0, one episode.

    The loop runs in chunks, each a scan, and stops after the chunk in which the last lane has finished.

    Args:
        noise: from `draw_noise`; its shapes say how many lanes there are.
        world: the environment.
        params: of the environment, with a leading axis of lanes.
        act: (observations, noise) to actions, for all lanes at once.
        min_steps: of each lane.
        record_next: whether to record the observations after each step too.
        largest: the maximum over all rollouts that are mapped together.
    """
    reset, step = jax.vmap(world.reset), jax.vmap(world.step)
    length, lanes = noise.action.shape[:2]

    def advance(now: _Lanes, inputs: tuple[jax.Array, Noise]) -> tuple[_Lanes, Trajectory]:
        time, noise = inputs
        action = act(now.observation, noise.action)
        # Where XLA keeps the barrier, it computes the physics once, and not anew for each array that reads it. On a CPU
        # XLA drops the barrier before it fuses; making it stay changes the digits of runs with few clients.
        action, moved = jax.lax.optimization_barrier((action, step(now.env_state, action, noise.step, params)))
        episode_step = now.episode_step + 1
        cut = jnp.where(episode_step >= world.horizon, Status.TRUNCATED, Status.RUNNING)
        status = jnp.where(now.active, jnp.where(moved.terminated, Status.TERMINATED, cut), Status.PADDING)
        row = Trajectory(
            now.observation,
            action,
            moved.reward,
            status.astype(jnp.int8),
            moved.observation if record_next else None,
        )
        env_state, observation = moved.state, moved.observation
        if min_steps:
            fresh = reset(noise.reset, params)
            env_state, observation = _where_lane(row.last, fresh, (env_state, observation))
        # An active lane makes a step at every tick, so the clock counts its steps.
        active = now.active & ~(row.last & (time + 1 > min_steps))
        return _Lanes(env_state, observation, jnp.where(row.last, 0, episode_step), active), row

    def advance_chunk(carry: Any) -> Any:
        chunk, now, rows = carry
        time = chunk * CHUNK
        ahead = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, time, CHUNK), noise._replace(start=None))
        now, new = jax.lax.scan(advance, now, (time + jnp.arange(CHUNK), ahead))
        rows = jax.tree.map(lambda whole, x: jax.lax.dynamic_update_slice_in_dim(whole, x, time, 0), rows, new)
        return chunk + 1, now, rows

    def goes_on(carry: Any) -> jax.Array:
        chunk, now, _ = carry
        return (chunk < length // CHUNK) & (largest(now.active.any().astype(jnp.int32)) > 0)

    env_state, observation = reset(noise.start, params)
    start = _Lanes(env_state, observation, jnp.zeros(lanes, jnp.int32), jnp.ones(lanes, bool))
    first = jax.tree.map(lambda x: x[0], noise._replace(start=None))
    shapes = jax.eval_shape(advance, start, (jnp.int32(0), first))[1]
    rows = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)
    return jax.lax.while_loop(goes_on, advance_chunk, (jnp.int32(0), start, rows))[2]


def _where_lane(condition: jax.Array, chosen: Any, other: Any) -> Any:
    def pick(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(pick, chosen, other)
