"""Classic control as traced worlds: Gymnasium's physics, with a named quantity that differs between clients.

The steps are those of Gymnasium's CartPole-v1, Acrobot-v1, Pendulum-v1 and MountainCar-v0, in single precision. All
clients step together in one compiled program; the world `gym` plays the same environments outside of JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fedpohcs.core.checks import require_positive
from fedpohcs.core.config import Placement
from fedpohcs.core.errors import require_known
from fedpohcs.core.lazy import LazyModule
from fedpohcs.core.scenario import WorldConfig
from fedpohcs.worlds.base import ContinuousActions, DiscreteActions, TracedWorld, Transition, with_held_out

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:  # the classes are read for options and help texts, which must not wait for JAX
    jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")

SHARES = {"none": 0.0, "low": 0.25, "medium": 0.5, "high": 1.0}
"""Levels: how much of the range of a quantity the clients cover, around its usual value."""


@dataclass(frozen=True)
class ControlConfig(WorldConfig):
    """Settings of worlds of classic control."""

    context: str | None = None
    """The quantity that differs between clients. None: the first one of the world's list."""
    horizon: int | None = None
    """Steps after which an episode is cut. None: as in Gymnasium."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon is not None:
            require_positive("scenario.", self, "horizon")


class Context(NamedTuple):
    """A quantity of the physics: its usual value, and the range of clients at the level high."""

    usual: float
    low: float
    high: float

    def values(self, level: str, count: int) -> np.ndarray:
        """Of so many clients, evenly spaced and ascending."""
        share = SHARES[level]
        low, high = (self.usual + share * (end - self.usual) for end in (self.low, self.high))
        return np.linspace(low, high, count)


class ControlWorld(TracedWorld):
    """N clients that differ in one quantity, ascending with their ids; all other quantities are Gymnasium's."""

    Config = ControlConfig
    contexts: ClassVar[dict[str, Context]]
    """By name. The population has one array per name."""
    levels: ClassVar[tuple[str, ...]] = tuple(SHARES)
    held_out = extrapolates = True
    step_noise = 0

    @classmethod
    def check_settings(cls, settings: ControlConfig) -> None:
        """Refuse a quantity that the world does not have."""
        if settings.context is not None:
            require_known("scenario.context", settings.context, cls.contexts)

    def __init__(
        self,
        level: str,
        num_clients: int,
        num_held_out: int = 0,
        *,
        settings: ControlConfig | None = None,
        placement: Placement = "between",
    ) -> None:
        settings = settings or ControlConfig()
        self.check_settings(settings)
        self.horizon = settings.horizon or type(self).horizon
        chosen = settings.context or next(iter(self.contexts))
        values = with_held_out(self.contexts[chosen].values(level, num_clients), num_held_out, placement)
        self.population = {
            name: jnp.asarray(values if name == chosen else np.full(len(values), context.usual), jnp.float32)
            for name, context in self.contexts.items()
        }

    def __eq__(self, other: object) -> bool:
        """Whether programs can be shared: they contain the horizon."""
        return isinstance(other, ControlWorld) and (type(self), self.horizon) == (type(other), other.horizon)

    def __hash__(self) -> int:
        return hash((type(self), self.horizon))


Params = dict[str, "jax.Array"]


class CartPoles(ControlWorld):
    """CartPole-v1. The length is half of the pole's; its range is that of Jin et al. (2022)."""

    contexts: ClassVar[dict[str, Context]] = {
        "length": Context(0.5, 0.1, 0.9),
        "pole_mass": Context(0.1, 0.02, 0.5),
        "cart_mass": Context(1.0, 0.4, 2.0),
        "gravity": Context(9.8, 4.0, 16.0),
        "push": Context(10.0, 5.0, 15.0),
    }
    thresholds = (100, 200, 400)
    observation_size = 4
    actions = DiscreteActions(num_choices=2)
    horizon = 500
    reset_noise = 4

    def reset(self, noise: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
        """Nearly upright and at rest."""
        del params
        state = 0.1 * noise - 0.05
        return state, state

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: Params) -> Transition:
        """Euler's method. The reward is 1 per step."""
        del noise
        _, speed, angle, spin = state
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        total, lever = params["cart_mass"] + params["pole_mass"], params["pole_mass"] * params["length"]
        push = jnp.where(action == 1, params["push"], -params["push"])
        pushed = (push + lever * spin**2 * sine) / total
        inertia = params["length"] * (4.0 / 3.0 - params["pole_mass"] * cosine**2 / total)
        turning = (params["gravity"] * sine - cosine * pushed) / inertia
        change = jnp.stack([speed, pushed - lever * turning * cosine / total, spin, turning])
        state = state + 0.02 * change
        fallen = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * 2 * np.pi / 360)
        return Transition(state, state, jnp.ones(()), fallen)


