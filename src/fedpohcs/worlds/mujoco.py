"""Gymnasium's MuJoCo worlds with a model parameter that differs from client to client, stepped by MuJoCo in batches.

A family is a class of declarations: which of Gymnasium's models, which parameter of it over which range, and the
numbers of Gymnasium's reward. `Hoppers` is the paper's (Sec. 5.1).
"""

import logging
import math
import os
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numba import cfunc, njit

from fedpohcs.core.errors import UserError
from fedpohcs.worlds.base import ContinuousActions
from fedpohcs.worlds.host import Collector, HostWorld
from fedpohcs.worlds.lockstep import Lanes, LockstepCollector, Moved

log = logging.getLogger("fedpohcs")

LANES_PER_CLIENT = 32  # episodes that a client may play side by side


class Parameter(NamedTuple):
    """A number in a MuJoCo model: `Parameter("geom", "leg_geom", "size", 0)` is the radius of a capsule."""

    kind: str  # of the element: geom, body, joint, actuator, option, ...
    name: str  # of the element; empty for `option`
    field: str
    position: int | None = None  # within the field; None where that is a single number

    def write(self, spec: Any, value: float) -> None:
        """Put `value` into a model that is not compiled yet."""
        element = spec.option if self.kind == "option" else getattr(spec, self.kind)(self.name)
        if element is None:
            raise UserError(f"the model has no {self.kind} {self.name!r}.")
        if self.position is None:
            setattr(element, self.field, value)
        else:
            getattr(element, self.field)[self.position] = value


class MujocoWorld(HostWorld):
    """N clients that differ in `parameters`, spread evenly over the range of the level, ascending with the id.

    The reward is that of Gymnasium's walking worlds of version 5: forward speed, plus a bonus while healthy, minus a
    cost of the action as the policy gave it, before it is clipped.
    """

    levels: ClassVar[tuple[str, ...]]
    ranges: ClassVar[dict[str, tuple[float, float]]]
    parameters: ClassVar[tuple[Parameter, ...]]
    model_file: ClassVar[str]  # among the models that Gymnasium ships
    horizon = 1000
    frame_skip: ClassVar[int]
    control_cost: ClassVar[float]
    healthy_bonus: ClassVar[float] = 0.0
    healthy_height: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    healthy_angle: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    healthy_state: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    unobserved_positions: ClassVar[int] = 1  # where on the track it is must not matter
    largest_velocity: ClassVar[float] = math.inf  # observed velocities are clipped to this
    start_noise: ClassVar[float]
    start_velocity: ClassVar[Literal["uniform", "normal"]] = "uniform"

    def __init_subclass__(cls) -> None:
        if "ranges" in vars(cls):
            cls.levels = tuple(cls.ranges)

    def __init__(self, level: str, num_clients: int) -> None:
        require_mujoco()
        self.values = np.linspace(*self.ranges[level], num_clients)

    def make_model(self, value: float) -> Any:
        """The compiled model of a client whose parameter has this value."""
        import mujoco

        api: Any = mujoco  # made in C++, where no type checker finds its names
        spec = api.MjSpec.from_file(str(gymnasium_models() / self.model_file))
        for parameter in self.parameters:
            parameter.write(spec, value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what Gymnasium's files contain: nothing that a user could change
                return spec.compile()
        except ValueError as error:
            names = ", ".join(f"{p.name or p.kind}.{p.field}" for p in self.parameters)
            raise UserError(f"{names} (={value:g}) makes no valid model: {' '.join(str(error).split())}") from error

    def make_collector(self) -> Collector:
        """Lockstep on every core."""
        models = [self.make_model(value) for value in self.values]
        return LockstepCollector(self, MujocoSimulator(self, models))

    def open(self, client: int) -> "LoneSimulator":
        """The environment of one client alone."""
        return LoneSimulator(self, client)


class Hoppers(MujocoWorld):
    """Hopper with a leg of different size, the radius of its capsule. Paper: Sec. 5.1."""

    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "low": (0.01, 0.07),
        "medium": (0.01, 0.10),
        "high": (0.01, 0.15),
    }
    parameters = (Parameter("geom", "leg_geom", "size", 0),)
    model_file = "hopper.xml"
    observation_size = 11
    actions = ContinuousActions(size=3, low=-1.0, high=1.0)
    frame_skip = 4
    control_cost = 1e-3
    healthy_bonus = 1.0
    healthy_height = (0.7, math.inf)
    healthy_angle = (-0.2, 0.2)
    healthy_state = (-100.0, 100.0)
    largest_velocity = 10.0
    start_noise = 5e-3


