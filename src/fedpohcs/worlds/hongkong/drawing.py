"""Pictures of a network and of a drive through it, drawn from positions."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.trajectory import Episode
from fedpohcs.worlds import make_world
from fedpohcs.worlds.hongkong.drives import STEPS_PER_FRAME, Frame
from fedpohcs.worlds.hongkong.networks import Network
from fedpohcs.worlds.hongkong.sight import VEHICLE_LENGTH
from fedpohcs.worlds.pictures import Painter

ROAD, LOOP, IDM, EGO = "#c9ccd1", "#7d8590", "#2b6cb0", "#d1242f"
VEHICLE_WIDTH = 2.0
CLOSE_UP = 60.0  # metres shown around the ego vehicle on every side


def draw_network(network: Network, vehicles: np.ndarray | None = None) -> Figure:
    """Draw the roads, the loop, and vehicles if given."""
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    _draw_roads(axes, network)
    if vehicles is not None:
        axes.add_collection(_bodies(vehicles, scale=3.0))
    axes.set_title(f"{network.name}: {network.num_edges} roads, loop of {network.ring:.0f} m")
    axes.set_xlabel("metres east")
    axes.set_ylabel("metres north")
    return figure


def draw_drive(network: Network, frames: Sequence[Frame], output: Path, title: str, *, rate: int = 10) -> None:
    """A drive as a GIF: the whole network, and the surroundings of the ego vehicle.

    Args:
        network: of the drive.
        frames: in order.
        output: file to write.
        title: name of the driver.
        rate: frames per second.
    """
    from matplotlib.animation import FuncAnimation, PillowWriter

    figure = Figure(figsize=(8.4, 4.4), dpi=72, layout="constrained")
    overview, close_up = figure.subplots(1, 2)
    bodies = []
    for axes, scale in ((overview, 3.0), (close_up, 1.0)):
        _draw_roads(axes, network)
        bodies.append((axes.add_collection(_bodies(frames[0].vehicles, scale)), scale))
        axes.set_xticks([])
        axes.set_yticks([])
    overview.set_title(f"{network.name}, {title}")

    def show(frame: Frame) -> list[Any]:
        for collection, scale in bodies:
            collection.set_verts(_corners(frame.vehicles, scale))
        east, north, _ = frame.vehicles[0]
        close_up.set_xlim(east - CLOSE_UP, east + CLOSE_UP)
        close_up.set_ylim(north - CLOSE_UP, north + CLOSE_UP)
        others = frame.speeds[1:].mean()
        close_up.set_title(f"{frame.speeds[0]:4.1f} m/s, others {others:4.1f} m/s, return {frame.total:5.1f}")
        return []

    animation = FuncAnimation(figure, show, frames=list(frames), init_func=lambda: [], cache_frame_data=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    animation.save(output, writer=PillowWriter(fps=rate))


def paint_drive(config: ExperimentConfig, client: int, episode: Episode, path: Path, caption: str) -> None:
    """Draw an episode of the world `hongkong`."""
    world: Any = make_world(config)
    totals = np.concatenate([[0], np.cumsum(episode.rewards)])
    last = len(totals) - 1
    frames = []
    for time in [*range(0, last, STEPS_PER_FRAME), last]:
        vehicles, speeds = episode.scenes[time]
        frames.append(Frame(vehicles, speeds, float(totals[time])))
    draw_drive(world.networks[client], frames, path, caption)


DRIVE = Painter(paint_drive, lambda simulator: (simulator.positions(), np.array(simulator.speeds)))


def _draw_roads(axes: Axes, network: Network) -> None:
    loop, streets = [], []
    edges = {road.edge for road in network.loop}
    root = ElementTree.fromstring(gzip.decompress(network.path.read_bytes()))
    for edge in root.iter("edge"):
        for lane in edge.iter("lane"):
            points = [tuple(map(float, point.split(",")[:2])) for point in lane.attrib["shape"].split()]
            on_loop = edge.attrib["id"] in edges or lane.attrib["id"] in network.junction_lanes
            (loop if on_loop else streets).append(points)
    axes.add_collection(LineCollection(streets, colors=ROAD, linewidths=1.2))
    axes.add_collection(LineCollection(loop, colors=LOOP, linewidths=1.6))
    axes.autoscale()
    axes.set_aspect("equal", adjustable="box")


def _bodies(vehicles: np.ndarray, scale: float) -> PolyCollection:
    colours = [EGO] + [IDM] * (len(vehicles) - 1)
    return PolyCollection(
        list(_corners(vehicles, scale)), facecolors=colours, edgecolors="white", linewidths=0.4, zorder=3
    )


def _corners(vehicles: np.ndarray, scale: float) -> np.ndarray:
    """Rectangles behind the fronts, [n, 4, 2]. Headings are clockwise from north."""
    angle = np.radians(vehicles[:, 2])
    ahead = np.stack([np.sin(angle), np.cos(angle)], axis=1) * VEHICLE_LENGTH * scale
    aside = np.stack([np.cos(angle), -np.sin(angle)], axis=1) * VEHICLE_WIDTH / 2 * scale
    front = vehicles[:, :2]
    return np.stack([front + aside, front - aside, front - aside - ahead, front + aside - ahead], axis=1)
