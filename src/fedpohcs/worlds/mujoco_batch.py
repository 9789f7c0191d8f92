"""MuJoCo families stepped in batches: compiled code and the simulator, loaded when a collector is made."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit

from fedpohcs.core.processes import available_cores
from fedpohcs.worlds.lockstep import Lanes, StepResult
from fedpohcs.worlds.mujoco import MujocoWorld, log_warnings

LANES_PER_CLIENT = 32  # episodes that a client may play at the same time


class MujocoSimulator:
    """All lanes of a family in one batch. Results do not depend on the number of threads."""

    def __init__(self, world: MujocoWorld, models: Sequence[Any], lanes_per_client: int = LANES_PER_CLIENT) -> None:
        import mujoco
        from mujoco.batch import Batch

        api: Any = mujoco
        log_warnings()  # the executor reports simulations that diverge
        if api.get_mjcb_time() is None:
            # By default MuJoCo's Python package times every stage of a step, which takes a tenth of the step.
            api.set_mjcb_time(_no_clock.ctypes)
        self.world, self.lanes_per_client = world, lanes_per_client
        lane_models = [model for model in models for _ in range(lanes_per_client)]
        self.batch = Batch(models[0], nsim=len(lane_models), nthread=len(available_cores()))
        self.batch.set_models(lane_models)
        self.start_position = models[0].qpos0.copy()
        self.rules = _Rules.of(world, models[0].opt.timestep)
        self.position, self.velocity = self.batch.bind("qpos"), self.batch.bind("qvel")
        self.control, self.time = self.batch.bind("ctrl"), self.batch.bind("time")
        self.warm_start = self.batch.bind("qacc_warmstart")

    def reset(self, lanes: Lanes, generators: Sequence[np.random.Generator]) -> np.ndarray:
        """The initial pose of the model with noise, as in Gymnasium. The next step computes all derived quantities."""
        drawn = [self._drawn_start(generator) for generator in generators]
        self.position[lanes], self.velocity[lanes] = (np.stack(rows) for rows in zip(*drawn, strict=True))
        for field in (self.time, self.control, self.warm_start):  # the other fields that an episode changes
            field[lanes] = 0
        return _observed(self.rules, self.position[lanes], self.velocity[lanes])

    def _drawn_start(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A position and a velocity."""
        scale, rest = self.world.start_noise, self.start_position
        num_positions, num_velocities = len(rest), self.velocity.shape[1]
        if self.world.start_velocity == "normal":
            position = rest + generator.uniform(-scale, scale, num_positions)
            return position, scale * generator.standard_normal(num_velocities)
        noise = generator.uniform(-scale, scale, num_positions + num_velocities)
        return rest + noise[:num_positions], noise[num_positions:]

    def step(self, lanes: Lanes, action: np.ndarray) -> StepResult:
        """One control step. MuJoCo clips the controls; the cost is that of the unclipped action."""
        before, time = self.position[lanes, 0], self.time[lanes]
        self.control[lanes] = action
        failed = self._simulate(lanes)
        # MuJoCo resets a simulation that diverges, and its clock: the clock then lags by a simulation step or more.
        failed |= self.time[lanes] < time + self.rules.seconds_per_step * (1 - 0.5 / self.world.frame_skip)
        return StepResult(*_outcome(self.rules, self.position[lanes], self.velocity[lanes], before, action, failed))

    def close(self) -> None:
        """Delete the batch, which ends its threads."""
        del self.batch, self.position, self.velocity, self.control, self.time, self.warm_start

    def _simulate(self, lanes: Lanes) -> np.ndarray:
        from mujoco.batch import SimulationError

        failed = np.zeros(len(lanes), bool)
        try:
            self.batch.step(lanes, nstep=self.world.frame_skip)
        except SimulationError as error:
            failed = np.isin(lanes, error.ids)
        return failed


class SingleSimulator:
    """One lane with the interface of a single environment, for playing and drawing."""

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
        """The generalised position, including the position on the track that observations omit."""
        return self._lanes.position[0].copy()

    def close(self) -> None:
        """End its threads."""
        self._lanes.close()


@cfunc("float64()", cache=True)
def _no_clock():
    """A clock for MuJoCo that always returns 0."""
    return 0.0


class _Rules(NamedTuple):
    """The constants of a family for compiled code; see `MujocoWorld`."""

    seconds_per_step: float
    control_cost: float
    healthy_bonus: float
    healthy_height: tuple[float, float]
    healthy_angle: tuple[float, float]
    healthy_state: tuple[float, float]
    largest_velocity: float
    unobserved_positions: int

    @classmethod
    def of(cls, world: MujocoWorld, seconds_per_simulation_step: float) -> "_Rules":
        declared = (getattr(world, name) for name in cls._fields[1:])
        return cls(world.frame_skip * seconds_per_simulation_step, *declared)


@njit(cache=True)
def _observed(rules, position, velocity):
    """Observations, [n, ...]: positions without the unobserved ones, and clipped velocities."""
    hidden, limit = rules.unobserved_positions, rules.largest_velocity
    return np.concatenate((position[:, hidden:], np.clip(velocity, -limit, limit)), axis=1)


@njit(cache=True)
def _outcome(rules, position, velocity, before, action, failed):
    """The fields of `StepResult` for lanes whose positions on the track were `before` the actions."""
    observation = _observed(rules, position, velocity)
    reward = np.empty(len(position))
    healthy = np.empty(len(position), np.bool_)
    broken = failed.copy()
    for row in range(len(position)):
        healthy[row] = _is_healthy(rules, position[row], velocity[row])
        cost = 0.0
        for push in action[row]:
            cost += np.float64(push) * np.float64(push)
        speed = (position[row, 0] - before[row]) / rules.seconds_per_step
        reward[row] = speed + rules.healthy_bonus * healthy[row] - rules.control_cost * cost
        broken[row] |= not (np.isfinite(reward[row]) and np.isfinite(observation[row]).all())
    return observation, reward, ~healthy, broken


@njit(cache=True)
def _is_healthy(rules, position, velocity):
    """Whether a state is healthy. Height and angle are the second and third position, if a model has as many."""
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