class Walkers(MujocoWorld):
    """Walker2d with legs of different size, the radius of the capsules of both lower legs."""

    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "low": (0.03, 0.05),
        "medium": (0.02, 0.07),
        "high": (0.01, 0.10),
    }
    parameters = (Parameter("geom", "leg_geom", "size", 0), Parameter("geom", "leg_left_geom", "size", 0))
    model_file = "walker2d_v5.xml"
    observation_size = 17
    actions = ContinuousActions(size=6, low=-1.0, high=1.0)
    frame_skip = 4
    control_cost = 1e-3
    healthy_bonus = 1.0
    healthy_height = (0.8, 2.0)
    healthy_angle = (-1.0, 1.0)
    largest_velocity = 10.0
    start_noise = 5e-3


class HalfCheetahs(MujocoWorld):
    """HalfCheetah under different gravity, in metres per second squared."""

    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "low": (-11.0, -8.6),
        "medium": (-13.0, -6.6),
        "high": (-16.0, -3.6),
    }
    parameters = (Parameter("option", "", "gravity", 2),)
    model_file = "half_cheetah.xml"
    observation_size = 17
    actions = ContinuousActions(size=6, low=-1.0, high=1.0)
    frame_skip = 5
    control_cost = 0.1
    start_noise = 0.1
    start_velocity = "normal"


