"""Makes a network with a loop from an OSM file: SUMO's `netconvert`, then a search over the roads."""

import gzip
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from fedpohcs.core.errors import UserError
from fedpohcs.worlds.hongkong.areas import AREAS, Limits, synthetic_osm
from fedpohcs.worlds.hongkong.networks import DATA, LoopEdge, Network, mean_lanes, save_network

SHORTEST_LOOP, LONGEST_LOOP = 700.0, 1600.0
PAIRS_TRIED = 400
TYPES = DATA / "roads.typ.xml"
OPTIONS = (
    *("--lefthand", "--geometry.remove", "--junctions.join", "--roundabouts.guess", "--output.street-names"),
    *("--tls.guess-signals", "--tls.discard-simple", "--tls.join", "--tls.default-type", "static"),
    *("--tls.cycle.time", "60", "--keep-edges.by-vclass", "passenger", "--remove-edges.isolated"),
    *("--keep-edges.components", "1", "--no-turnarounds.except-deadend"),
)


class _Lane(NamedTuple):
    identifier: str
    length: float
    limit: float
    open_to_cars: bool


class _Roads(NamedTuple):
    """The parts of a network file that the loop search needs."""

    lanes: dict[str, list[_Lane]]  # of every edge, junctions included
    links: dict[tuple[str, str], list[tuple[int, str]]]  # between edges: lane entered from, lane on the junction
    after: dict[str, str]  # a lane on a junction may lead to a second one
    num_signals: int

    def is_street(self, edge: str) -> bool:
        return not edge.startswith(":")


def build_network(osm: Path, name: str, out: Path, limits: Limits | None = None) -> Network:
    """Convert an OSM file, find a loop in it, and write `NAME.net.xml.gz` and `NAME.json` into `out`.

    Args:
        osm: OpenStreetMap XML.
        name: of the network; with the name of one of the ten areas it replaces that area.
        out: folder, made if missing. Nothing is written if there is no loop.
        limits: of the RL vehicle. None: those of the area called `name`, or the default.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise UserError(f"name (={name!r}) must be lower-case letters, digits and hyphens.")
    if limits is None:
        limits = AREAS[name].limits if name in AREAS else Limits()
    text, version = _convert(Path(osm))
    network = _describe(name, Path(osm).name, text, version, limits, Path(out))
    network.path.parent.mkdir(parents=True, exist_ok=True)
    network.path.write_bytes(gzip.compress(text, mtime=0))  # no time stamp: equal networks are equal files
    save_network(network)
    return network


def build_area(name: str, out: Path) -> Network:
    """One of the ten synthetic areas, made anew."""
    with tempfile.TemporaryDirectory() as folder:
        osm = Path(folder) / f"{name}-synthetic.osm"
        osm.write_bytes(synthetic_osm(name))
        return build_network(osm, name, out)


def find_netconvert() -> Path:
    """The program of the extra `sumo-build`, or one on the path."""
    package = find_spec("sumo")
    homes = [Path(path) for path in (package.submodule_search_locations or [])] if package else []
    homes += [Path(os.environ["SUMO_HOME"])] if "SUMO_HOME" in os.environ else []
    found = [shutil.which("netconvert", path=home / "bin") for home in homes] + [shutil.which("netconvert")]
    for program in filter(None, found):
        return Path(program)
    raise UserError("netconvert is needed to build a network. Install it: pip install 'fedpohcs[sumo-build]'.")


def _convert(osm: Path) -> tuple[bytes, str]:
    """The network file without its first comment, which holds the time of day; and netconvert's version."""
    program = find_netconvert()
    if not osm.is_file():
        raise UserError(f"osm (={str(osm)!r}) is not a file. Get one with `fedpohcs osm fetch`.")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "area.net.xml"
        command = [program, "--osm-files", osm, "--type-files", TYPES, *OPTIONS, "--output-file", target]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or not target.is_file():
            reason = next((line for line in done.stderr.splitlines() if line.startswith("Error")), "no roads in it")
            raise UserError(f"osm (={str(osm)!r}) cannot be converted: {reason.removeprefix('Error: ').rstrip('.')}.")
        text = target.read_bytes()
    found = re.search(rb"netconvert (\S+)", text)
    return re.sub(rb"<!--.*?-->\s*", b"", text, count=1, flags=re.DOTALL), found[1].decode() if found else "unknown"


