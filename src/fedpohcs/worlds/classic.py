"""Gymnasium's classic control, compiled: all lanes in one call, with the steps that Gymnasium's own environments make.

A step in Python takes longer than the policy. States and physics are those of Gymnasium; results agree to rounding.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fedpohcs.worlds.base import ContinuousActions
from fedpohcs.worlds.lockstep import Lanes, StepResult
from fedpohcs.worlds.physics import KNOBS
from fedpohcs.worlds.seeding import seeded_generator


class Classic(NamedTuple):
    """One environment. `value` is the quantity of its knob, one number per row."""

    start: Callable[[np.random.Generator], Any]  # draws a state
    observe: Callable[[np.ndarray], np.ndarray]  # states [n, k] to observations
    step: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    """(state, action, value) to rewards and terminations. It changes the states in place."""
    torque: float = 1.0  # that the action 1 stands for


class ClassicLanes:
    """The environments of all clients as the lanes of a `LockstepCollector`."""

    def __init__(self, world: Any) -> None:
        """All lanes of a `worlds.gym.GymWorld`."""
        self.lanes_per_client = world.environments_per_client
        self.rules, knob = CLASSICS[world.env], KNOBS[world.env]
        values = [knob.value(client) if world.knob else knob.usual for client in range(world.num_clients)]
        self.value = np.repeat(np.array(values, float), self.lanes_per_client)
        size = len(self.rules.start(np.random.default_rng(0)))
        self.state = np.zeros((len(self.value), size))
        self.is_discrete = not isinstance(world.actions, ContinuousActions)

    def reset(self, lanes: Lanes, generators: Sequence[np.random.Generator]) -> np.ndarray:
        """Start new episodes, with the draws of Gymnasium's `reset(seed=...)`."""
        for lane, generator in zip(lanes.tolist(), generators, strict=True):
            self.state[lane] = self.rules.start(seeded_generator([int(generator.integers(2**31))]))
        return self.rules.observe(self.state[lanes])

    def step(self, lanes: Lanes, action: np.ndarray) -> StepResult:
        """One step of these lanes."""
        state = self.state[lanes]
        if not self.is_discrete:
            action = np.clip(action[:, 0], -1, 1) * np.float32(self.rules.torque)
        reward, terminated = self.rules.step(state, action, self.value[lanes])
        self.state[lanes] = state
        return StepResult(self.rules.observe(state), reward, terminated, np.zeros(len(lanes), bool))

    def close_oldest(self, most: int) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


def _upright(generator: np.random.Generator) -> np.ndarray:
    return generator.uniform(-0.05, 0.05, 4)


def _hanging(generator: np.random.Generator) -> np.ndarray:
    return generator.uniform(-0.1, 0.1, 4).astype(np.float32)


def _in_the_valley(generator: np.random.Generator) -> tuple[float, float]:
    return generator.uniform(-0.6, -0.4), 0.0


def _anywhere(generator: np.random.Generator) -> np.ndarray:
    return generator.uniform([-math.pi, -1.0], [math.pi, 1.0])


def _as_it_is(state: np.ndarray) -> np.ndarray:
    return state.astype(np.float32)


def _observe_pendulum(state: np.ndarray) -> np.ndarray:
    angle, speed = state.T
    return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)


def _observe_acrobot(state: np.ndarray) -> np.ndarray:
    inner, outer = state[:, 0], state[:, 1]
    angles = [np.cos(inner), np.sin(inner), np.cos(outer), np.sin(outer)]
    return np.stack([*angles, state[:, 2], state[:, 3]], axis=1).astype(np.float32)


@njit(cache=True)
def _step_cart_pole(state, action, length):
    cart, pole, gravity, push, seconds = 1.0, 0.1, 9.8, 10.0, 0.02
    total = cart + pole
    terminated = np.empty(len(state), np.bool_)
    for row in range(len(state)):
        place, speed, angle, spin = state[row]
        sine, cosine, lever = math.sin(angle), math.cos(angle), pole * length[row]
        pushed = ((push if action[row] == 1 else -push) + lever * spin * spin * sine) / total
        turning = (gravity * sine - cosine * pushed) / (length[row] * (4.0 / 3.0 - pole * cosine * cosine / total))
        place, speed = place + seconds * speed, speed + seconds * (pushed - lever * turning * cosine / total)
        angle, spin = angle + seconds * spin, spin + seconds * turning
        state[row, 0], state[row, 1], state[row, 2], state[row, 3] = place, speed, angle, spin
        terminated[row] = abs(place) > 2.4 or abs(angle) > 12 * 2 * math.pi / 360
    return np.ones(len(state)), terminated


