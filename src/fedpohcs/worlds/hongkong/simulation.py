"""Eleven vehicles on the loop of one network, stepped by SUMO inside this process.

libsumo holds one simulation per process. A second one would silently replace the first, so it is refused here.
"""

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.errors import UserError
from fedpohcs.worlds.hongkong.networks import DATA, Network, Place
from fedpohcs.worlds.hongkong.placement import NUM_VEHICLES, Start, draw_starts
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.hongkong.sight import OBSERVATION_SIZE, Vehicle, observe

STEP = 0.1  # seconds
ACTION_SIZE = 2
LANE_THRESHOLD, LANE_REST, LANE_PENALTY = 1 / 3, 5, 0.1  # the rest is in steps
EGO = "ego"
VEHICLES = (EGO, *(f"idm-{number}" for number in range(1, NUM_VEHICLES)))
TOP_SPEED = 25.0  # m/s; routes are long enough for it
STEPS_TO_INSERT, PLACEMENTS = 200, 5
MODES = {"flow": (25, 513), "longitudinal": (1, 513), "none": (0, 0)}
"""SUMO's speed mode and lane-change mode of the ego vehicle per level of safety."""


class TrafficSimulationError(RuntimeError):
    """SUMO failed in the middle of an episode; the message names area, seed and step."""


