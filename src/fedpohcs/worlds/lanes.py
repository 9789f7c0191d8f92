"""Many simulators of each client in one process, stepped in turns, with one policy call for all of them."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from fedpohcs.worlds.host import ClientEpisodes, Play, Quota
from fedpohcs.worlds.lockstep import Lanes, LockstepCollector, Patience, StepResult
from fedpohcs.worlds.lockstep import Simulator as LaneSimulator
from fedpohcs.worlds.workers import LOST_IN_A_ROW, TRIES_PER_EPISODE, SimulatedWorld, Simulator

MOST_OPEN = 512  # simulators that a process keeps open between two tasks


class ManyLanes(LaneSimulator, Protocol):
    """A simulator of lanes that may be too many to keep open."""

    def close_oldest(self, most: int) -> None:
        """Close lanes that were used longest ago, until `most` are open."""
        ...


class LanePlayer:
    """Plays many clients at once in this process."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.lanes: ManyLanes = world.make_lanes()
        self.collector = LockstepCollector(world, self.lanes, Patience(TRIES_PER_EPISODE, LOST_IN_A_ROW))

    def __enter__(self) -> "LanePlayer":
        return self

    def __exit__(self, *error: object) -> None:
        self.collector.close()

    def play_all(self, plays: Sequence[Play], quota: Quota) -> list[ClientEpisodes]:
        """The episodes of each client. They do not depend on which others are played with it."""
        played = self.collector.collect(plays, quota)
        self.lanes.close_oldest(MOST_OPEN)
        return played


class SimulatorLanes:
    """Single simulators as the lanes of a `LockstepCollector`. They are opened when they are first needed."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world, self.lanes_per_client = world, world.environments_per_client
        self._open: dict[int, Simulator] = {}  # by lane, the least recently started first
        self._not_started: dict[int, Exception] = {}  # by lane, why its episode could not start

    def reset(self, lanes: Lanes, generators: Sequence[np.random.Generator]) -> np.ndarray:
        """Start new episodes. One that cannot start is broken in its first step."""
        observation = np.zeros((len(lanes), self.world.observation_size), np.float32)
        for row, (lane, generator) in enumerate(zip(lanes.tolist(), generators, strict=True)):
            self._not_started.pop(lane, None)
            try:
                observation[row] = self._newest(lane).reset(generator)
            except Exception as error:
                self._discard(lane)
                self._not_started[lane] = error
        return observation

    def step(self, lanes: Lanes, action: np.ndarray) -> StepResult:
        """One step of each. A simulator that fails is closed; the lane gets another one."""
        count, reasons = len(lanes), dict[int, str]()
        observation = np.zeros((count, self.world.observation_size), np.float32)
        reward, terminated, truncated, broken = np.zeros(count), *np.zeros((3, count), bool)
        for row, lane in enumerate(lanes.tolist()):
            try:
                moved = self._open[lane].step(action[row])
                observation[row], reward[row], terminated[row], truncated[row], _ = moved
            except Exception as error:
                reason = self._not_started.pop(lane, error)
                broken[row], reasons[row] = True, f"{type(reason).__name__}: {reason}"
                self._discard(lane)
        return StepResult(observation, reward, terminated, broken, truncated, reasons)

    def close_oldest(self, most: int) -> None:
        """Close those that were used longest ago, until `most` are open."""
        for lane in list(self._open)[: max(len(self._open) - most, 0)]:
            self._discard(lane)

    def close(self) -> None:
        """Close all."""
        self.close_oldest(0)

    def _newest(self, lane: int) -> Simulator:
        """The simulator of a lane, opened if need be, and moved to the end of the line."""
        simulator = self._open.pop(lane, None) or self.world.open(lane // self.lanes_per_client)
        self._open[lane] = simulator
        return simulator

    def _discard(self, lane: int) -> None:
        simulator = self._open.pop(lane, None)
        if simulator is not None:
            with suppress(Exception):  # of a simulator that may have failed
                simulator.close()
