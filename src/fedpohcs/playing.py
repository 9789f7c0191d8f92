"""A trained policy at work in the world of one client, step by step, and as a moving picture."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.errors import UserError, require
from fedpohcs.storage import read_config

FRAMES_A_SECOND, MOST_FRAMES = 25, 150
WIDTH, HEIGHT, MARGIN = 480, 300, 24
SUPERSAMPLING = 2
"""Drawn at twice the size and shrunk: smooth edges."""


class Episode(NamedTuple):
    """What happened from a start state to the end."""

    observations: np.ndarray  # [T + 1, obs], the last one after the last step
    actions: np.ndarray  # [T, ...]
    rewards: np.ndarray  # [T]
    terminated: bool  # or else the time limit ended it

    @property
    def total(self) -> float:
        """The return: undiscounted, of the environment's own rewards."""
        return float(self.rewards.sum())


def play_episodes(run: Path, client: int, number: int, seed: int = 0, *, greedy: bool = False) -> list[Episode]:
    """Episodes of the policy of a finished run with a client's own world and filter; ids count from 0."""
    from fedpohcs.exporting import load_run_policy

    config = read_config(run)
    num_clients = config.federation.num_clients
    require(client < num_clients, "client", client + 1, f"must not exceed num_clients (={num_clients})")
    policy = load_run_policy(run)
    import jax

    from fedpohcs.envs import make_world
    from fedpohcs.envs.base import TracedWorld

    world = make_world(config)
    if not isinstance(world, TracedWorld):
        raise UserError(f"run (={str(run)!r}) cannot be played: {config.world} is not a world of pure functions.")
    own = jax.tree.map(lambda x: x[client], world.population)
    reset, step = jax.jit(world.reset), jax.jit(world.step)

    def play(generator: np.random.Generator) -> Episode:
        state, observation = reset(generator.random(world.reset_noise, np.float32), own)
        observations, actions, rewards, terminated = [np.asarray(observation)], [], [], False
        while not terminated and len(rewards) < world.horizon:
            action = policy.act(observations[-1], client, None if greedy else generator)
            moved = step(state, action, generator.random(world.step_noise, np.float32), own)
            state, terminated = moved.state, bool(moved.terminated)
            observations.append(np.asarray(moved.observation))
            actions.append(action)
            rewards.append(float(moved.reward))
        return Episode(np.stack(observations), np.stack(actions), np.array(rewards), terminated)

    return [play(np.random.default_rng([seed, index])) for index in range(number)]


def can_draw(world: str) -> bool:
    """Whether there is a picture of this world."""
    return world == "mountain-cars"


def write_gif(episode: Episode, path: Path, caption: str) -> None:
    """The car of an episode of `mountain-cars`, sped up where it is long."""
    stride = math.ceil(len(episode.observations) / MOST_FRAMES)
    shown = [*range(0, len(episode.observations) - 1, stride), len(episode.observations) - 1]
    background = _landscape()
    frames = [_frame(background, episode, time, caption) for time in shown]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pause = [1000 // FRAMES_A_SECOND] * (len(frames) - 1) + [1500]  # and a look at where it ended
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=pause, loop=0, optimize=True)
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error


def _landscape() -> Any:
    """The valley and the flag, at the size things are drawn."""
    from PIL import Image, ImageDraw

    from fedpohcs.envs.mountain_car import GOAL_POSITION, MAX_POSITION, MIN_POSITION

    size = (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING)
    image = Image.new("RGB", size, "#eaf3fa")
    draw = ImageDraw.Draw(image)
    ground = [_place(x) for x in np.linspace(MIN_POSITION, MAX_POSITION, 200)]
    ground = [(0, ground[0][1]), *ground, (size[0], ground[-1][1])]
    draw.polygon([*ground, (size[0], size[1]), (0, size[1])], fill="#c9d8c0")
    draw.line(ground, fill="#5b7a52", width=3 * SUPERSAMPLING, joint="curve")
    x, y = _place(GOAL_POSITION)
    top = y - 46 * SUPERSAMPLING
    draw.line([(x, y), (x, top)], fill="#444444", width=2 * SUPERSAMPLING)
    draw.polygon(
        [(x, top), (x + 22 * SUPERSAMPLING, top + 8 * SUPERSAMPLING), (x, top + 16 * SUPERSAMPLING)], fill="#D55E00"
    )
    return image


def _frame(background: Any, episode: Episode, time: int, caption: str) -> Any:
    from PIL import ImageDraw, ImageFont

    image = background.copy()
    draw = ImageDraw.Draw(image)
    position = float(episode.observations[time, 0])
    slope = math.atan2(math.cos(3 * position) * 3 * 0.45 * _unit()[1], _unit()[0])
    _draw_car(draw, _place(position), slope)
    action = float(episode.actions[min(time, len(episode.actions) - 1), 0])
    font = ImageFont.load_default(15 * SUPERSAMPLING)
    text = f"{caption}   step {time}   return {episode.rewards[:time].sum():.1f}   action {action:+.2f}"
    draw.text((MARGIN * SUPERSAMPLING, 12 * SUPERSAMPLING), text, fill="#1b1f24", font=font)
    return image.resize((WIDTH, HEIGHT)).quantize(64)


def _draw_car(draw: Any, wheels: tuple[float, float], slope: float) -> None:
    """A body, a cabin and two wheels that stand on the ground at `wheels`."""
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
    """Pixels of a unit of position and of height."""
    from fedpohcs.envs.mountain_car import MAX_POSITION, MIN_POSITION

    width = (WIDTH - 2 * MARGIN) / (MAX_POSITION - MIN_POSITION)
    return width * SUPERSAMPLING, 150.0 * SUPERSAMPLING


def _place(position: float) -> tuple[float, float]:
    """Where the ground is at a position of the car: height sin(3x), as in Gymnasium's picture."""
    from fedpohcs.envs.mountain_car import MIN_POSITION

    across, upwards = _unit()
    height = math.sin(3 * position) * 0.45 + 0.55
    return MARGIN * SUPERSAMPLING + (position - MIN_POSITION) * across, (HEIGHT - 30) * SUPERSAMPLING - height * upwards
