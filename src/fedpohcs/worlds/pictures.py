"""Moving pictures of episodes. A world names its `Painter` in the class attribute `painter`."""

import io
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.trajectory import Episode
from fedpohcs.worlds import make_world, world_class

FRAMES_PER_SECOND, MOST_FRAMES = 25, 150
WIDTH, HEIGHT, MARGIN = 480, 300, 24
SUPERSAMPLING = 2
"""Frames are drawn at twice their size and shrunk, which smooths edges."""
INK = "#1b1f24"


class Painter(NamedTuple):
    """Draws episodes of a world."""

    paint: Callable[[ExperimentConfig, int, Episode, Path, str], None]  # config, client, episode, file, caption
    scene: Callable[[Any], Any] = lambda simulator: None  # from a simulator, what a frame needs besides the observation
    needs_scenes: bool = False  # whether an episode without scenes cannot be drawn
    paint_all: Callable[["Sequence[Panel]", Path], None] | None = None  # all clients in one picture


class Panel(NamedTuple):
    """One policy at play with every client."""

    title: str
    episodes: Sequence[Episode]  # by client

    def count_ended(self, time: int) -> int:
        """Number of clients whose episode has ended by itself by this step."""
        return sum(episode.terminated and len(episode.rewards) <= time for episode in self.episodes)


def find_painter(world: str) -> Painter | None:
    """The painter of a world, imported now; None if the world cannot be drawn."""
    name = world_class(world).painter
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def write_gif(config: ExperimentConfig, client: int, episode: Episode, path: Path) -> None:
    """Write an episode as a GIF; long episodes are sped up."""
    painter = find_painter(config.world)
    if painter is None:
        raise UserError(f"output (={str(path)!r}) cannot be drawn: there is no picture of the world {config.world}.")
    if not can_draw(config.world, episode):
        rule = "cannot be drawn: the environment does not render to arrays (render_mode 'rgb_array')"
        raise UserError(f"output (={str(path)!r}) {rule}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        painter.paint(config, client, episode, path, f"client {client}")
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error


def write_fleet_gif(config: ExperimentConfig, panels: Sequence[Panel], path: Path) -> None:
    """Write one GIF of all clients at play, a panel per policy."""
    painter = find_painter(config.world)
    if painter is None or painter.paint_all is None:
        raise UserError(
            f"output (={str(path)!r}) cannot be drawn: there is no picture of all clients of {config.world}."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        painter.paint_all(panels, path)
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error


def can_draw(world: str, episode: Episode) -> bool:
    """Whether there is a picture of an episode that was played."""
    painter = find_painter(world)
    return painter is not None and not (painter.needs_scenes and any(scene is None for scene in episode.scenes))


def _shown(episode: Episode) -> list[int]:
    """The steps that become frames, always including the last."""
    last = len(episode.observations) - 1
    return [*range(0, last, math.ceil((last + 1) / MOST_FRAMES)), last]


def _save(frames: list[Any], path: Path) -> None:
    pause = [1000 // FRAMES_PER_SECOND] * (len(frames) - 1) + [1500]  # the last frame stays for a while
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=pause, loop=0, optimize=True)


def _progress(episode: Episode, time: int) -> str:
    return f"step {time}   return {episode.rewards[:time].sum():.1f}"


def _finished(image: Any, text: str) -> Any:
    """The image with a line of text, shrunk to its final size."""
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(15 * SUPERSAMPLING)
    ImageDraw.Draw(image).text((MARGIN * SUPERSAMPLING, 12 * SUPERSAMPLING), text, fill=INK, font=font)
    return image.resize((WIDTH, HEIGHT)).quantize(64)


def paint_mountain_car(config: ExperimentConfig, client: int, episode: Episode, path: Path, caption: str) -> None:
    """Draw the car in its valley."""
    del config, client
    background = _landscape()
    _save([_frame(background, episode, time, caption) for time in _shown(episode)], path)


def _landscape(road: int = 0) -> Any:
    """The valley, a road of some width along it, and the flag, at the size of drawing."""
    from PIL import Image, ImageDraw

    from fedpohcs.worlds.mountain_car import GOAL_POSITION, MAX_POSITION, MIN_POSITION

    size = (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING)
    image = Image.new("RGB", size, "#eaf3fa")
    draw = ImageDraw.Draw(image)
    ground = [_place(x) for x in np.linspace(MIN_POSITION, MAX_POSITION, 200)]
    ground = [(0, ground[0][1]), *ground, (size[0], ground[-1][1])]
    draw.polygon([*ground, (size[0], size[1]), (0, size[1])], fill="#c9d8c0")
    if road:
        far = [(x, y - (road + 6) * SUPERSAMPLING) for x, y in ground]
        draw.polygon([*ground, *reversed(far)], fill="#dfe3e6")
        draw.line(far, fill="#9aa4af", width=SUPERSAMPLING, joint="curve")
    draw.line(ground, fill="#5b7a52", width=3 * SUPERSAMPLING, joint="curve")
    x, y = _place(GOAL_POSITION)
    top = y - (46 + road) * SUPERSAMPLING
    draw.line([(x, y), (x, top)], fill="#444444", width=2 * SUPERSAMPLING)
    draw.polygon(
        [(x, top), (x + 22 * SUPERSAMPLING, top + 8 * SUPERSAMPLING), (x, top + 16 * SUPERSAMPLING)], fill="#D55E00"
    )
    return image


def _frame(background: Any, episode: Episode, time: int, caption: str) -> Any:
    from PIL import ImageDraw

    image = background.copy()
    draw = ImageDraw.Draw(image)
    position = float(episode.observations[time, 0])
    slope = math.atan2(math.cos(3 * position) * 3 * 0.45 * _unit()[1], _unit()[0])
    _draw_car(draw, _place(position), slope)
    action = float(episode.actions[min(time, len(episode.actions) - 1), 0])
    return _finished(image, f"{caption}   {_progress(episode, time)}   action {action:+.2f}")


def _draw_car(draw: Any, wheels: tuple[float, float], slope: float) -> None:
    """Draw a body, a cabin and two wheels that touch the ground at `wheels`."""
    along, up = np.array([math.cos(slope), -math.sin(slope)]), np.array([-math.sin(slope), -math.cos(slope)])
    unit = SUPERSAMPLING

    def at(forward: float, above: float) -> tuple[float, float]:
        x, y = np.array(wheels) + unit * (forward * along + above * up)
        return float(x), float(y)

    draw.polygon([at(-17, 6), at(17, 6), at(17, 14), at(-17, 14)], fill="#0072B2")
    draw.polygon([at(-9, 14), at(9, 14), at(5, 22), at(-6, 22)], fill="#56B4E9")
    for forward in (-10, 10):
        x, y = at(forward, 5)
        draw.ellipse([x - 5 * unit, y - 5 * unit, x + 5 * unit, y + 5 * unit], fill="#1b1f24")


def _unit() -> tuple[float, float]:
    """Pixels per unit of position and per unit of height."""
    from fedpohcs.worlds.mountain_car import MAX_POSITION, MIN_POSITION

    width = (WIDTH - 2 * MARGIN) / (MAX_POSITION - MIN_POSITION)
    return width * SUPERSAMPLING, 150.0 * SUPERSAMPLING


def _place(position: float) -> tuple[float, float]:
    """The pixel of the ground at a position of the car: height sin(3x), as in Gymnasium's picture."""
    from fedpohcs.worlds.mountain_car import MIN_POSITION

    across, upwards = _unit()
    height = math.sin(3 * position) * 0.45 + 0.55
    return MARGIN * SUPERSAMPLING + (position - MIN_POSITION) * across, (HEIGHT - 30) * SUPERSAMPLING - height * upwards


def encoded_frame(frame: Any) -> bytes | None:
    """An array [height, width, 3] that an environment rendered, as a small PNG: there may be one per step."""
    from PIL import Image

    pixels = np.asarray(frame)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        return None
    image, data = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING))
    image.save(data, "PNG", compress_level=1)
    return data.getvalue()