@njit(cache=True)
def _step_pendulum(state, torque, gravity):
    seconds, fastest = 0.05, 8.0
    reward = np.empty(len(state))
    for row in range(len(state)):
        angle, speed = state[row]
        push = float(torque[row])
        from_top = (angle + math.pi) % (2 * math.pi) - math.pi
        reward[row] = -(from_top * from_top + 0.1 * speed * speed + 0.001 * push * push)
        speed += (1.5 * gravity[row] * math.sin(angle) + 3.0 * push) * seconds
        speed = min(max(speed, -fastest), fastest)
        state[row, 0], state[row, 1] = angle + speed * seconds, speed
    return reward, np.zeros(len(state), np.bool_)


@njit(cache=True)
def _drive(state, row, acceleration, goal):
    """Move a car by one step; whether it arrives."""
    place, speed = state[row]
    speed += acceleration - 0.0025 * math.cos(3 * place)
    speed = min(max(speed, -0.07), 0.07)
    place = min(max(place + speed, -1.2), 0.6)
    if place == -1.2 and speed < 0:
        speed = 0.0
    state[row, 0], state[row, 1] = place, speed
    return place >= goal and speed >= 0


@njit(cache=True)
def _step_mountain_car(state, action, force):
    terminated = np.empty(len(state), np.bool_)
    for row in range(len(state)):
        terminated[row] = _drive(state, row, (action[row] - 1) * force[row], 0.5)
    return np.full(len(state), -1.0), terminated


@njit(cache=True)
def _step_mountain_car_continuous(state, action, power):
    reward, terminated = np.empty(len(state)), np.empty(len(state), np.bool_)
    for row in range(len(state)):
        push = float(action[row])
        terminated[row] = _drive(state, row, push * power[row], 0.45)
        reward[row] = 100.0 * terminated[row] - 0.1 * push * push
        for entry in range(2):
            state[row, entry] = np.float32(state[row, entry])  # as Gymnasium keeps it
    return reward, terminated


@njit(cache=True)
def _acrobot_change(inner, outer, inner_speed, outer_speed, torque, mass):
    """Time derivative of the state. Links have length 1, their centres of mass are halfway, the inner one weighs 1."""
    half, gravity, inertia = 0.5, 9.8, 1.0
    sine, cosine = math.sin(outer), math.cos(outer)
    both = half * half + mass * (1 + half * half + 2 * half * cosine) + 2 * inertia
    coupling = mass * (half * half + half * cosine) + inertia
    outer_pull = mass * half * gravity * math.sin(inner + outer)
    inner_pull = (half + mass) * gravity * math.sin(inner) + outer_pull
    inner_pull -= mass * half * sine * outer_speed * (outer_speed + 2 * inner_speed)
    share = coupling / both
    outer_turn = torque + share * inner_pull - mass * half * inner_speed * inner_speed * sine - outer_pull
    outer_turn /= mass * half * half + inertia - share * coupling
    return inner_speed, outer_speed, -(coupling * outer_turn + inner_pull) / both, outer_turn


@njit(cache=True)
def _step_acrobot(state, action, mass):
    """One step of the classical Runge-Kutta method of order four."""
    seconds = 0.2
    reward, terminated = np.empty(len(state)), np.empty(len(state), np.bool_)
    for row in range(len(state)):
        start, torque = state[row].copy(), action[row] - 1.0
        total, change = np.zeros(4), np.zeros(4)
        for ahead, weight in ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0)):
            at = start + ahead * seconds * change
            slope = _acrobot_change(at[0], at[1], at[2], at[3], torque, mass[row])
            for entry in range(4):
                change[entry] = slope[entry]
            total += weight * change
        now = start + seconds / 6.0 * total
        for entry, bound in ((0, math.pi), (1, math.pi)):
            while now[entry] > bound:
                now[entry] -= 2 * bound
            while now[entry] < -bound:
                now[entry] += 2 * bound
        for entry, bound in ((2, 4 * math.pi), (3, 9 * math.pi)):
            now[entry] = min(max(now[entry], -bound), bound)
        state[row] = now
        terminated[row] = -math.cos(now[0]) - math.cos(now[0] + now[1]) > 1.0
        reward[row] = 0.0 if terminated[row] else -1.0
    return reward, terminated


CLASSICS: dict[str, Classic] = {
    "CartPole-v1": Classic(_upright, _as_it_is, _step_cart_pole),
    "Pendulum-v1": Classic(_anywhere, _observe_pendulum, _step_pendulum, torque=2.0),
    "Acrobot-v1": Classic(_hanging, _observe_acrobot, _step_acrobot),
    "MountainCar-v0": Classic(_in_the_valley, _as_it_is, _step_mountain_car),
    "MountainCarContinuous-v0": Classic(_in_the_valley, _as_it_is, _step_mountain_car_continuous),
}
"""By registered id."""