def _describe(name: str, source: str, text: bytes, version: str, limits: Limits, out: Path) -> Network:
    roads = _read_roads(text)
    streets = [edge for edge in roads.lanes if roads.is_street(edge)]
    loop = _find_loop(roads, streets, source)
    described, junction_lanes = [], {}
    for position, (edge, following) in enumerate(zip(loop, [*loop[1:], loop[0]], strict=True)):
        across = [_across(roads, lane, via) for lane, via in roads.links[edge, following]]
        junction = max(before[-1] for _, _, before in across)
        described.append(_loop_edge(roads.lanes[edge], edge, junction))
        for lane, vias, before in across:
            junction_lanes |= {via: (position, lane, metres) for via, metres in zip(vias, before, strict=False)}
    kilometres = sum(roads.lanes[edge][0].length for edge in streets) / 1000
    return Network(
        name,
        out / f"{name}.net.xml.gz",
        source,
        version,
        len(streets),
        round(kilometres, 3),
        roads.num_signals,
        limits,
        tuple(described),
        junction_lanes,
    )


def _across(roads: _Roads, lane: int, via: str) -> tuple[int, list[str], list[float]]:
    """The lanes over a junction, and the metres before each and after the last."""
    vias, before = [], [0.0]
    while via:
        edge, _, index = via.rpartition("_")
        vias.append(via)
        before.append(round(before[-1] + roads.lanes[edge][int(index)].length, 2))
        via = roads.after.get(via, "")
    return lane, vias, before


def _loop_edge(lanes: Sequence[_Lane], edge: str, junction: float) -> LoopEdge:
    drivable = [index for index, lane in enumerate(lanes) if lane.open_to_cars]
    return LoopEdge(edge, lanes[0].length, lanes[drivable[0]].limit, (drivable[0], drivable[-1]), junction)


def _read_roads(text: bytes) -> _Roads:
    root = ElementTree.fromstring(text)
    lanes = {edge.attrib["id"]: [_read_lane(lane) for lane in edge.findall("lane")] for edge in root.findall("edge")}
    roads = _Roads(lanes, {}, {}, len(root.findall("tlLogic")))
    for link in root.findall("connection"):
        start, end, index = link.attrib["from"], link.attrib["to"], int(link.attrib["fromLane"])
        if not roads.is_street(start):
            if "via" in link.attrib:
                roads.after[f"{start}_{index}"] = link.attrib["via"]
        elif "via" in link.attrib and link.attrib["dir"].lower() != "t" and _both_open(roads, link):
            roads.links.setdefault((start, end), []).append((index, link.attrib["via"]))
    return roads


def _read_lane(lane: ElementTree.Element) -> _Lane:
    values = lane.attrib
    allowed, refused = values.get("allow", "all").split(), values.get("disallow", "").split()
    open_to_cars = ("passenger" in allowed or "all" in allowed) and not {"passenger", "all"} & set(refused)
    return _Lane(values["id"], float(values["length"]), float(values["speed"]), open_to_cars)


def _both_open(roads: _Roads, link: ElementTree.Element) -> bool:
    ends = (("from", "fromLane"), ("to", "toLane"))
    return all(roads.lanes[link.attrib[edge]][int(link.attrib[lane])].open_to_cars for edge, lane in ends)


def _find_loop(roads: _Roads, streets: list[str], source: str) -> list[str]:
    """The loop with the most lanes among shortest round trips between pairs of streets.

    A loop contains each street once, so that a place on the map is one place on the loop, and it has no U-turns.
    """
    index = {edge: number for number, edge in enumerate(streets)}
    pairs = np.array([(index[start], index[end]) for start, end in roads.links], dtype=np.int64).reshape(-1, 2)
    lengths = np.array([roads.lanes[edge][0].length for edge in streets])
    graph = csr_array((lengths[pairs[:, 1]], (pairs[:, 0], pairs[:, 1])), shape=(len(streets), len(streets)))
    _, part = connected_components(graph, connection="strong")
    largest = np.flatnonzero(part == np.bincount(part).argmax()) if len(streets) else np.zeros(0, np.int64)
    loops = []
    if len(largest) > 1:
        _, before = dijkstra(graph, return_predecessors=True)
        generator = np.random.default_rng(0)
        for _ in range(PAIRS_TRIED):
            start, end = generator.choice(largest, 2, replace=False)
            loops.append([*_path(before[start], end)[:-1], *_path(before[end], start)[:-1]])
    sound = [loop for loop in loops if len(set(loop)) == len(loop) and _fits(lengths[loop].sum())]
    if not sound:
        bounds = f"{SHORTEST_LOOP:.0f}-{LONGEST_LOOP:.0f} m"
        rule = f"holds no closed loop of {bounds} in its drivable part ({len(largest)} roads)"
        raise UserError(f"osm (={source!r}) {rule}. Take a larger box.")
    named = [[streets[number] for number in loop] for loop in sound]
    return max(named, key=lambda loop: mean_lanes(tuple(_loop_edge(roads.lanes[edge], edge, 0) for edge in loop)))


def _fits(length: float) -> bool:
    return SHORTEST_LOOP <= length <= LONGEST_LOOP


def _path(before: np.ndarray, end: int) -> list[int]:
    """The streets of the shortest path to `end`, given the predecessors on shortest paths from one street."""
    path = [int(end)]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    return path[::-1]
