"""A traffic network on disk: a SUMO file, and a JSON file with the closed loop that the vehicles drive."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fedpohcs.core.errors import UserError, require_known
from fedpohcs.worlds.hongkong.areas import AREAS, Limits

DATA = Path(__file__).parent / "data"
TARGET_SHARE = 0.8
"""Target speed as a share of the loop's mean speed limit. The paper states none."""


class LoopEdge(NamedTuple):
    """One road of the loop."""

    edge: str
    length: float
    limit: float  # m/s
    lanes: tuple[int, int]  # lowest and highest index open to cars
    junction: float  # length of the longest way across the junction that follows


class Place(NamedTuple):
    """A lane of the loop: where it starts on the ring, and which road it belongs to."""

    start: float
    length: float
    lane: int  # on a junction that of the lane from which it was entered
    position: int  # in the loop
    on_junction: bool


@dataclass(frozen=True)
class Network:
    """A network and its loop. The ring coordinate of a vehicle is the start of its lane plus its place on it."""

    name: str
    path: Path
    source: str
    netconvert: str
    num_edges: int
    kilometres: float
    num_signals: int
    limits: Limits
    loop: tuple[LoopEdge, ...]
    junction_lanes: Mapping[str, tuple[int, int, float]]  # id: position in the loop, lane entered from, metres before

    @cached_property
    def starts(self) -> tuple[float, ...]:
        """Ring coordinate of the start of each road of the loop, and of the end of the last."""
        starts = [0.0]
        for road in self.loop:
            starts.append(starts[-1] + road.length + road.junction)
        return tuple(starts)

    @cached_property
    def ring(self) -> float:
        """Length of the loop, junctions included."""
        return self.starts[-1]

    @cached_property
    def mean_limit(self) -> float:
        """Speed limit in m/s, averaged over the loop's roads by length."""
        return sum(road.limit * road.length for road in self.loop) / sum(road.length for road in self.loop)

    @property
    def mean_lanes(self) -> float:
        """Lanes, averaged over the loop's roads by length."""
        return mean_lanes(self.loop)

    @cached_property
    def target_speed(self) -> float:
        """v* of the rewards, in m/s."""
        return TARGET_SHARE * self.mean_limit

    @cached_property
    def places(self) -> dict[str, Place]:
        """All lanes of the loop by id, including those on junctions."""
        places = {
            f"{road.edge}_{lane}": Place(self.starts[position], road.length, lane, position, on_junction=False)
            for position, road in enumerate(self.loop)
            for lane in range(road.lanes[0], road.lanes[1] + 1)
        }
        for identifier, (position, lane, before) in self.junction_lanes.items():
            start = self.starts[position] + self.loop[position].length + before
            places[identifier] = Place(start, 0.0, lane, position, on_junction=True)
        return places


def mean_lanes(loop: tuple[LoopEdge, ...]) -> float:
    """Lanes open to cars, averaged over the roads by length."""
    lanes = sum((road.lanes[1] - road.lanes[0] + 1) * road.length for road in loop)
    return lanes / sum(road.length for road in loop)


def save_network(network: Network) -> Path:
    """Write the JSON beside the SUMO file."""
    loop = [road._asdict() for road in network.loop]
    content = {key: value for key, value in vars(network).items() if key in Network.__dataclass_fields__}
    content |= {"path": network.path.name, "limits": network.limits._asdict(), "loop": loop}
    target = network.path.with_name(f"{network.name}.json")
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return target


def load_network(name: str, folder: Path | str | None = None) -> Network:
    """The network called `name`: from `folder` if it has one, else the synthetic area of that name."""
    file = Path(folder or DATA) / f"{name}.json"
    if not file.is_file():
        if folder and not Path(folder).is_dir():
            raise UserError(f"networks (={str(folder)!r}) must be a folder made by `fedpohcs osm build`.")
        require_known("network", name, AREAS)
        file = DATA / f"{name}.json"
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        content["path"] = file.with_name(content["path"])
        content["limits"] = Limits(**content["limits"])
        content["loop"] = tuple(LoopEdge(**road | {"lanes": tuple(road["lanes"])}) for road in content["loop"])
        content["junction_lanes"] = {key: tuple(value) for key, value in content["junction_lanes"].items()}
        return Network(**content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        remedy = "Build it again with `fedpohcs osm build`."
        raise UserError(f"network (={str(file)!r}) cannot be read: {error!r}. {remedy}") from error
