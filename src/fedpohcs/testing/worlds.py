"""Checks of worlds; see `worlds.base` and `worlds.host`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.noise import ActionNoise
from fedpohcs.core.registries import PRESETS
from fedpohcs.core.trajectory import Status, Trajectory
from fedpohcs.learners.actors import RowByRow
from fedpohcs.testing.equality import all_equal
from fedpohcs.worlds import make_world, world_levels
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions, TracedWorld, World
from fedpohcs.worlds.host import ClientEpisodes, HostWorld, Play, Quota, empty_trajectory

NUM_CLIENTS = 3
MOST_STEPS = 200  # of an episode that a check plays


class RandomActor:
    """Draws any action, whatever it observes. In a box without bounds it draws from a normal distribution."""

    def __init__(self, actions: ContinuousActions | DiscreteActions) -> None:
        self.actions = actions
        size = actions.size if isinstance(actions, ContinuousActions) else 1
        self.bounded = isinstance(actions, DiscreteActions) or bool(np.isfinite(actions.high - actions.low))
        self.noise = ActionNoise("uniform" if self.bounded else "normal", size)

    def act(self, observation: Any, noise: Any) -> Any:
        """From random numbers to actions."""
        del observation
        if isinstance(self.actions, DiscreteActions):
            return (noise[..., 0] * self.actions.num_choices).astype(np.int32)
        low, high = self.actions.low, self.actions.high
        return (low + (high - low) * noise).astype(np.float32) if self.bounded else noise

    def crowd(self, actors: Sequence[Any]) -> RowByRow:
        """Act row by row."""
        return RowByRow(actors)


def check_world(world: str | ExperimentConfig, *, play: bool = True) -> None:
    """Check a registered world at each of its levels, or the world of an experiment at the experiment's level.

    Args:
        world: its name, or the config of an experiment in it where it needs settings.
        play: also play episodes. False: only check the declarations of the world, which needs no simulator.
    """
    config = _small(world) if isinstance(world, str) else world
    _require(bool(world_levels(config.world)), config, "must name at least one level")
    levels = world_levels(config.world) if isinstance(world, str) else (config.level,)
    for level in levels:
        made, again = (_made(replace(config, level=level)) for _ in range(2))
        check_description(config, made)
        equal = made == again and hash(made) == hash(again)
        _require(equal, config, "must equal another of the same config, and have the same hash")
        if isinstance(made, TracedWorld):
            check_population(config, made)
    if play:
        check_play(config, _made(replace(config, level=levels[-1])))


def check_description(config: ExperimentConfig, world: World) -> None:
    """Check that sizes are positive and actions are of a known kind."""
    _require(world.observation_size > 0, config, "must have an observation_size above 0")
    _require(world.horizon > 0, config, "must have a horizon above 0")
    known = isinstance(world.actions, ContinuousActions | DiscreteActions)
    _require(known, config, "must have actions that are ContinuousActions or DiscreteActions")


def check_population(config: ExperimentConfig, world: TracedWorld) -> None:
    """Check that every array of the population has one row per client and finite numbers."""
    count = config.federation.num_clients
    leaves = [np.asarray(x) for x in jax.tree.leaves(world.population)]
    _require(bool(leaves), config, "must have a population of at least one array")
    rule = f"must have a population of num_clients (={count})"
    _require(all(x.shape[:1] == (count,) for x in leaves), config, rule)
    _require(all(np.isfinite(x).all() for x in leaves), config, "must have a population of finite numbers")


def check_play(config: ExperimentConfig, world: Any) -> None:
    """Check episodes of random actions: shapes, types, finite numbers, time limit, and reproducibility."""
    if isinstance(world, HostWorld):
        _check_host_play(config, world)
    else:
        _check_traced_play(config, world)


def _check_traced_play(config: ExperimentConfig, world: TracedWorld) -> None:
    """Check all clients in one compiled program, against one client without compiling."""
    count, steps = config.federation.num_clients, min(world.horizon, MOST_STEPS)
    generator, actor = np.random.default_rng(0), RandomActor(world.actions)
    start = generator.random((count, world.reset_noise), np.float32)
    drift = generator.random((steps, count, world.step_noise), np.float32)
    actions = actor.act(None, actor.noise.draw(generator, steps * count).reshape(steps, count, -1))

    def episode(start: Any, drift: Any, actions: Any, params: Any) -> Any:
        def advance(state: Any, inputs: Any) -> Any:
            action, noise = inputs
            moved = world.step(state, action, noise, params)
            return moved.state, (moved.observation, moved.reward, moved.terminated)

        state, first = world.reset(start, params)
        return first, *jax.lax.scan(advance, state, (actions, drift))[1]

    together = jax.jit(jax.vmap(episode, in_axes=(0, 1, 1, 0)))
    played = jax.tree.map(np.asarray, together(start, drift, actions, world.population))
    first, observation, reward, terminated = played
    size = world.observation_size
    _require(first.shape == (count, size), config, f"must reset to an observation of shape ({size},)")
    _require(observation.shape == (count, steps, size), config, f"must step to an observation of shape ({size},)")
    _require(reward.shape == terminated.shape == (count, steps), config, "must give scalars reward and terminated")
    _require(terminated.dtype == bool, config, f"must give terminated as bool, not {terminated.dtype}")
    running = np.cumsum(terminated, axis=1) - terminated == 0  # after its end an episode is not read any more
    finite = np.isfinite(first).all() and np.isfinite(observation[running]).all() and np.isfinite(reward[running]).all()
    _require(bool(finite), config, "must give finite observations and rewards")
    again = jax.tree.map(np.asarray, together(start, drift, actions, world.population))
    _require(all_equal(played, again), config, "must play the same with the same noise")
    own = jax.tree.map(lambda x: jnp.asarray(x)[0], world.population)
    _, alone = world.reset(jnp.asarray(start[0]), own)
    _require(np.allclose(alone, first[0], rtol=1e-4, atol=1e-5), config, "must start a client alone as among others")


def _check_host_play(config: ExperimentConfig, world: HostWorld) -> None:
    clients, quota = list(range(config.federation.num_clients)), Quota(episodes=1, steps_per_episode=MOST_STEPS)
    collector = world.make_collector()
    try:
        together = collector.collect([_play(world, client) for client in clients], quota)
        alone = collector.collect([_play(world, clients[-1])], quota)
    finally:
        collector.close()
    _require(len(together) == len(clients), config, f"must return one ClientEpisodes per play, not {len(together)}")
    for one in together:
        _check_played(config, world, one)
    same = all_equal(together[-1].trajectory, alone[0].trajectory)
    _require(same, config, "must play the same for a client whoever else plays, and whenever it plays")


def _play(world: HostWorld, client: int) -> Play:
    actor: Any = RandomActor(world.actions)
    return Play(client, actor, (0, client))


def _check_played(config: ExperimentConfig, world: HostWorld, played: ClientEpisodes) -> None:
    _require(played.failure is None, config, f"must play: {played.failure}")
    recorded: Trajectory = played.trajectory
    steps, size = len(recorded.reward), world.observation_size
    most = min(world.horizon, MOST_STEPS)
    _require(0 < steps <= most, config, f"must end an episode after at most {most} steps, not {steps}")
    shape = recorded.observation.shape
    _require(shape == (steps, 1, size), config, f"must record observations of shape {(steps, 1, size)}, not {shape}")
    _require(recorded.observation.dtype == np.float32, config, "must record observations in float32")
    finite = np.isfinite(recorded.observation).all() and np.isfinite(recorded.reward).all()
    _require(bool(finite), config, "must give finite observations and rewards")
    like = empty_trajectory(world).action
    rule = f"must record actions of type {like.dtype} and shape {(steps, *like.shape[1:])}"
    _require((recorded.action.dtype, recorded.action.shape) == (like.dtype, (steps, *like.shape[1:])), config, rule)
    ends = recorded.status.ravel() >= Status.TERMINATED
    _require(bool(ends[-1]) and ends.sum() == 1, config, "must record whole episodes, each with one last step")


def _small(world: str) -> ExperimentConfig:
    """A few clients of a world, with the settings of its preset if there is one."""
    federation = FederationConfig(num_clients=NUM_CLIENTS, num_candidates=2, num_selected=1, evaluation_episodes=1)
    config = PRESETS[world]() if world in PRESETS else ExperimentConfig(world=world, level=world_levels(world)[0])
    return replace(config, federation=federation)


def _made(config: ExperimentConfig) -> Any:
    try:
        return make_world(config)
    except UserError as error:
        raise AssertionError(f"world {config.world!r} must be made at level {config.level!r}: {error}") from error


def _require(holds: bool, config: ExperimentConfig, rule: str) -> None:
    assert holds, f"world {config.world!r} {rule}"