class MujocoSimulator:
    """All lanes of a family in one batch; the results do not depend on the number of threads."""

    def __init__(self, world: MujocoWorld, models: Sequence[Any], lanes_per_client: int = LANES_PER_CLIENT) -> None:
        import mujoco
        from mujoco.batch import Batch

        api: Any = mujoco
        if api.get_mju_user_warning() is None:
            # MuJoCo would write a file into the user's folder. What diverges is counted, and reported by the executor.
            api.set_mju_user_warning(log.debug)
        if api.get_mjcb_time() is None:
            # In Python MuJoCo times every stage of a step unless told not to, which takes a tenth of the step.
            api.set_mjcb_time(_no_clock.ctypes)
        self.world, self.lanes_per_client = world, lanes_per_client
        lane_models = [model for model in models for _ in range(lanes_per_client)]
        self.batch = Batch(models[0], nsim=len(lane_models), nthread=len(os.sched_getaffinity(0)))
        self.batch.set_models(lane_models)
        self.start_position = models[0].qpos0.copy()
        self.rules = _Rules.of(world, models[0].opt.timestep)
        self.position, self.velocity = self.batch.bind("qpos"), self.batch.bind("qvel")
        self.control, self.time = self.batch.bind("ctrl"), self.batch.bind("time")
        self.warm_start = self.batch.bind("qacc_warmstart")

    def reset(self, lanes: Lanes, generators: Sequence[np.random.Generator]) -> np.ndarray:
        """The model's own pose with a little noise, as in Gymnasium. What follows from it the next step computes."""
        drawn = [self._drawn_start(generator) for generator in generators]
        self.position[lanes], self.velocity[lanes] = (np.stack(rows) for rows in zip(*drawn, strict=True))
        for field in (self.time, self.control, self.warm_start):  # all else that differs from a fresh state
            field[lanes] = 0
        return _observed(self.rules, self.position[lanes], self.velocity[lanes])

    def _drawn_start(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity."""
        scale, rest = self.world.start_noise, self.start_position
        num_positions, num_velocities = len(rest), self.velocity.shape[1]
        if self.world.start_velocity == "normal":
            position = rest + generator.uniform(-scale, scale, num_positions)
            return position, scale * generator.standard_normal(num_velocities)
        noise = generator.uniform(-scale, scale, num_positions + num_velocities)
        return rest + noise[:num_positions], noise[num_positions:]

    def step(self, lanes: Lanes, action: np.ndarray) -> Moved:
        """MuJoCo clips the controls itself; the cost is that of the action as it came."""
        before, time = self.position[lanes, 0], self.time[lanes]
        self.control[lanes] = action
        failed = self._simulate(lanes)
        # MuJoCo starts a simulation that has diverged anew, and its clock with it: a simulation step or more is lost.
        failed |= self.time[lanes] < time + self.rules.seconds_a_step * (1 - 0.5 / self.world.frame_skip)
        return Moved(*_outcome(self.rules, self.position[lanes], self.velocity[lanes], before, action, failed))

    def close(self) -> None:
        """The batch ends its threads when it goes."""
        del self.batch, self.position, self.velocity, self.control, self.time, self.warm_start

    def _simulate(self, lanes: Lanes) -> np.ndarray:
        from mujoco.batch import SimulationError

        failed = np.zeros(len(lanes), bool)
        try:
            self.batch.step(lanes, nstep=self.world.frame_skip)
        except SimulationError as error:
            failed = np.isin(lanes, error.ids)
        return failed


class LoneSimulator:
    """One lane, stepped as any environment is: for those who watch it."""

    LANE = np.array([0])

    def __init__(self, world: MujocoWorld, client: int) -> None:
        self._lanes = MujocoSimulator(world, [world.make_model(world.values[client])], lanes_per_client=1)

    def reset(self, seed: np.random.Generator) -> np.ndarray:
        """Start an episode."""
        return self._lanes.reset(self.LANE, [seed])[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, None]:
        """One control step."""
        moved = self._lanes.step(self.LANE, np.asarray(action)[None])
        if moved.broken[0]:
            raise RuntimeError("the simulation has diverged")
        return moved.observation[0], float(moved.reward[0]), bool(moved.terminated[0]), False, None

    def pose(self) -> np.ndarray:
        """The generalised position, with the place on the track that observations leave out."""
        return self._lanes.position[0].copy()

    def close(self) -> None:
        """End its threads."""
        self._lanes.close()


@cfunc("float64()", cache=True)
def _no_clock():
    """A clock for MuJoCo that costs nothing and stands still."""
    return 0.0


class _Rules(NamedTuple):
    """What compiled code has to know of a family; see `MujocoWorld`."""

    seconds_a_step: float
    control_cost: float
    healthy_bonus: float
    healthy_height: tuple[float, float]
    healthy_angle: tuple[float, float]
    healthy_state: tuple[float, float]
    largest_velocity: float
    unobserved_positions: int

    @classmethod
    def of(cls, world: MujocoWorld, seconds_a_simulation_step: float) -> "_Rules":
        declared = (getattr(world, name) for name in cls._fields[1:])
        return cls(world.frame_skip * seconds_a_simulation_step, *declared)


@njit(cache=True)
def _observed(rules, position, velocity):
    """Positions, but for the first ones, and velocities; [n, ...]."""
    hidden, limit = rules.unobserved_positions, rules.largest_velocity
    return np.concatenate((position[:, hidden:], np.clip(velocity, -limit, limit)), axis=1)


@njit(cache=True)
def _outcome(rules, position, velocity, before, action, failed):
    """The fields of `Moved`, for lanes that were at `before` on the track when they took these actions."""
    observation = _observed(rules, position, velocity)
    reward = np.empty(len(position))
    healthy = np.empty(len(position), np.bool_)
    broken = failed.copy()
    for row in range(len(position)):
        healthy[row] = _is_healthy(rules, position[row], velocity[row])
        cost = 0.0
        for push in action[row]:
            cost += np.float64(push) * np.float64(push)
        speed = (position[row, 0] - before[row]) / rules.seconds_a_step
        reward[row] = speed + rules.healthy_bonus * healthy[row] - rules.control_cost * cost
        broken[row] |= not (np.isfinite(reward[row]) and np.isfinite(observation[row]).all())
    return observation, reward, ~healthy, broken


@njit(cache=True)
def _is_healthy(rules, position, velocity):
    """Height and angle are the second and third position, where a model has so many."""
    healthy = len(position) < 2 or _within(position[1], rules.healthy_height)
    healthy &= len(position) < 3 or _within(position[2], rules.healthy_angle)
    for angle in position[2:]:
        healthy &= _within(angle, rules.healthy_state)
    for speed in velocity:
        healthy &= _within(speed, rules.healthy_state)
    return healthy


@njit(cache=True)
def _within(value, interval):
    return interval[0] < value and value < interval[1]


def require_mujoco() -> None:
    """Refuse to go on where MuJoCo or Gymnasium is not installed."""
    for package in ("mujoco", "gymnasium"):
        if find_spec(package) is None:
            raise UserError(f"this world needs the package {package}. Install it: pip install 'fedpohcs[mujoco]'")


def gymnasium_models() -> Path:
    """Where Gymnasium keeps its model files; found without importing it."""
    spec = find_spec("gymnasium")
    assert spec is not None and spec.origin is not None  # `require_mujoco` has seen to it
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"