def paint_rendered(config: ExperimentConfig, client: int, episode: Episode, path: Path, caption: str) -> None:
    """Draw what the environment rendered."""
    del config, client
    _save([_rendered(episode, time, caption) for time in _shown(episode)], path)


def _rendered(episode: Episode, time: int, caption: str) -> Any:
    from PIL import Image, ImageOps

    size = (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING)
    with Image.open(io.BytesIO(episode.scenes[time])) as image:
        padded = ImageOps.pad(image.convert("RGB"), size, color="#ffffff")
    return _finished(padded, f"{caption}   {_progress(episode, time)}")


GROUND_LEVEL = 0.82  # of the height of the picture
PIXELS_PER_METRE = 110 * SUPERSAMPLING


def paint_body(config: ExperimentConfig, client: int, episode: Episode, path: Path, caption: str) -> None:
    """Draw the capsules of a MuJoCo body from the side, on ground with a mark every half metre."""
    import mujoco

    api: Any = mujoco  # made in C++, where no type checker finds its names
    world: Any = make_world(config)
    model = world.make_model(world.values[client])
    data = api.MjData(model)

    def frame(time: int) -> Any:
        data.qpos[:] = episode.scenes[time]
        api.mj_kinematics(model, data)
        return _finished(_side_view(model, data), f"{caption}   {_progress(episode, time)}")

    _save([frame(time) for time in _shown(episode)], path)


