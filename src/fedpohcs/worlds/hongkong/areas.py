"""Ten synthetic areas, named after those of the paper, as OpenStreetMap XML.

They are stand-ins. The known character of each area (a dense grid of one-way streets, a ring of arterials, one winding
road) determines its shape; a generator with a fixed seed determines the rest. Written as OSM XML, they are processed
like a real extract. Paper: Sec. 5.1, HongKongOSMs.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike

METRES_PER_DEGREE = 111_320.0
GENERATOR_SEED = 1


class Box(NamedTuple):
    """South, west, north and east, in degrees."""

    south: float
    west: float
    north: float
    east: float

    @property
    def square_kilometres(self) -> float:
        """The size of the box on the ground."""
        width = (self.east - self.west) * math.cos(math.radians((self.south + self.north) / 2))
        return width * (self.north - self.south) * (METRES_PER_DEGREE / 1000) ** 2


class Road(NamedTuple):
    """Lanes per direction, and the limit in km/h."""

    lanes: int
    limit: int
    one_way: bool = False


class Grid(NamedTuple):
    """A regular grid of streets: their number, their distances, and by how many metres corners are moved at random."""

    columns: int
    rows: int
    width: float
    height: float
    jitter: float


class Limits(NamedTuple):
    """Limits of the RL vehicle of an area, in m/s2."""

    max_accel: float = 2.6
    max_decel: float = 4.5


class Area(NamedTuple):
    """A grid in which some rows and columns are arterials and the others are side streets."""

    grid: Grid
    rows: dict[int, Road]
    columns: dict[int, Road]
    side: Road
    limits: Limits
    box: Box  # approximate place of the real area, for `fedpohcs osm fetch`
    removed: float = 0.0  # share of side segments that are left out


AREAS: dict[str, Area] = {
    "causeway": Area(
        Grid(6, 5, 95, 80, 12),
        rows={1: Road(3, 70), 3: Road(3, 50)},
        columns={2: Road(2, 50)},
        side=Road(2, 50, one_way=True),
        limits=Limits(2.6, 4.5),
        box=Box(22.2765, 114.1790, 22.2845, 114.1895),
    ),
    "central": Area(
        Grid(7, 4, 85, 70, 14),
        rows={0: Road(4, 70), 1: Road(2, 50), 3: Road(2, 50)},
        columns={3: Road(2, 50)},
        side=Road(1, 50, one_way=True),
        limits=Limits(2.0, 4.0),
        box=Box(22.2790, 114.1520, 22.2865, 114.1640),
    ),
    "chai-wan": Area(
        Grid(5, 5, 120, 100, 20),
        rows={2: Road(2, 50)},
        columns={2: Road(2, 50)},
        side=Road(1, 50),
        limits=Limits(3.0, 4.5),
        box=Box(22.2605, 114.2315, 22.2705, 114.2430),
        removed=0.2,
    ),
    "clear-water-bay": Area(
        Grid(4, 3, 260, 180, 60),
        rows={1: Road(1, 70)},
        columns={},
        side=Road(1, 50),
        limits=Limits(3.0, 3.0),
        box=Box(22.3290, 114.2560, 22.3445, 114.2745),
    ),
    "kennedy-town": Area(
        Grid(6, 3, 80, 65, 8),
        rows={1: Road(2, 50)},
        columns={},
        side=Road(1, 50, one_way=True),
        limits=Limits(2.0, 3.0),
        box=Box(22.2785, 114.1225, 22.2855, 114.1335),
    ),
    "kai-tak": Area(
        Grid(4, 5, 200, 150, 10),
        rows={1: Road(3, 50), 3: Road(2, 50)},
        columns={1: Road(3, 70), 2: Road(2, 50)},
        side=Road(2, 50),
        limits=Limits(3.5, 4.5),
        box=Box(22.3180, 114.1935, 22.3335, 114.2110),
    ),
    "north-point": Area(
        Grid(8, 3, 100, 75, 10),
        rows={0: Road(3, 70), 1: Road(3, 50)},
        columns={},
        side=Road(1, 50, one_way=True),
        limits=Limits(2.6, 4.0),
        box=Box(22.2865, 114.1935, 22.2945, 114.2065),
    ),
    "po-lam": Area(
        Grid(4, 4, 190, 170, 15),
        rows={0: Road(2, 50), 3: Road(2, 50)},
        columns={0: Road(2, 50), 3: Road(2, 50)},
        side=Road(1, 50),
        limits=Limits(2.6, 3.5),
        box=Box(22.3180, 114.2500, 22.3280, 114.2630),
        removed=0.25,
    ),
    "sham-shui-po": Area(
        Grid(8, 6, 75, 70, 2),
        rows={1: Road(3, 50), 4: Road(3, 50)},
        columns={},
        side=Road(2, 50, one_way=True),
        limits=Limits(2.0, 4.5),
        box=Box(22.3255, 114.1560, 22.3355, 114.1690),
    ),
    "tseung-kwan-o": Area(
        Grid(5, 4, 210, 180, 12),
        rows={1: Road(3, 70), 2: Road(2, 50)},
        columns={1: Road(2, 50), 3: Road(3, 70)},
        side=Road(1, 50),
        limits=Limits(3.5, 5.0),
        box=Box(22.3010, 114.2540, 22.3125, 114.2680),
        removed=0.2,
    ),
}
"""The areas of the clients, in the order of the paper's figure."""


