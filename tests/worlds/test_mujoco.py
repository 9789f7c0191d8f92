"""MuJoCo families beside Gymnasium's own environments, step by step."""

import re
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("mujoco")
pytest.importorskip("imageio")  # Gymnasium's own MuJoCo environments need it
gymnasium = pytest.importorskip("gymnasium")

from fedpohcs.core.registries import WORLDS  # noqa: E402
from fedpohcs.worlds.base import ContinuousActions  # noqa: E402
from fedpohcs.worlds.mujoco import HalfCheetahs, Hoppers, MujocoWorld, Parameter, Walkers  # noqa: E402
from fedpohcs.worlds.mujoco_batch import MujocoSimulator, _outcome  # noqa: E402

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "hoppers.md"


def swimmers() -> type[MujocoWorld]:
    """The family that the how-to page declares."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", HOW_TO.read_text(), flags=re.MULTILINE | re.DOTALL)
    before, names = dict(WORLDS.entries), {"__name__": "how_to"}
    exec(compile(code, str(HOW_TO), "exec"), names)
    WORLDS.entries = before
    return names["Swimmers"]  # pyright: ignore[reportReturnType]


Swimmers = swimmers()
NOMINAL = {
    Swimmers: ("Swimmer-v5", 0.1),
    Hoppers: ("Hopper-v5", 0.04),
    Walkers: ("Walker2d-v5", 0.04),
    HalfCheetahs: ("HalfCheetah-v5", -9.81),
}


def peer(family: type[MujocoWorld], value: float, folder: Path) -> Any:
    """Gymnasium's environment on the model file with that one number changed."""
    name, nominal = NOMINAL[family]
    if value == nominal:
        return gymnasium.make(name).unwrapped
    tree = ElementTree.parse(Path(gymnasium.__file__).parent / "envs/mujoco/assets" / family.model_file)
    for parameter in family.parameters:
        where = ".//option" if parameter.kind == "option" else f".//{parameter.kind}[@name='{parameter.name}']"
        element = tree.find(where)
        assert element is not None
        numbers = element.attrib[parameter.field].split()
        numbers[parameter.position or 0] = repr(value)
        element.set(parameter.field, " ".join(numbers))
    tree.write(folder / "model.xml")
    return gymnasium.make(name, xml_file=str(folder / "model.xml")).unwrapped


@pytest.mark.filterwarnings("ignore:compiler attribute")  # of Gymnasium's half cheetah
@pytest.mark.parametrize(
    ("family", "value"),
    [
        (Hoppers, 0.04),
        (Hoppers, 0.01),
        (Hoppers, 0.15),
        (Walkers, 0.04),
        (Walkers, 0.1),
        (HalfCheetahs, -9.81),
        (HalfCheetahs, -3.6),
        (Swimmers, 0.1),
        (Swimmers, 0.4),
    ],
)
def test_a_thousand_random_steps_equal_gymnasium(family: type[MujocoWorld], value: float, tmp_path: Path) -> None:
    """Both start every episode from one state; actions go beyond the limits now and then."""
    world = family("low", 1)
    simulator = MujocoSimulator(world, [world.make_model(value)], lanes_per_client=2)
    environment = peer(family, value, tmp_path)
    environment.reset(seed=0)
    generator, lane, episodes = np.random.default_rng(0), np.array([1]), 0
    observation = simulator.reset(lane, [generator])
    environment.set_state(simulator.position[1].copy(), simulator.velocity[1].copy())
    np.testing.assert_allclose(observation[0], environment._get_obs(), atol=1e-12)
    for _ in range(1000):
        action = generator.uniform(-1.2, 1.2, (1, world.actions.size)).astype(np.float32)
        moved = simulator.step(lane, action)
        expected, reward, terminated, _, _ = environment.step(action[0].astype(np.float64))
        np.testing.assert_allclose(moved.observation[0], expected, atol=1e-8, rtol=0)
        np.testing.assert_allclose(moved.reward[0], reward, atol=1e-8, rtol=0)
        assert bool(moved.terminated[0]) == terminated
        assert not moved.broken[0]
        if terminated:
            episodes += 1
            simulator.reset(lane, [generator])
            environment.set_state(simulator.position[1].copy(), simulator.velocity[1].copy())
    assert family in (HalfCheetahs, Swimmers) or episodes > 5


@pytest.mark.parametrize(("level", "thickest"), [("low", 0.07), ("medium", 0.10), ("high", 0.15)])
def test_legs_of_hoppers_are_as_thick_as_in_the_paper_and_as_long_as_gymnasiums(level: str, thickest: float) -> None:
    world = Hoppers(level, 3)
    sizes = [world.make_model(value).geom("leg_geom").size for value in world.values]
    np.testing.assert_allclose([size[0] for size in sizes], [0.01, (0.01 + thickest) / 2, thickest])
    nominal = gymnasium.make("Hopper-v5").unwrapped.model.geom("leg_geom").size
    np.testing.assert_allclose([size[1] for size in sizes], nominal[1])


class Pendulums(MujocoWorld):
    """Two positions only: neither a height nor an angle of the torso."""

    ranges: ClassVar[dict[str, tuple[float, float]]] = {"medium": (9.0, 11.0)}
    parameters = (Parameter("geom", "cart", "friction", 0),)
    model_file = "inverted_pendulum.xml"
    observation_size = 3
    actions = ContinuousActions(size=1, low=-3.0, high=3.0)
    frame_skip = 2
    control_cost = 0.0
    start_noise = 0.01


