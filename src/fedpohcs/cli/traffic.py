"""`fedpohcs osm`: networks from map data, and pictures of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from fedpohcs.cli.parsing import parse, run_subcommand
from fedpohcs.core.errors import UserError, require, require_known
from fedpohcs.worlds.hongkong.areas import AREAS, Limits
from fedpohcs.worlds.hongkong.networks import Network, load_network
from fedpohcs.worlds.hongkong.overpass import ENDPOINT
from fedpohcs.worlds.hongkong.settings import TrafficConfig

PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class BuildOptions:
    """`fedpohcs osm build`."""

    osm: Path
    """OpenStreetMap XML, from `fedpohcs osm fetch` or elsewhere."""
    name: str
    """Name of the network. The name of one of the ten areas makes it a replacement for that area."""
    out: Path = Path("networks")
    """Folder to write NAME.net.xml.gz and NAME.json into."""
    max_accel: float | None = None
    """Largest acceleration of the learning vehicle, m/s2. None: that of the area called NAME, or 2.6."""
    max_decel: float | None = None
    """Largest deceleration of the learning vehicle, m/s2. None: that of the area called NAME, or 4.5."""


@dataclass(frozen=True)
class FetchOptions:
    """`fedpohcs osm fetch`."""

    area: str | None = None
    """One of the ten areas; its box is approximate."""
    bbox: str | None = None
    """Or any box: south,west,north,east in degrees."""
    output: Annotated[Path | None, arg(aliases=("-o",))] = None
    """File to write. None: AREA.osm, or area.osm for a box."""
    endpoint: str = ENDPOINT
    """Address of an Overpass interpreter."""


@dataclass(frozen=True)
class ShowOptions:
    """`fedpohcs osm show`."""

    name: Positional[str]
    """One of the ten areas, or a network in the folder."""
    networks: Path | None = None
    """Folder made by `fedpohcs osm build`."""
    output: Annotated[Path | None, arg(aliases=("-o",))] = None
    """File to write; the ending names the format: png, svg or pdf. None: NAME.png."""
    seed: int = 0
    """Seed of the start whose vehicles are drawn."""


@dataclass(frozen=True)
class PlayOptions:
    """`fedpohcs play hongkong`."""

    area: str = "central"
    """One of the ten areas, or a network in the folder."""
    run: Path | None = None
    """Run folder of a trained policy. None: IDM drives."""
    networks: Path | None = None
    """Folder made by `fedpohcs osm build`."""
    output: Annotated[Path, arg(aliases=("-o",))] = Path("drive.gif")
    """File to write."""
    seed: int = 0
    """Seed of the start."""
    steps: int = 500
    """Number of steps, of a tenth of a second each."""


@dataclass(frozen=True)
class ReferenceOptions:
    """`fedpohcs osm reference`."""

    config: Annotated[TrafficConfig, arg(name="")] = field(default_factory=TrafficConfig)
    episodes: int = 100
    """Episodes per area; their seeds are 0, 1, 2 and so on."""
    output: Annotated[Path, arg(aliases=("-o",))] = Path("idm-reference.json")
    """File to write; its entries for other horizons and rewards are kept."""


def run_command(arguments: list[str]) -> None:
    """Run the subcommand that the first argument names."""
    run_subcommand("fedpohcs osm", COMMANDS, arguments)


def build(arguments: list[str]) -> None:
    """Make a network with a loop from an OpenStreetMap file."""
    given = _parse(BuildOptions, build, arguments)
    from fedpohcs.worlds.hongkong.building import build_network

    limits = AREAS[given.name].limits if given.name in AREAS else Limits()
    chosen = {"max_accel": given.max_accel, "max_decel": given.max_decel}
    for name, value in chosen.items():
        require(value is None or 0 < value <= 20, name, value, "must be above 0 and at most 20 m/s2")
    limits = limits._replace(**{name: value for name, value in chosen.items() if value is not None})
    network = build_network(given.osm, given.name, given.out, limits)
    print(describe(network))
    print(network.path.with_name(f"{network.name}.json"))


def fetch(arguments: list[str]) -> None:
    """Download the roads of an area or a box from an Overpass server."""
    given = _parse(FetchOptions, fetch, arguments)
    from fedpohcs.worlds.hongkong.overpass import fetch_osm, parse_box

    if (given.area is None) == (given.bbox is None):
        raise UserError("osm fetch needs either --area or --bbox.")
    if given.area is not None:
        require_known("area", given.area, AREAS)
        box = AREAS[given.area].box
    else:
        box = parse_box(given.bbox or "")
    target = given.output or Path(f"{given.area or 'area'}.osm")
    fetch_osm(box, target, given.endpoint)
    print(target)


def show(arguments: list[str]) -> None:
    """Draw a network, its loop and the vehicles of one start."""
    given = _parse(ShowOptions, show, arguments)
    network = load_network(given.name, given.networks)
    output = given.output or Path(f"{given.name}.png")
    require(output.suffix in PICTURES, "output", str(output), f"must end in {', '.join(PICTURES)}")
    from fedpohcs.worlds.hongkong.drawing import draw_network
    from fedpohcs.worlds.hongkong.simulation import Traffic

    traffic = Traffic(network)
    try:
        traffic.reset(given.seed)
        figure = draw_network(network, traffic.positions())
    finally:
        traffic.close()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    print(describe(network))
    print(output)


def play_drive(arguments: list[str]) -> None:
    """Draw a drive, by a trained policy or by IDM, as a moving picture."""
    given = parse(PlayOptions, "fedpohcs play hongkong", play_drive.__doc__, arguments)
    network = load_network(given.area, given.networks)
    require(given.output.suffix == ".gif", "output", str(given.output), "must end in .gif")
    from fedpohcs.worlds.hongkong.drives import record_drive

    config = TrafficConfig(horizon=given.steps)
    driver = None if given.run is None else load_driver(given.run, given.area)
    frames = record_drive(network, config, given.seed, driver)
    from fedpohcs.worlds.hongkong.drawing import draw_drive

    draw_drive(network, frames, given.output, "driven by IDM" if driver is None else "learned")
    print(f"return {frames[-1].total:.1f} in {given.steps} steps")
    print(given.output)


def load_driver(folder: Path, area: str) -> Any:
    """The most likely actions of the policy of a finished run, with the filter of the area if there are filters."""
    from fedpohcs.runs.export import load_run_policy

    policy = load_run_policy(folder)
    world = policy.about["world"]
    require(world == "hongkong", "run", str(folder), f"must be one of the world hongkong, not {world}")
    client = list(AREAS).index(area) if area in AREAS else None
    if client is None and policy.about["filtered"]:
        raise UserError(f"area (={area!r}) must be one of the run's own: its policy filters observations by client.")
    return lambda observation: policy.act(observation, client)


def reference(arguments: list[str]) -> None:
    """Measure the returns of IDM as the driver, to compare learned policies with."""
    given = _parse(ReferenceOptions, reference, arguments)
    require(given.episodes > 1, "episodes", given.episodes, "must be at least 2")
    from fedpohcs.worlds.hongkong.reference import write_reference

    measured = write_reference(given.config, given.episodes, given.output)
    for name, area in measured["areas"].items():
        print(f"{name:<18}{area['mean']:8.1f} +- {area['std']:.1f}")
    print(given.output)


def describe(network: Network) -> str:
    """A network in one line."""
    roads = f"{network.num_edges} roads, {network.kilometres:.1f} km, {network.num_signals} signals"
    loop = f"loop of {network.ring:.0f} m with {network.mean_lanes:.1f} lanes"
    return f"{network.name}: {roads}; {loop}, target speed {network.target_speed:.1f} m/s"


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "build": build,
    "fetch": fetch,
    "show": show,
    "reference": reference,
}


def _parse(cls: Any, command: Callable[..., None], arguments: list[str]) -> Any:
    return parse(cls, f"fedpohcs osm {command.__name__}", command.__doc__, arguments)