def synthetic_osm(name: str) -> bytes:
    """The area as an OSM file; the bytes are always the same."""
    area = AREAS[name]
    grid = area.grid
    generator = np.random.default_rng([GENERATOR_SEED, list(AREAS).index(name)])
    osm = _OsmWriter(f"{name}, synthetic", area.box)

    def shaken(point: ArrayLike, reach: float) -> np.ndarray:
        return np.asarray(point) + generator.uniform(-reach, reach, 2)

    corners = {
        (column, row): osm.node(
            shaken((column * grid.width, row * grid.height), grid.jitter),
            signals=column in area.columns and row in area.rows,
        )
        for row in range(grid.rows)
        for column in range(grid.columns)
    }
    for street, road, ends in _segments(area):
        first, last = (corners[end] for end in ends)
        middle = shaken((osm.position[first] + osm.position[last]) / 2, grid.jitter / 3)
        if road is area.side and generator.uniform() < area.removed:
            continue
        osm.way(street, road, "residential" if road is area.side else "primary", (first, osm.node(middle), last))
    return osm.to_bytes()


def _segments(area: Area) -> Iterator[tuple[str, Road, tuple[tuple[int, int], ...]]]:
    """Street, road and both ends of every segment. One-way streets alternate in direction."""
    for row in range(area.grid.rows):
        road = area.rows.get(row, area.side)
        for column in range(area.grid.columns - 1):
            ends = ((column, row), (column + 1, row))
            yield f"row {row}", road, ends if row % 2 or not road.one_way else ends[::-1]
    for column in range(area.grid.columns):
        road = area.columns.get(column, area.side)
        for row in range(area.grid.rows - 1):
            ends = ((column, row), (column, row + 1))
            yield f"column {column}", road, ends if column % 2 or not road.one_way else ends[::-1]


class _OsmWriter:
    """Collects nodes and ways; positions are in metres from the south-west corner of a box."""

    def __init__(self, note: str, box: Box) -> None:
        self.root = ElementTree.Element("osm", version="0.6", generator="fedpohcs", note=note)
        self.box = box
        self.position: dict[str, np.ndarray] = {}
        self._ways: list[ElementTree.Element] = []

    def node(self, position: np.ndarray, *, signals: bool = False) -> str:
        """Add a point and return its id."""
        identifier = str(len(self.position) + 1)
        self.position[identifier] = position
        latitude = self.box.south + position[1] / METRES_PER_DEGREE
        longitude = self.box.west + position[0] / METRES_PER_DEGREE / math.cos(math.radians(self.box.south))
        node = ElementTree.SubElement(self.root, "node", id=identifier, lat=f"{latitude:.7f}", lon=f"{longitude:.7f}")
        if signals:
            ElementTree.SubElement(node, "tag", k="highway", v="traffic_signals")
        return identifier

    def way(self, street: str, road: Road, kind: str, nodes: tuple[str, ...]) -> None:
        """Add a piece of road through the nodes."""
        way = ElementTree.Element("way", id=str(len(self._ways) + 1))
        for node in nodes:
            ElementTree.SubElement(way, "nd", ref=node)
        lanes = road.lanes if road.one_way else 2 * road.lanes
        one_way = "yes" if road.one_way else "no"
        tags = {"highway": kind, "name": street, "lanes": lanes, "maxspeed": road.limit, "oneway": one_way}
        for key, value in tags.items():
            ElementTree.SubElement(way, "tag", k=key, v=str(value))
        self._ways.append(way)

    def to_bytes(self) -> bytes:
        tree = ElementTree.Element(self.root.tag, self.root.attrib)
        tree.extend([*self.root, *self._ways])
        ElementTree.indent(tree, " ")
        return ElementTree.tostring(tree, encoding="UTF-8", xml_declaration=True)