class TrafficStep(NamedTuple):
    """The outcome of an action."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Traffic:
    """One RL vehicle among ten IDM vehicles. An episode is a function of its seed alone."""

    _live: "Traffic | None" = None

    def __init__(self, network: Network, config: TrafficConfig | None = None, *, sumo: Any = None) -> None:
        """Start SUMO on the network.

        Args:
            network: with its loop.
            config: horizon, reward and safety.
            sumo: a module with SUMO's interface. None: libsumo.
        """
        self.network, self.config = network, config or TrafficConfig()
        self.sumo = sumo or import_libsumo()
        if Traffic._live is not None:
            rule = f"SUMO runs one simulation per process, and that of {Traffic._live.network.name!r} is open"
            raise UserError(
                f"network (={network.name!r}) cannot start: {rule}. Close it, or use worlds.workers.WorkerCollector."
            )
        self._errors = (self.sumo.TraCIException, self.sumo.FatalTraCIError, KeyError)
        self._seed: Any = None
        self._steps = self._since_change = self._other_collisions = 0
        self._idm_ego = False
        self._place: Place
        self._observation = np.zeros(OBSERVATION_SIZE, np.float32)
        self.speeds: list[float] = []  # m/s, the ego vehicle first
        self.sumo.start(["sumo", *self._arguments()])
        Traffic._live = self
        self._prepare()

    def reset(
        self, seed: int | Sequence[int] | np.random.Generator, *, reload: bool = False, idm_ego: bool = False
    ) -> np.ndarray:
        """Place the vehicles at random and restart the cycle of all traffic lights.

        Args:
            seed: of the episode, or a generator to draw from.
            reload: let SUMO read its files again. This is slower, and the episode is the same.
            idm_ego: let IDM drive the ego vehicle as well, for reference; actions are then ignored.
        """
        self._seed, self._steps, self._since_change, self._other_collisions = seed, 0, LANE_REST, 0
        self._idm_ego = idm_ego
        generator = np.random.default_rng(seed)
        try:
            if reload:
                self._restart()
            for _ in range(PLACEMENTS):
                self._clear()
                if self._insert(draw_starts(self.network, generator, idm_ego=idm_ego)):
                    self._look()
                    return self._observation
        except self._errors as error:
            raise self._failure(error) from error
        waiting = sorted(set(VEHICLES) - set(self.sumo.vehicle.getIDList()))
        raise TrafficSimulationError(f"{self._episode_name()}: no room for {', '.join(waiting)}.")

    def step(self, action: Iterable[float]) -> TrafficStep:
        """Simulate a tenth of a second.

        Args:
            action: acceleration as a share of the vehicle's limits, and the wish to change lanes; both are clipped to
                [-1, 1]. NaN brakes and keeps the lane.
        """
        self._steps += 1
        before = self._place
        try:
            lane = None if self._idm_ego else self._act(*map(float, action))
            self.sumo.simulationStep()
            lost = self._lost()
            if lost:  # does not happen in safe modes; the rest of the episode would be meaningless
                return TrafficStep(self._observation, 0.0, False, True, {"lost": lost})
            self._look()
            crashed = self._crashed()
        except self._errors as error:
            raise self._failure(error) from error
        changed = lane == self._place.lane and before.position == self._place.position
        if changed:
            self._since_change = 0
        reward = 0.0 if crashed else self._reward() - LANE_PENALTY * changed
        info = {"speed": self.speeds[0], "changed_lane": changed, "other_collisions": self._other_collisions}
        return TrafficStep(self._observation, reward, crashed, self._steps >= self.config.horizon, info)

    def close(self) -> None:
        """End the simulation, so that another one can start."""
        if Traffic._live is self:
            Traffic._live = None
            self.sumo.close()

    def positions(self) -> np.ndarray:
        """East, north and heading in degrees per vehicle, for drawing: [11, 3]."""
        vehicle = self.sumo.vehicle
        return np.array([(*vehicle.getPosition(name), vehicle.getAngle(name)) for name in VEHICLES])

    def _arguments(self) -> list[str]:
        return [
            *("--net-file", str(self.network.path), "--additional-files", str(DATA / "vehicles.add.xml")),
            *("--step-length", str(STEP), "--time-to-teleport", "-1", "--lanechange.overtake-right", "true"),
            *("--collision.action", "warn", "--collision.check-junctions", "true"),
            *("--collision.mingap-factor", "0", "--no-step-log", "true", "--no-warnings", "true"),
            *("--duration-log.disable", "true", "--xml-validation", "never"),
        ]

    def _prepare(self) -> None:
        """Set up a loaded simulation: the limits of the ego vehicle, and a route from every road."""
        sumo, limits = self.sumo, self.network.limits
        sumo.vehicletype.setAccel(EGO, limits.max_accel)
        sumo.vehicletype.setDecel(EGO, limits.max_decel)
        edges = [road.edge for road in self.network.loop]
        metres = self.config.horizon * STEP * TOP_SPEED + (STEPS_TO_INSERT * STEP) * TOP_SPEED + 1000.0
        laps = math.ceil(metres / self.network.ring) + 1
        for position in range(len(edges)):
            sumo.route.add(f"from-{position}", (edges[position:] + edges[:position]) * laps)
        self._signals = sumo.trafficlight.getIDList()

    def _restart(self) -> None:
        self.sumo.load(self._arguments())
        self._prepare()

    def _clear(self) -> None:
        vehicle = self.sumo.vehicle
        self.sumo.simulation.clearPending()
        for name in vehicle.getIDList():
            vehicle.remove(name)
        self.sumo.simulationStep()  # SUMO removes vehicles with the next step
        for signal in self._signals:
            self.sumo.trafficlight.setPhase(signal, 0)

    def _insert(self, starts: Sequence[Start]) -> bool:
        """Insert the vehicles; False if not all of them could enter in time."""
        vehicle = self.sumo.vehicle
        for name, start in zip(VEHICLES, starts, strict=True):
            kind = "idm" if name != EGO or self._idm_ego else EGO
            place = {"departLane": str(start.lane), "departPos": f"{start.metres:.2f}", "departSpeed": "0"}
            vehicle.add(name, f"from-{start.position}", typeID=kind, **place)
            vehicle.setSpeedFactor(name, start.speed_factor)
        if not self._idm_ego:
            speed_mode, lane_mode = MODES[self.config.safety]
            vehicle.setSpeedMode(EGO, speed_mode)
            vehicle.setLaneChangeMode(EGO, lane_mode)
        for _ in range(STEPS_TO_INSERT):
            self.sumo.simulationStep()
            if vehicle.getIDCount() == len(VEHICLES):
                return True
        return False

    def _act(self, acceleration: float, lane_change: float) -> int | None:
        """Apply an action to the ego vehicle and return the lane it is told to change to."""
        limits, vehicle = self.network.limits, self.sumo.vehicle
        share = min(max(-1.0, acceleration), 1.0)
        gain = share * (limits.max_accel if share >= 0 else limits.max_decel) * STEP
        vehicle.setSpeed(EGO, max(0.0, self.speeds[0] + gain))
        self._since_change += 1
        if self._place.on_junction or self._since_change <= LANE_REST:
            return None
        lane = self._place.lane + (lane_change > LANE_THRESHOLD) - (lane_change < -LANE_THRESHOLD)
        lowest, highest = self.network.loop[self._place.position].lanes
        if lane == self._place.lane or not lowest <= lane <= highest:
            return None
        vehicle.changeLane(EGO, lane, STEP)
        return lane

    def _look(self) -> None:
        """Read the state of all vehicles."""
        places, vehicle = self.network.places, self.sumo.vehicle
        lane_of, metres_of, speed_of = vehicle.getLaneID, vehicle.getLanePosition, vehicle.getSpeed
        seen, speeds = [], []
        for name in VEHICLES:
            start, length, lane, _, on_junction = places[lane_of(name)]
            metres, speed = metres_of(name), speed_of(name)
            speeds.append(speed)
            seen.append(Vehicle(start + metres, lane, speed, 1.0 if on_junction else metres / length))
        self.speeds, self._place = speeds, places[lane_of(EGO)]
        network = self.network
        lanes = network.loop[self._place.position].lanes
        numbers = observe(seen[0], seen[1:], network.ring, lanes, network.target_speed)
        self._observation = np.array(numbers, np.float32)

    def _lost(self) -> list[str]:
        if self.sumo.vehicle.getIDCount() == NUM_VEHICLES:
            return []
        return sorted(set(VEHICLES) - set(self.sumo.vehicle.getIDList()))

    def _crashed(self) -> bool:
        """Whether the ego vehicle collided. Steps in which only other vehicles did are counted."""
        if not self.sumo.simulation.getCollidingVehiclesNumber():
            return False
        crashed = EGO in self.sumo.simulation.getCollidingVehiclesIDList()
        self._other_collisions += not crashed
        return crashed

    def _reward(self) -> float:
        """How close the speeds are to v*: of all vehicles (`network`, Flow's reward), or of the ego vehicle."""
        target = self.network.target_speed
        if self.config.reward == "ego":
            return max(1 - abs(self.speeds[0] - target) / target, 0.0)
        deviation = math.sqrt(sum((speed - target) ** 2 for speed in self.speeds))
        return max(1 - deviation / (target * math.sqrt(NUM_VEHICLES)), 0.0)

    def _failure(self, error: Exception) -> TrafficSimulationError:
        return TrafficSimulationError(f"{self._episode_name()}, step {self._steps}: {error!r}")

    def _episode_name(self) -> str:
        named = not isinstance(self._seed, np.random.Generator)
        return f"{self.network.name}, seed {self._seed}" if named else self.network.name


def import_libsumo() -> Any:
    """The module libsumo; a `UserError` if it is not installed."""
    try:
        return import_module("libsumo")
    except ImportError as error:
        raise UserError(
            f"libsumo is needed for traffic ({error}). Install it: pip install 'fedpohcs[sumo]'."
        ) from error
