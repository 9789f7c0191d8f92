"""Plays a trained policy in the world of one client, step by step."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.errors import UserError, require
from fedpohcs.core.trajectory import Episode
from fedpohcs.runs.loading import read_config
from fedpohcs.worlds.base import TracedWorld
from fedpohcs.worlds.windows import first_window, next_window


def play_episodes(run: Path | str, client: int, number: int, seed: int = 0, *, greedy: bool = False) -> list[Episode]:
    """Episodes of a policy of a run with a client's own world and filter; ids count from 0."""
    from fedpohcs.runs.export import load_run_policy
    from fedpohcs.runs.stored import find_stored

    config = read_config(find_stored(run).run)
    n, held_out = config.federation.num_clients, config.federation.held_out_clients
    more = f" plus held_out_clients (={held_out})" if held_out else ""
    require(client < n + held_out, "client", client + 1, f"must not exceed num_clients (={n}){more}")
    policy = load_run_policy(run)
    has_own = policy.filter_mean is not None or policy.default_filter is None
    if not has_own:
        warnings.warn("clients of a fleet keep their filters: the default filter is used", stacklevel=2)

    def act(window: np.ndarray, generator: np.random.Generator) -> Any:
        return policy.act(window, client if has_own else None, None if greedy else generator)

    from fedpohcs.worlds import check_world
    from fedpohcs.worlds.pictures import find_painter

    world: Any = check_world(config).from_config(config)
    simulator = TracedSimulator(world, client) if isinstance(world, TracedWorld) else world.open(client)
    painter = find_painter(config.world)
    scene = painter.scene if painter else lambda simulator: None
    stage = Stage(simulator, world.horizon, scene, config.learner.observation_window)
    try:
        return [_play(stage, act, np.random.default_rng([seed, index])) for index in range(number)]
    except (RuntimeError, ValueError) as error:  # a user's environment failed, or a simulation diverged
        raise UserError(f"client {client + 1} cannot play: {error}") from error
    finally:
        simulator.close()


class Stage(NamedTuple):
    """The simulator of an episode, and what is drawn of it."""

    simulator: Any  # a `worlds.workers.Simulator`
    horizon: int
    scene: Callable[[Any], Any]  # of a `worlds.pictures.Painter`
    window: int = 1  # observations that the policy sees at once


class TracedSimulator:
    """One client of a world of pure functions."""

    def __init__(self, world: TracedWorld, client: int) -> None:
        import jax

        self._own = jax.tree.map(lambda x: x[client], world.population)
        self._reset, self._step = jax.jit(world.reset), jax.jit(world.step)
        self._reset_noise, self._step_noise = world.reset_noise, world.step_noise

    def reset(self, seed: np.random.Generator) -> np.ndarray:
        """Start an episode."""
        self._generator = seed
        self._state, observation = self._reset(seed.random(self._reset_noise, np.float32), self._own)
        return np.asarray(observation)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, None]:
        """One step."""
        noise = self._generator.random(self._step_noise, np.float32)
        moved = self._step(self._state, action, noise, self._own)
        self._state = moved.state
        return np.asarray(moved.observation), float(moved.reward), bool(moved.terminated), False, None

    def close(self) -> None:
        """Do nothing: no resources are open."""


def _play(stage: Stage, act: Any, generator: np.random.Generator) -> Episode:
    simulator, horizon, scene, length = stage
    observations, actions, rewards = [simulator.reset(generator)], [], []
    window = first_window(observations[0], length)
    scenes, terminated, truncated = [scene(simulator)], False, False
    while not (terminated or truncated or len(rewards) == horizon):
        action = act(window, generator)
        observation, reward, terminated, truncated, _ = simulator.step(action)
        observations.append(observation)
        window = next_window(window, observation)
        actions.append(action)
        rewards.append(reward)
        scenes.append(scene(simulator))
    return Episode(np.stack(observations), np.stack(actions), np.array(rewards), terminated, scenes)