def test_a_model_of_two_positions_is_never_unhealthy() -> None:
    world = Pendulums("medium", 2)
    simulator = MujocoSimulator(world, [world.make_model(value) for value in world.values], lanes_per_client=20)
    lanes = np.arange(40)
    simulator.reset(lanes, [np.random.default_rng(lane) for lane in lanes])
    for _ in range(20):
        moved = simulator.step(lanes, np.ones((40, 1), np.float32))
        assert not moved.terminated.any() and not moved.broken.any()


@pytest.mark.parametrize("field", ["position", "velocity"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_lane_that_leaves_the_finite_is_broken_and_its_neighbours_are_not(field: str, value: float) -> None:
    world = Hoppers("medium", 3)
    simulator = MujocoSimulator(world, [world.make_model(value) for value in world.values], lanes_per_client=1)
    lanes = np.arange(3)
    simulator.reset(lanes, [np.random.default_rng(lane) for lane in lanes])
    assert not simulator.step(lanes, np.zeros((3, 3), np.float32)).broken.any()
    getattr(simulator, field)[1, 2] = value
    assert simulator.step(lanes, np.zeros((3, 3), np.float32)).broken.tolist() == [False, True, False]


def test_numbers_that_are_not_finite_break_a_lane_even_if_mujoco_goes_on() -> None:
    world = Hoppers("medium", 1)
    rules = MujocoSimulator(world, [world.make_model(0.04)], lanes_per_client=1).rules
    position, velocity = np.zeros((4, 6)), np.zeros((4, 6))
    position[1, 3], velocity[2, 0], before = np.inf, np.nan, np.array([0.0, 0.0, 0.0, np.inf])
    *_, broken = _outcome(rules, position, velocity, before, np.zeros((4, 3), np.float32), np.zeros(4, bool))
    assert broken.tolist() == [False, True, True, True]


def radius(model: Any, *names: str) -> float:
    """Of capsules that share it."""
    (found,) = {float(model.geom(name).size[0]) for name in names}
    return found


PARAMETERS = {
    Hoppers: lambda model: radius(model, "leg_geom"),
    Walkers: lambda model: radius(model, "leg_geom", "leg_left_geom"),
    HalfCheetahs: lambda model: float(model.opt.gravity[2]),
}


@pytest.mark.parametrize(
    ("family", "level", "low", "high"),
    [
        (Hoppers, "low", 0.01, 0.07),  # Paper: Sec. 5.1
        (Hoppers, "medium", 0.01, 0.10),
        (Hoppers, "high", 0.01, 0.15),
        (Hoppers, "qavg", 0.03, 0.05),
        (Walkers, "low", 0.03, 0.05),
        (Walkers, "medium", 0.02, 0.07),
        (Walkers, "high", 0.01, 0.10),
        (HalfCheetahs, "low", -11.0, -8.6),
        (HalfCheetahs, "medium", -13.0, -6.6),
        (HalfCheetahs, "high", -16.0, -3.6),
    ],
)
def test_the_compiled_models_of_sixty_clients_span_the_range_of_the_level_evenly(
    family: type[MujocoWorld], level: str, low: float, high: float
) -> None:
    world = family(level, 60)
    for client, expected in ((0, low), (29, low + (high - low) * 29 / 59), (59, high)):
        model = world.make_model(world.values[client])
        assert PARAMETERS[family](model) == pytest.approx(expected, rel=1e-12)


def test_gravity_of_fedkl_is_a_multiple_of_twenty_by_n_and_never_zero() -> None:
    """-20 (i + 1) / N for i from 0, in ascending order."""
    world = HalfCheetahs("fedkl", 60)
    np.testing.assert_allclose(world.values, sorted(-20 * (i + 1) / 60 for i in range(60)))
    assert PARAMETERS[HalfCheetahs](world.make_model(world.values[-1])) == pytest.approx(-1 / 3)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_thighs_of_qavg_are_those_of_the_publication_and_gravity_is_the_usual(p: float) -> None:
    model = HalfCheetahs("qavg", 5).make_model(p)
    assert model.geom("bthigh").size[1] == pytest.approx(0.143 + 0.085 * (p - 0.5))
    assert model.geom("fthigh").size[1] == pytest.approx(0.133 + 0.065 * (p - 0.5))
    assert model.geom("bthigh").size[0] == model.geom("fthigh").size[0] == pytest.approx(0.046)
    assert model.opt.gravity[2] == -9.81


def test_nine_clients_of_qavg_span_the_range_evenly_with_held_out_ones_between() -> None:
    np.testing.assert_allclose(HalfCheetahs("qavg", 3, 2).values, [0, 0.5, 1, 0.25, 0.75])
    np.testing.assert_allclose(Hoppers("qavg", 3, 2).values, [0.03, 0.04, 0.05, 0.035, 0.045])
    np.testing.assert_allclose(HalfCheetahs("fedkl", 4, 3).values, [-20, -15, -10, -5, -17.5, -12.5, -7.5])
    beyond = HalfCheetahs("fedkl", 4, 2, placement="beyond").values[4:]
    assert (beyond < 0).all() and beyond.min() < -20 and beyond.max() > -5


@pytest.mark.parametrize("family", [Hoppers, Walkers, HalfCheetahs])
def test_nothing_else_of_a_model_differs_between_clients(family: type[MujocoWorld]) -> None:
    world = family("high", 2)
    one, other = (world.make_model(value) for value in world.values)
    legs = {parameter.name for parameter in family.parameters}
    for geom in range(one.ngeom):
        assert (one.geom_size[geom] == other.geom_size[geom]).all() == (one.geom(geom).name not in legs)
    assert (one.opt.gravity == other.opt.gravity).all() == (family is not HalfCheetahs)
    for field in ("geom_friction", "jnt_range", "actuator_gear", "dof_damping"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
