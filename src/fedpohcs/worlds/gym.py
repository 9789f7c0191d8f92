"""Gymnasium environments of the user as a federation, played in worker processes."""

import inspect
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from fedpohcs.core.checks import require_positive
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.imports import import_function
from fedpohcs.core.scenario import WorldConfig
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions
from fedpohcs.worlds.mujoco import log_warnings
from fedpohcs.worlds.physics import KNOBS, Knob, find_knob
from fedpohcs.worlds.workers import SimulatedWorld

RENDER_MODE = "rgb_array"
LONGEST_EPISODE = 1000  # steps, where the environment has no time limit
FAMILIES = ("box2d", "mujoco")  # of registered environments that need packages of their own


@dataclass(frozen=True)
class GymConfig(WorldConfig):
    """Settings of the world `gym`."""

    env: str | None = None
    """A registered Gymnasium id such as CartPole-v1, or module:function that makes the environment of a client id. The
    option --env is short for it."""
    environments_per_client: int = 16
    """Environments that a worker process may open for a client; one policy call serves them all. 1: a process opens
    one environment at a time, for simulators that exist once per process or need much memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("scenario.", self, "environments_per_client")


class GymWorld(SimulatedWorld):
    """Gymnasium environments: a registered one for all clients, or those that a function makes per client."""

    Config = GymConfig
    held_out = True
    levels: ClassVar[tuple[str, ...]] = ("own", "varied")
    painter: ClassVar[str | None] = "fedpohcs.worlds.pictures:GYMNASIUM"
    preload = ("gymnasium", "fedpohcs.worlds.lanes")

    def __init__(self, level: str, num_clients: int, num_held_out: int = 0, *, settings: GymConfig) -> None:
        """Read the spaces and the time limit from the environment of the first client.

        Args:
            level: `own`: as `settings.env` makes the clients. `varied`: each has a physics of its own; see
                `worlds.physics`.
            num_clients: number of clients that train.
            num_held_out: number of held-out clients, whose ids follow.
            settings: with the name of the environment or of the function.
        """
        if find_spec("gymnasium") is None:
            raise UserError("this world needs the package gymnasium. Install it: pip install 'fedpohcs[gym]'")
        if settings.env is None:
            remedy = "Name a registered environment, or a function of yours: my_module:make_client."
            raise UserError(f"scenario.env (=None) must say which environments the world 'gym' is made of. {remedy}")
        self.env, self.environments_per_client = settings.env, settings.environments_per_client
        self.num_clients = num_clients + num_held_out
        self.knob = find_knob(self.env) if level == "varied" else None
        try:
            first = GymEnvironment(self.env, 0, self.knob)
        except UserError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"scenario.env (={self.env!r}) cannot make client 0: {reason}") from error
        self.observation_size, self.actions, self.horizon = first.observation_size, first.actions, first.horizon
        first.close()

    def open_rendered(self, client: int) -> "GymEnvironment":
        """The environment of the client, in this process, to be drawn if it can be."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures need no window; without a screen SDL complains
        return GymEnvironment(self.env, client, self.knob, rendered=True)

    def make_lanes(self) -> Any:
        """Compiled ones for Gymnasium's classic control."""
        import gymnasium

        own = self.env in KNOBS and str(gymnasium.spec(self.env).entry_point)
        if not own or not own.startswith("gymnasium.envs.classic_control"):
            return super().make_lanes()
        from fedpohcs.worlds.classic import ClassicLanes

        return ClassicLanes(self)

    def open(self, client: int) -> "GymEnvironment":
        """An environment of the client, in this process."""
        opened = GymEnvironment(self.env, client, self.knob)
        for name in ("observation_size", "actions"):
            mine, common = getattr(opened, name), getattr(self, name)
            require(mine == common, name, mine, f"must be that of client 0 (={common!r})")
        return opened


