"""Windows: worlds whose observation is the latest few observations, oldest first, for policies that need a memory.

Before there are enough, the first observation of the episode is repeated. A recurrent network reads a window as its
sequence; see docs/how-to/add-a-network.md.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from fedpohcs.core.errors import require
from fedpohcs.core.types import AnyArray
from fedpohcs.worlds.base import EnvParams, TracedWorld, Transition, World
from fedpohcs.worlds.host import LockstepWorld
from fedpohcs.worlds.workers import SimulatedWorld, Simulator

if TYPE_CHECKING:
    from fedpohcs.worlds.lockstep import Lanes, StepResult
    from fedpohcs.worlds.lockstep import Simulator as LaneSimulator


def first_window(observation: AnyArray, length: int) -> AnyArray:
    """The window at the start of an episode, [..., length * obs]."""
    return observation.__array_namespace__().tile(observation, length)


def next_window(window: AnyArray, observation: AnyArray) -> AnyArray:
    """The window after one more observation, without the oldest one."""
    xp = window.__array_namespace__()
    return xp.concatenate([window[..., observation.shape[-1] :], observation], axis=-1)


def windowed(world: Any, length: int) -> Any:
    """The world with windows of so many observations as its observations; with 1, the world itself."""
    if length == 1:
        return world
    if isinstance(world, TracedWorld):
        return TracedWindows(world, length)
    if isinstance(world, SimulatedWorld):
        return SimulatedWindows(world, length)
    rule = f"must be 1: {type(world).__name__} plays its episodes with a collector of its own"
    remedy = "Let its environments return windows."
    require(isinstance(world, LockstepWorld), "learner.observation_window", length, rule, remedy)
    return LaneWindows(world, length)


class _Windows(World):
    """What windows of every kind of world have in common."""

    def __init__(self, world: Any, length: int) -> None:
        self.world, self.length = world, length
        self.observation_size = length * world.observation_size
        self.actions, self.horizon = world.actions, world.horizon


class TracedWindows(_Windows, TracedWorld):
    """Windows of a traced world. A state is the world's state and the window."""

    def __init__(self, world: TracedWorld, length: int) -> None:
        super().__init__(world, length)
        self.population = world.population
        self.reset_noise, self.step_noise = world.reset_noise, world.step_noise  # pyright: ignore[reportAttributeAccessIssue]

    def reset(self, noise: AnyArray, params: EnvParams) -> tuple[Any, AnyArray]:
        """The first observation, repeated."""
        state, observation = self.world.reset(noise, params)
        window = first_window(observation, self.length)
        return (state, window), window

    def step(self, state: Any, action: AnyArray, noise: AnyArray, params: EnvParams) -> Transition:
        """The window moves on by one observation."""
        inner, window = state
        moved = self.world.step(inner, action, noise, params)
        window = next_window(window, moved.observation)
        return moved._replace(state=(moved.state, window), observation=window)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TracedWindows) and (self.world, self.length) == (other.world, other.length)

    def __hash__(self) -> int:
        return hash((self.world, self.length))


class SimulatedWindows(_Windows, SimulatedWorld):
    """Windows of a world that opens a simulator per client."""

    def __init__(self, world: SimulatedWorld, length: int) -> None:
        super().__init__(world, length)
        self.preload = world.preload  # pyright: ignore[reportAttributeAccessIssue]
        self.environments_per_client = world.environments_per_client

    def open(self, client: int) -> Simulator:
        """The client's simulator, with windows."""
        return WindowSimulator(self.world.open(client), self.length)


class LaneWindows(_Windows, LockstepWorld):
    """Windows of a world that steps many environments at once."""

    def make_simulator(self) -> "LaneSimulator":
        """The world's simulator, with a window per lane."""
        return LaneWindowSimulator(self.world.make_simulator(), self.length)


class WindowSimulator:
    """One environment whose observations are windows."""

    def __init__(self, simulator: Simulator, length: int) -> None:
        self.simulator, self.length = simulator, length
        self.window = np.zeros(0, np.float32)

    def reset(self, seed: np.random.Generator) -> np.ndarray:
        """Start an episode."""
        self.window = first_window(self.simulator.reset(seed), self.length)
        return self.window

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Any]:
        """One step."""
        observation, *rest = self.simulator.step(action)
        self.window = next_window(self.window, observation)
        return self.window, *rest  # pyright: ignore[reportReturnType]  the rest has four entries

    def close(self) -> None:
        """Close the environment."""
        self.simulator.close()


class LaneWindowSimulator:
    """Many environments whose observations are windows."""

    def __init__(self, simulator: "LaneSimulator", length: int) -> None:
        self.simulator, self.length = simulator, length
        self.lanes_per_client = simulator.lanes_per_client
        self._windows: dict[int, np.ndarray] = {}  # by lane

    def reset(self, lanes: "Lanes", generators: Any) -> np.ndarray:
        """Start new episodes in these lanes."""
        windows = first_window(self.simulator.reset(lanes, generators), self.length)
        self._windows.update(zip(lanes.tolist(), windows, strict=True))
        return windows

    def step(self, lanes: "Lanes", action: np.ndarray) -> "StepResult":
        """One step of these lanes."""
        moved = self.simulator.step(lanes, action)
        windows = next_window(np.stack([self._windows[lane] for lane in lanes.tolist()]), moved.observation)
        self._windows.update(zip(lanes.tolist(), windows, strict=True))
        return moved._replace(observation=windows)

    def close(self) -> None:
        """End threads."""
        self.simulator.close()
