"""Plays a trained policy in the world of one client, step by step."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.trajectory import Episode
from fedpohcs.runs.loading import read_config
from fedpohcs.worlds.base import TracedWorld
from fedpohcs.worlds.windows import first_window, next_window


def play_episodes(run: Path | str, client: int, number: int, seed: int = 0, *, greedy: bool = False) -> list[Episode]:
    """Episodes of a policy of a run with a client's own world and filter; ids count from 0."""
    config = _config(run)
    n, held_out = config.federation.num_clients, config.federation.held_out_clients
    more = f" plus held_out_clients (={held_out})" if held_out else ""
    require(0 <= client < n + held_out, "client", client, f"must be at least 0 and below num_clients (={n}){more}")
    return _Theatre(run, config, greedy).play(client, [np.random.default_rng([seed, index]) for index in range(number)])


class FleetPlay(NamedTuple):
    """One episode of a policy with every client."""

    about: dict[str, Any]  # selector, seed, round, ... of the policy
    episodes: list[Episode]  # by client

    @property
    def title(self) -> str:
        """The policy in words."""
        if self.about["round"] == 0:
            return "before training"
        return f"{self.about['selector']}, after {self.about['round']} rounds"


def play_clients(run: Path | str, seed: int = 0, *, greedy: bool = False) -> FleetPlay:
    """Let a policy of a run play with every client, each in its own world and with its own filter."""
    config = _config(run)
    theatre = _Theatre(run, config, greedy)
    clients = range(config.federation.num_clients)
    episodes = [theatre.play(client, [np.random.default_rng([seed, client])])[0] for client in clients]
    return FleetPlay(theatre.policy.about, episodes)


def _config(run: Path | str) -> ExperimentConfig:
    from fedpohcs.runs.stored import find_stored

    return read_config(find_stored(run).run)


class _Theatre:
    """The world and a policy of a run, ready to play with any client."""

    def __init__(self, run: Path | str, config: ExperimentConfig, greedy: bool) -> None:
        from fedpohcs.runs.export import load_run_policy
        from fedpohcs.worlds import check_world
        from fedpohcs.worlds.pictures import find_painter

        self.policy, self.greedy = load_run_policy(run), greedy
        self.has_own = self.policy.filter_mean is not None or self.policy.default_filter is None
        if not self.has_own:
            warnings.warn("clients of a fleet keep their filters: the default filter is used", stacklevel=3)
        self.world: Any = check_world(config).from_config(config)
        painter = find_painter(config.world)
        self.scene = painter.scene if painter else lambda simulator: None
        self.window = config.learner.observation_window
        self.open = _opener(self.world)

    def play(self, client: int, generators: Sequence[np.random.Generator]) -> list[Episode]:
        """An episode for each generator. Only the first is drawn: rendering may take longer than playing."""

        def act(window: np.ndarray, generator: np.random.Generator) -> Any:
            return self.policy.act(window, client if self.has_own else None, None if self.greedy else generator)

        simulator = self.open(client)
        drawn = Stage(simulator, self.world.horizon, self.scene, self.window)
        stages = [drawn, *[drawn._replace(scene=lambda simulator: None)] * (len(generators) - 1)]
        try:
            return [_play(stage, act, generator) for stage, generator in zip(stages, generators, strict=True)]
        except (RuntimeError, ValueError) as error:  # a user's environment failed, or a simulation diverged
            raise UserError(f"client {client} cannot play: {error}") from error
        finally:
            simulator.close()


def _opener(world: Any) -> Callable[[int], Any]:
    """Opens the simulator of a client, with pictures if the world has them."""
    if isinstance(world, TracedWorld):
        return traced_opener(world)
    return world.open_rendered if hasattr(world, "open_rendered") else world.open


class Stage(NamedTuple):
    """The simulator of an episode, and what is drawn of it."""

    simulator: Any  # a `worlds.workers.Simulator`
    horizon: int
    scene: Callable[[Any], Any]  # of a `worlds.pictures.Painter`
    window: int = 1  # observations that the policy sees at once


def traced_opener(world: TracedWorld) -> Callable[[int], "TracedSimulator"]:
    """Opens clients of a world of pure functions, which are compiled once."""
    import jax

    functions = jax.jit(world.reset), jax.jit(world.step)
    return lambda client: TracedSimulator(world, client, *functions)


class TracedSimulator:
    """One client of a world of pure functions."""

    def __init__(self, world: TracedWorld, client: int, reset: Callable[..., Any], step: Callable[..., Any]) -> None:
        import jax

        self._own = jax.tree.map(lambda x: x[client], world.population)
        self._reset, self._step = reset, step
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