class GymEnvironment:
    """An environment of one client for the workers: flat observations, actions in [-1, 1], every output checked."""

    def __init__(self, env: str, client: int, knob: Knob | None = None, *, rendered: bool = False) -> None:
        import gymnasium

        self.env = make_environment(env, client, RENDER_MODE if rendered else None)
        require(isinstance(self.env, gymnasium.Env), "scenario.env", env, "must make a gymnasium.Env")
        if knob is not None:
            knob.turn(self.env.unwrapped, knob.value(client))
        self.space: Any = self.env.observation_space
        self.shape = self.space.shape
        self.observation_size = int(gymnasium.spaces.flatdim(self.space))
        self.flatten = None if isinstance(self.space, gymnasium.spaces.Box) else gymnasium.spaces.flatten
        self.actions = _actions(self.env.action_space)
        self.native = _native(self.env.action_space, self.actions)
        self.horizon = _time_limit(self.env)
        self.steps = 0

    def reset(self, seed: np.random.Generator) -> np.ndarray:
        """Start an episode."""
        self.steps = 0
        observation, _ = self.env.reset(seed=int(seed.integers(2**31)))
        return self._checked(observation)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, None]:
        """One step. An error names the step."""
        self.steps += 1
        try:
            observation, reward, terminated, truncated, _ = self.env.step(self.native(action))
        except Exception as error:
            raise RuntimeError(f"step {self.steps}: {type(error).__name__}: {error}") from error
        if not math.isfinite(reward):
            raise ValueError(f"step {self.steps}: the reward (={reward}) is not a finite number")
        return self._checked(observation), float(reward), bool(terminated), bool(truncated), None

    def render(self) -> bytes | None:
        """The present state as a picture; None if the environment was not made with, or cannot do, `rgb_array`."""
        from fedpohcs.worlds.pictures import encoded_frame

        try:
            return encoded_frame(self.env.render()) if self.env.render_mode == RENDER_MODE else None
        except Exception:  # a package that draws is missing, or the user's own code failed: play without pictures
            return None

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _checked(self, observation: Any) -> np.ndarray:
        """A flat copy."""
        if self.shape is not None and np.shape(observation) != self.shape:
            at = f"step {self.steps}: the observation"
            raise ValueError(f"{at} has shape {np.shape(observation)}, but its space has {self.shape}")
        if self.flatten is not None:
            observation = self.flatten(self.space, observation)
        flat = np.array(observation, np.float32).ravel()
        # The sum is finite if every number is, and only then; it takes less time than to ask each.
        if not math.isfinite(np.add.reduce(flat, dtype=np.float64)):
            raise ValueError(f"step {self.steps}: the observation holds numbers that are not finite")
        return flat


def _native(space: Any, actions: ContinuousActions | DiscreteActions) -> Callable[[np.ndarray], Any]:
    """From actions to the environment's units: -1 and 1 stand for the bounds of its space, if it has bounds."""
    if isinstance(actions, DiscreteActions):
        start = int(space.start)
        return lambda action: int(action) + start
    shape, dtype, low, span = space.shape, space.dtype, space.low, space.high - space.low
    if not np.isfinite(actions.low):
        return lambda action: action.reshape(shape).astype(dtype)

    def scaled(action: np.ndarray) -> np.ndarray:
        share = (np.minimum(np.maximum(action, -1.0), 1.0).reshape(shape) + 1) / 2
        return (low + share * span).astype(dtype)

    return scaled


def make_environment(env: str, client: int, render_mode: str | None = None) -> Any:
    """The environment of a client: made by the function `env` names, or the registered environment of that id.

    A function gets the render mode if it has a parameter of that name.
    """
    import gymnasium

    function = import_function("scenario.env", env) if ":" in env else None
    wanted: dict[str, Any] = {"render_mode": render_mode} if render_mode is not None else {}
    if function is not None:
        return function(client, **(wanted if wanted and _takes_render_mode(function) else {}))
    try:
        if find_spec("mujoco") is not None and ".envs.mujoco." in str(gymnasium.spec(env).entry_point):
            log_warnings()
        return gymnasium.make(env, **wanted)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"scenario.env (={env!r}) needs {_missing_package(env, error)}") from error
    except gymnasium.error.Error as error:
        rule = "is neither a registered environment nor a function module:name"
        raise UserError(f"scenario.env (={env!r}) {rule}: {' '.join(str(error).split())}") from error


def _takes_render_mode(function: Any) -> bool:
    try:
        return "render_mode" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in type has no signature
        return False


def _missing_package(env: str, error: Exception) -> str:
    """What a registered environment lacks, and the command that installs it."""
    import gymnasium

    entry_point = str(gymnasium.spec(env).entry_point)
    for family in FAMILIES:
        if f"gymnasium.envs.{family}." in entry_point:
            return f"the packages of Gymnasium's {family}. Install them: pip install 'gymnasium[{family}]'"
    return f"a package that is missing: {' '.join(str(error).split())}"


def _actions(space: Any) -> ContinuousActions | DiscreteActions:
    from gymnasium.spaces import Box, Discrete

    if isinstance(space, Discrete):
        return DiscreteActions(int(space.n))
    require(isinstance(space, Box), "action_space", space, "must be Box or Discrete", "Wrap the environment.")
    bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all()
    limit = 1.0 if bounded else math.inf
    return ContinuousActions(int(np.prod(space.shape)), -limit, limit)


def _time_limit(env: Any) -> int:
    if env.spec is not None and env.spec.max_episode_steps:
        return int(env.spec.max_episode_steps)
    return (
        int(env.get_wrapper_attr("_max_episode_steps"))
        if env.has_wrapper_attr("_max_episode_steps")
        else LONGEST_EPISODE
    )
