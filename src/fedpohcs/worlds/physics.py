"""The physics of registered Gymnasium environments, varied by client: one quantity of each, in a range."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedpohcs.core.errors import require

GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly, however many there are


class Knob(NamedTuple):
    """A physical quantity of an environment. Client 0 has the usual value, the others have values of the range."""

    quantity: str
    usual: float
    low: float
    high: float
    turn: Callable[[Any, float], None]  # gives an unwrapped environment the value

    def value(self, client: int) -> float:
        """The value of a client, which does not depend on how many clients there are.

        Example:
            >>> [round(KNOBS["Pendulum-v1"].value(client), 1) for client in range(5)]
            [10.0, 10.9, 7.9, 12.8, 9.8]
        """
        return self.usual if client == 0 else self.low + (self.high - self.low) * (client * GOLDEN % 1)


def _pole_length(env: Any, value: float) -> None:
    env.length, env.polemass_length = value, env.masspole * value


def _link_mass(env: Any, value: float) -> None:
    env.LINK_MASS_2 = value


def _pendulum_gravity(env: Any, value: float) -> None:
    env.g = value


def _engine_force(env: Any, value: float) -> None:
    env.force = value


def _engine_power(env: Any, value: float) -> None:
    env.power = value


def _lander_gravity(env: Any, value: float) -> None:
    env.gravity = -value  # every reset makes a world with it


def _walker_gravity(env: Any, value: float) -> None:
    env.world.gravity = (0.0, -value)


def _model_gravity(env: Any, value: float) -> None:
    env.model.opt.gravity[2] = -value


LANDER = Knob("gravity, m/s²", 10.0, 7.0, 11.5, _lander_gravity)
MODEL = Knob("gravity, m/s²", 9.81, 7.0, 13.0, _model_gravity)

KNOBS: dict[str, Knob] = {
    "CartPole-v1": Knob("half the length of the pole, m", 0.5, 0.25, 1.0, _pole_length),
    "Acrobot-v1": Knob("mass of the outer link, kg", 1.0, 0.5, 1.5, _link_mass),
    "Pendulum-v1": Knob("gravity, m/s²", 10.0, 6.0, 14.0, _pendulum_gravity),
    "MountainCar-v0": Knob("force of the engine", 0.001, 0.0008, 0.0014, _engine_force),
    "MountainCarContinuous-v0": Knob("power of the engine", 0.0015, 0.0012, 0.002, _engine_power),
    "LunarLander-v3": LANDER,
    "LunarLanderContinuous-v3": LANDER,
    "BipedalWalker-v3": Knob("gravity, m/s²", 10.0, 7.0, 13.0, _walker_gravity),
    "Hopper-v5": MODEL,
    "Walker2d-v5": MODEL,
    "HalfCheetah-v5": MODEL,
}
"""By registered id. Every range holds the usual value."""


def find_knob(env: str) -> Knob:
    """The quantity that differs by client in a registered environment; others are refused."""
    rule = f"has no physics that the level 'varied' could vary; known are {', '.join(KNOBS)}"
    require(env in KNOBS, "scenario.env", env, rule, "Write a function: my_module:make_client.")
    return KNOBS[env]
