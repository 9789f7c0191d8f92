"""Gymnasium's MuJoCo worlds with a model parameter that differs between clients.

A family is a class of declarations: a model file of Gymnasium, a parameter of that model with its range per level, and
the constants of Gymnasium's reward. `Hoppers` is the family of the paper (Sec. 5.1).
"""

import logging
import math
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fedpohcs.core.config import Placement
from fedpohcs.core.errors import UserError
from fedpohcs.worlds.base import ContinuousActions, with_held_out
from fedpohcs.worlds.host import LockstepWorld

if TYPE_CHECKING:  # compiled code, loaded when the first collector is made
    from fedpohcs.worlds.mujoco_batch import MujocoSimulator, SingleSimulator

log = logging.getLogger("fedpohcs")


def log_warnings() -> None:
    """Send MuJoCo's warnings to the log. By itself MuJoCo prints each and writes a file into the user's folder."""
    import mujoco

    api: Any = mujoco
    if api.get_mju_user_warning() is None:
        api.set_mju_user_warning(log.debug)


class Parameter(NamedTuple):
    """A number in a MuJoCo model: `Parameter("geom", "leg_geom", "size", 0)` is the radius of a capsule.

    A client's value is that number itself; or a share, from 0 to 1, of the way from `low` to `high`.
    """

    kind: str  # of the element: geom, body, joint, actuator, option, ...
    name: str  # of the element; empty for `option`
    field: str
    position: int | None = None  # within the field; None where that is a single number
    low: float = 0.0
    high: float = 1.0

    def write(self, spec: Any, value: float) -> None:
        """Set the number in a model that is not compiled yet."""
        element = spec.option if self.kind == "option" else getattr(spec, self.kind)(self.name)
        if element is None:
            raise UserError(f"the model has no {self.kind} {self.name!r}.")
        value = self.low + (self.high - self.low) * value
        if self.position is None:
            setattr(element, self.field, value)
        else:
            getattr(element, self.field)[self.position] = value


class MujocoWorld(LockstepWorld):
    """N clients that differ in `parameters`, whose values are spread evenly over the range of the level, ascending.

    The reward is that of Gymnasium's walking environments, version 5: forward speed, plus a bonus while healthy, minus
    a cost of the action before it is clipped.
    """

    held_out = extrapolates = True
    painter = "fedpohcs.worlds.pictures:MUJOCO_BODY"
    ranges: ClassVar[dict[str, tuple[float, float]]]
    parameters: ClassVar[tuple[Parameter, ...]]
    other_parameters: ClassVar[dict[str, tuple[Parameter, ...]]] = {}  # of levels at which something else differs
    model_file: ClassVar[str]  # among the models that Gymnasium ships
    horizon = 1000
    frame_skip: ClassVar[int]
    control_cost: ClassVar[float]
    healthy_bonus: ClassVar[float] = 0.0
    healthy_height: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    healthy_angle: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    healthy_state: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    unobserved_positions: ClassVar[int] = 1  # the position on the track must not matter
    largest_velocity: ClassVar[float] = math.inf  # observed velocities are clipped to this
    start_noise: ClassVar[float]
    start_velocity: ClassVar[Literal["uniform", "normal"]] = "uniform"

    def __init_subclass__(cls) -> None:
        if "ranges" in vars(cls):
            cls.levels = tuple(cls.ranges)

    def __init__(
        self, level: str, num_clients: int, num_held_out: int = 0, *, placement: Placement = "between"
    ) -> None:
        require_mujoco()
        self.level = level
        self.values = with_held_out(self.spread(level, num_clients), num_held_out, placement)

    @classmethod
    def spread(cls, level: str, num_clients: int) -> np.ndarray:
        """The values of the clients that train, ascending."""
        return np.linspace(*cls.ranges[level], num_clients)

    def make_model(self, value: float) -> Any:
        """The compiled model of a client whose parameter has this value."""
        import mujoco

        api: Any = mujoco  # made in C++, where no type checker finds its names
        spec = api.MjSpec.from_file(str(gymnasium_models() / self.model_file))
        parameters = self.other_parameters.get(self.level, self.parameters)
        for parameter in parameters:
            parameter.write(spec, value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the contents of Gymnasium's files, which users cannot change
                return spec.compile()
        except ValueError as error:
            names = ", ".join(f"{p.name or p.kind}.{p.field}" for p in parameters)
            raise UserError(f"{names} (={value:g}) makes no valid model: {' '.join(str(error).split())}") from error

    def make_simulator(self) -> "MujocoSimulator":
        """All clients in one batch simulation, on all cores."""
        from fedpohcs.worlds.mujoco_batch import MujocoSimulator

        return MujocoSimulator(self, [self.make_model(value) for value in self.values])

    def open(self, client: int) -> "SingleSimulator":
        """The environment of one client."""
        from fedpohcs.worlds.mujoco_batch import SingleSimulator

        return SingleSimulator(self, client)


class Hoppers(MujocoWorld):
    """Hopper with a leg of different size, the radius of its capsule. Paper: Sec. 5.1.

    The range of `qavg` is that of Jin et al. (2022).
    """

    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "low": (0.01, 0.07),
        "medium": (0.01, 0.10),
        "high": (0.01, 0.15),
        "qavg": (0.03, 0.05),
    }
    thresholds = (500, 1000, 1450)
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
    """HalfCheetah under different gravity, in metres per second squared.

    At the level `fedkl` it is -20 n / N (Xie and Song, 2023), so none has no gravity. At the level `qavg` the half
    lengths of both thighs differ, back and front together (Jin et al., 2022).
    """

    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "low": (-11.0, -8.6),
        "medium": (-13.0, -6.6),
        "high": (-16.0, -3.6),
        "fedkl": (-20.0, 0.0),  # the upper end excluded
        "qavg": (0.0, 1.0),
    }
    parameters = (Parameter("option", "", "gravity", 2),)
    other_parameters: ClassVar[dict[str, tuple[Parameter, ...]]] = {
        "qavg": (
            Parameter("geom", "bthigh", "size", 1, low=0.1005, high=0.1855),
            Parameter("geom", "fthigh", "size", 1, low=0.1005, high=0.1655),
        )
    }
    model_file = "half_cheetah.xml"
    observation_size = 17
    actions = ContinuousActions(size=6, low=-1.0, high=1.0)
    frame_skip = 5
    control_cost = 0.1
    start_noise = 0.1
    start_velocity = "normal"

    @classmethod
    def spread(cls, level: str, num_clients: int) -> np.ndarray:
        """Evenly over the range; at the level `fedkl` without its upper end, which is no gravity."""
        return np.linspace(*cls.ranges[level], num_clients, endpoint=level != "fedkl")


def require_mujoco() -> None:
    """Raise a `UserError` if MuJoCo or Gymnasium is not installed."""
    for package in ("mujoco", "gymnasium"):
        if find_spec(package) is None:
            raise UserError(f"this world needs the package {package}. Install it: pip install 'fedpohcs[mujoco]'")


def gymnasium_models() -> Path:
    """The folder of Gymnasium's model files, found without importing Gymnasium."""
    spec = find_spec("gymnasium")
    assert spec is not None and spec.origin is not None  # checked by `require_mujoco`
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"