def _side_view(model: Any, data: Any) -> Any:
    from PIL import Image, ImageDraw

    size = (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING)
    image = Image.new("RGB", size, "#eaf3fa")
    draw = ImageDraw.Draw(image)
    camera, ground = float(data.qpos[0]), GROUND_LEVEL * size[1]

    def place(point: np.ndarray) -> tuple[float, float]:
        return size[0] / 2 + (point[0] - camera) * PIXELS_PER_METRE, ground - point[2] * PIXELS_PER_METRE

    draw.rectangle([0, ground, size[0], size[1]], fill="#c9d8c0")
    reach = size[0] / PIXELS_PER_METRE
    for mark in np.arange(math.floor(2 * (camera - reach)) / 2, camera + reach, 0.5):
        x, _ = place(np.array([mark, 0, 0]))
        draw.line([(x, ground), (x - 6 * SUPERSAMPLING, ground + 14 * SUPERSAMPLING)], fill="#5b7a52", width=2)
    for geom in range(1, model.ngeom):  # the first is the floor
        radius, half_length = model.geom_size[geom][:2]
        axis = data.geom_xmat[geom].reshape(3, 3)[:, 2] * half_length
        ends = [place(data.geom_xpos[geom] + sign * axis) for sign in (-1, 1)]
        _draw_capsule(draw, ends, float(radius) * PIXELS_PER_METRE)
    return image


def _draw_capsule(draw: Any, ends: list[tuple[float, float]], radius: float) -> None:
    for colour, width in ((INK, radius + SUPERSAMPLING), ("#56B4E9", radius)):  # an outline, then the body
        draw.line(ends, fill=colour, width=max(round(2 * width), 1))
        for x, y in ends:
            draw.ellipse([x - width, y - width, x + width, y + width], fill=colour)


ROAD = 34  # pixels between the first lane and the last: a lane per car
STEPS_PER_FRAME, FLEET_STEPS = 3, 240
NUM_COLOURS = 64
FLEET_COLOURS = ("#0072B2", "#E69F00")  # of the first client and of the last


def paint_mountain_cars(panels: Sequence[Panel], path: Path) -> None:
    """Draw all cars of each policy on one road with a lane per car; a car that arrives stays at the flag."""
    longest = max(len(episode.rewards) for panel in panels for episode in panel.episodes)
    times = range(0, min(longest, FLEET_STEPS) + STEPS_PER_FRAME, STEPS_PER_FRAME)
    background = _landscape(road=ROAD)
    frames = [_side_by_side([_fleet_frame(background, panel, time) for panel in panels]) for time in times]
    colours = frames[len(frames) // 2].quantize(NUM_COLOURS)  # the same for all frames, so that nothing flickers
    _save([frame.quantize(palette=colours, dither=0) for frame in frames], path)


def _side_by_side(images: Sequence[Any]) -> Any:
    from PIL import Image

    joined = Image.new("RGB", (WIDTH * len(images), HEIGHT))
    for index, image in enumerate(images):
        joined.paste(image, (index * WIDTH, 0))
    return joined


def _fleet_frame(background: Any, panel: Panel, time: int) -> Any:
    from PIL import ImageColor, ImageDraw, ImageFont

    image = background.copy()
    draw = ImageDraw.Draw(image)
    first, last = (np.array(ImageColor.getrgb(colour)) for colour in FLEET_COLOURS)
    number, unit = len(panel.episodes), SUPERSAMPLING
    for client in reversed(range(number)):  # the nearest lane last
        episode, share = panel.episodes[client], client / max(number - 1, 1)
        position = float(episode.observations[min(time, len(episode.rewards)), 0])
        x, y = _place(position)
        y -= (6 + ROAD * share) * unit
        colour = tuple(int(channel) for channel in first + share * (last - first))
        draw.ellipse([x - 5 * unit, y - 5 * unit, x + 5 * unit, y + 5 * unit], fill=colour, outline="white", width=1)
    lines = (panel.title, f"step {time}   {panel.count_ended(time)} of {number} cars at the flag")
    for row, (text, size) in enumerate(zip(lines, (17, 14), strict=True)):
        font = ImageFont.load_default(size * unit)
        draw.text((MARGIN * unit, (10 + 22 * row) * unit), text, fill=INK, font=font)
    return image.resize((WIDTH, HEIGHT))


GYMNASIUM = Painter(paint_rendered, lambda simulator: simulator.render(), needs_scenes=True)
MOUNTAIN_CAR = Painter(paint_mountain_car, paint_all=paint_mountain_cars)
MUJOCO_BODY = Painter(paint_body, lambda simulator: simulator.pose())