class Pendulums(ControlWorld):
    """Pendulum-v1. An action of 1 is a torque of 2, the largest."""

    contexts: ClassVar[dict[str, Context]] = {
        "gravity": Context(10.0, 5.0, 15.0),
        "mass": Context(1.0, 0.5, 1.5),
        "length": Context(1.0, 0.5, 1.5),
    }
    thresholds = (-800, -400, -200)
    observation_size = 3
    actions = ContinuousActions(size=1, low=-1.0, high=1.0)
    horizon = 200
    reset_noise = 2

    def reset(self, noise: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
        """Anywhere, with a small speed."""
        del params
        state = (2 * noise - 1) * jnp.array([np.pi, 1.0])
        return state, self._seen(state)

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: Params) -> Transition:
        """Semi-implicit Euler. The cost grows with angle, speed and torque."""
        del noise
        angle, speed = state
        torque = 2 * jnp.clip(action[0], -1.0, 1.0)
        from_top = (angle + np.pi) % (2 * np.pi) - np.pi
        cost = from_top**2 + 0.1 * speed**2 + 0.001 * torque**2
        length, mass = params["length"], params["mass"]
        turning = 1.5 * params["gravity"] / length * jnp.sin(angle) + 3.0 * torque / (mass * length**2)
        speed = jnp.clip(speed + 0.05 * turning, -8.0, 8.0)
        state = jnp.stack([angle + 0.05 * speed, speed])
        return Transition(state, self._seen(state), -cost, jnp.zeros((), bool))

    def _seen(self, state: jax.Array) -> jax.Array:
        return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])


class DiscreteMountainCars(ControlWorld):
    """MountainCar-v0: -1 per step until the car reaches the hill. Its actions push left, not at all, or right."""

    contexts: ClassVar[dict[str, Context]] = {
        "force": Context(0.001, 0.0007, 0.0015),
        "gravity": Context(0.0025, 0.0018, 0.0032),
    }
    thresholds = (-180, -150, -120)
    observation_size = 2
    actions = DiscreteActions(num_choices=3)
    horizon = 200
    reset_noise = 1

    def reset(self, noise: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
        """At rest in the valley."""
        del params
        state = jnp.stack([-0.6 + 0.2 * noise[0], jnp.zeros(())])
        return state, state

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: Params) -> Transition:
        """Gravity depends on the slope. The wall on the left stops the car."""
        del noise
        place, speed = state
        speed = speed + (action - 1) * params["force"] - params["gravity"] * jnp.cos(3 * place)
        speed = jnp.clip(speed, -0.07, 0.07)
        place = jnp.clip(place + speed, -1.2, 0.6)
        speed = jnp.where((place == np.float32(-1.2)) & (speed < 0), 0.0, speed)
        state = jnp.stack([place, speed])
        return Transition(state, state, -jnp.ones(()), (place >= 0.5) & (speed >= 0))


class Acrobots(ControlWorld):
    """Acrobot-v1. The range of the first link's length is that of Jin et al. (2022); centres of mass stay at 0.5."""

    contexts: ClassVar[dict[str, Context]] = {
        "length_1": Context(1.0, 0.5, 1.5),
        "mass_1": Context(1.0, 0.5, 1.5),
        "mass_2": Context(1.0, 0.5, 1.5),
    }
    thresholds = (-400, -200, -100)
    observation_size = 6
    actions = DiscreteActions(num_choices=3)
    horizon = 500
    reset_noise = 4

    def reset(self, noise: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
        """Hanging, nearly at rest."""
        del params
        state = 0.2 * noise - 0.1
        return state, self._seen(state)

    def step(self, state: jax.Array, action: jax.Array, noise: jax.Array, params: Params) -> Transition:
        """One step of Runge and Kutta's method. The reward is -1 until the tip is above the bar by one length."""
        del noise
        torque, seconds = action - 1.0, 0.2
        first = self._change(state, torque, params)
        second = self._change(state + seconds / 2 * first, torque, params)
        third = self._change(state + seconds / 2 * second, torque, params)
        fourth = self._change(state + seconds * third, torque, params)
        moved = state + seconds / 6 * (first + 2 * second + 2 * third + fourth)
        angles = (moved[:2] + np.pi) % (2 * np.pi) - np.pi
        fastest = np.array([4 * np.pi, 9 * np.pi], np.float32)
        state = jnp.concatenate([angles, jnp.clip(moved[2:], -fastest, fastest)])
        up = -jnp.cos(state[0]) - jnp.cos(state[0] + state[1]) > 1.0
        return Transition(state, self._seen(state), jnp.where(up, 0.0, -1.0), up)

    def _change(self, state: jax.Array, torque: jax.Array, params: Params) -> jax.Array:
        """Time derivative of the state, with the moments of inertia 1 and centres of mass at 0.5."""
        inner, outer, inner_speed, outer_speed = state
        length, mass_1, mass_2 = (params[name] for name in ("length_1", "mass_1", "mass_2"))
        half, gravity, sine, cosine = 0.5, 9.8, jnp.sin(outer), jnp.cos(outer)
        both = mass_1 * half**2 + mass_2 * (length**2 + half**2 + 2 * length * half * cosine) + 2.0
        coupling = mass_2 * (half**2 + length * half * cosine) + 1.0
        outer_pull = mass_2 * half * gravity * jnp.sin(inner + outer)
        inner_pull = (mass_1 * half + mass_2 * length) * gravity * jnp.sin(inner) + outer_pull
        inner_pull -= mass_2 * length * half * sine * outer_speed * (outer_speed + 2 * inner_speed)
        share = coupling / both
        wanted = torque + share * inner_pull - mass_2 * length * half * inner_speed**2 * sine - outer_pull
        outer_turn = wanted / (mass_2 * half**2 + 1.0 - share * coupling)
        inner_turn = -(coupling * outer_turn + inner_pull) / both
        return jnp.stack([inner_speed, outer_speed, inner_turn, outer_turn])

    def _seen(self, state: jax.Array) -> jax.Array:
        inner, outer = state[0], state[1]
        angles = [jnp.cos(inner), jnp.sin(inner), jnp.cos(outer), jnp.sin(outer)]
        return jnp.stack([*angles, state[2], state[3]])
