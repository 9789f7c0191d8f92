"""Gymnasium environments of the user as a federation, played in worker processes."""

import inspect
import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from fedpohcs.core.errors import UserError, require
from fedpohcs.core.imports import import_function
from fedpohcs.core.scenario import WorldConfig
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions
from fedpohcs.worlds.workers import SimulatedWorld

RENDER_MODE = "rgb_array"
LONGEST_EPISODE = 1000  # steps, where the environment has no time limit


@dataclass(frozen=True)
class GymConfig(WorldConfig):
    """Settings of the world `gym`."""

    env: str | None = None
    """A registered Gymnasium id such as CartPole-v1, or module:function that makes the environment of a client id. The
    option --env is short for it."""


class GymWorld(SimulatedWorld):
    """Gymnasium environments: a registered one for all clients, or those that a function makes per client."""

    Config = GymConfig
    held_out = True
    levels: ClassVar[tuple[str, ...]] = ("own",)
    painter: ClassVar[str | None] = "fedpohcs.worlds.pictures:GYMNASIUM"

    def __init__(self, level: str, num_clients: int, num_held_out: int = 0, *, settings: GymConfig) -> None:
        """Read the spaces and the time limit from the environment of the first client.

        Args:
            level: the only one; how clients differ is decided by `settings.env`.
            num_clients: number of clients that train.
            num_held_out: number of held-out clients, whose ids follow.
            settings: with the name of the environment or of the function.
        """
        del level, num_clients, num_held_out
        if find_spec("gymnasium") is None:
            raise UserError("this world needs the package gymnasium. Install it: pip install 'fedpohcs[gym]'")
        if settings.env is None:
            remedy = "Name a registered environment, or a function of yours: my_module:make_client."
            raise UserError(f"scenario.env (=None) must say which environments the world 'gym' is made of. {remedy}")
        self.env = settings.env
        try:
            first = GymEnvironment(self.env, 0)
        except UserError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"scenario.env (={self.env!r}) cannot make client 0: {reason}") from error
        self.observation_size, self.actions, self.horizon = first.observation_size, first.actions, first.horizon
        first.close()

    def open_rendered(self, client: int) -> "GymEnvironment":
        """The environment of the client, in this process, to be drawn if it can be."""
        return GymEnvironment(self.env, client, rendered=True)

    def open(self, client: int) -> "GymEnvironment":
        """The environment of the client, in this process."""
        opened = GymEnvironment(self.env, client)
        for name in ("observation_size", "actions"):
            mine, common = getattr(opened, name), getattr(self, name)
            require(mine == common, name, mine, f"must be that of client 0 (={common!r})")
        return opened


class GymEnvironment:
    """The environment of one client for the workers: flat observations, actions in [-1, 1], every output checked."""

    def __init__(self, env: str, client: int, *, rendered: bool = False) -> None:
        import gymnasium

        self.env = make_environment(env, client, RENDER_MODE if rendered else None)
        require(isinstance(self.env, gymnasium.Env), "scenario.env", env, "must make a gymnasium.Env")
        self.space = self.env.observation_space
        self.observation_size = int(gymnasium.spaces.flatdim(self.space))
        self.flatten = gymnasium.spaces.flatten
        self.actions = _actions(self.env.action_space)
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
            observation, reward, terminated, truncated, _ = self.env.step(self._native(action))
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
        at = f"step {self.steps}: the observation"
        shape = getattr(self.space, "shape", None)
        if shape is not None and np.shape(observation) != shape:
            raise ValueError(f"{at} has shape {np.shape(observation)}, but its space has {shape}")
        flat = np.asarray(self.flatten(self.space, observation), np.float32)
        if not np.isfinite(flat).all():
            raise ValueError(f"{at} holds numbers that are not finite")
        return flat

    def _native(self, action: np.ndarray) -> Any:
        """The action in the environment's units: -1 and 1 stand for the bounds of its space, if it has bounds."""
        space: Any = self.env.action_space
        if isinstance(self.actions, DiscreteActions):
            return int(action) + int(space.start)
        if not np.isfinite(self.actions.low):
            return action.reshape(space.shape).astype(space.dtype)
        share = (np.clip(action, -1.0, 1.0).reshape(space.shape) + 1) / 2
        return (space.low + share * (space.high - space.low)).astype(space.dtype)


def make_environment(env: str, client: int, render_mode: str | None = None) -> Any:
    """The environment of a client: made by the function `env` names, or the registered environment of that id.

    A function gets the render mode if it has a parameter of that name.
    """
    import gymnasium

    function = import_function("scenario.env", env) if ":" in env else None
    wanted: dict[str, Any] = {"render_mode": render_mode} if render_mode is not None else {}
    if function is not None:
        return function(client, **(wanted if "render_mode" in inspect.signature(function).parameters else {}))
    try:
        return gymnasium.make(env, **wanted)
    except gymnasium.error.Error as error:
        rule = "is neither a registered environment nor a function module:name"
        raise UserError(f"scenario.env (={env!r}) {rule}: {' '.join(str(error).split())}") from error


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
