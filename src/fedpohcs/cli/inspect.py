"""The commands that look at runs: watch them, export what they learned, and play it."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from fedpohcs.cli import options
from fedpohcs.cli.parsing import parse
from fedpohcs.core.errors import UserError, require

T = TypeVar("T")


def watch(arguments: list[str]) -> None:
    """Serve the report on this machine and refresh it while runs train."""
    given = _parse(options.WatchOptions, "watch", arguments, watch.__doc__)
    require(0 <= given.port < 2**16, "port", given.port, "must be at least 0 and below 65536")
    require(len(given.runs) > 0, "runs", "none", "must name at least one run folder")
    from fedpohcs.analysis.live import LiveReport, serve

    with serve(LiveReport(given.runs, given.title, options.thresholds(given.thresholds)), given.port) as server:
        print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def export(arguments: list[str]) -> None:
    """Write a trained policy to a file that NumPy, or any ONNX runtime, can use alone."""
    given = _parse(options.ExportOptions, "export", arguments, export.__doc__)
    from fedpohcs.runs.export import export_policy

    client = None if given.client is None else _index(given.client)
    with _warnings_as_notes():
        export_policy(given.run, given.output, client)
    print(given.output)


def play(arguments: list[str]) -> None:
    """Let a trained policy play in the world of one client; print returns and draw a GIF."""
    if arguments[:1] == ["hongkong"]:
        from fedpohcs.cli.traffic import play_drive

        return play_drive(arguments[1:])
    given = _parse(options.PlayOptions, "play", arguments, play.__doc__)
    require(given.episodes > 0, "episodes", given.episodes, "must be at least 1")
    require(given.seed >= 0, "seed", given.seed, "must be at least 0")
    client = _index(given.client)
    from fedpohcs.runs.loading import read_config
    from fedpohcs.runs.playing import play_episodes
    from fedpohcs.worlds import world_class
    from fedpohcs.worlds.pictures import write_gif

    config = read_config(given.run)
    can_draw = world_class(config.world).painter is not None
    if given.output is not None and given.output.suffix != ".gif":
        raise UserError(f"output (={str(given.output)!r}) must end in .gif.")
    rule = f"cannot be drawn: there is no picture of the world {config.world}"
    require(given.output is None or can_draw, "output", str(given.output), rule)
    with _warnings_as_notes():
        episodes = play_episodes(given.run, client, given.episodes, given.seed, greedy=given.greedy)
    for number, episode in enumerate(episodes, start=1):
        end = "ended there" if episode.terminated else "out of time"
        print(f"episode {number}: return {episode.total:.2f} in {len(episode.rewards)} steps, {end}")
    print(f"mean return {sum(episode.total for episode in episodes) / len(episodes):.2f}")
    if can_draw:
        output = given.output or given.run / f"client-{given.client}.gif"
        write_gif(config, client, episodes[0], output)
        print(output)


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print warnings as lines of this program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        print(f"fedpohcs: {warning.message}", file=sys.stderr)


def _index(client: int) -> int:
    """The index of a client, from 0 as in files, for a number from 1 as people count."""
    require(client >= 1, "client", client, "must be at least 1")
    return client - 1


def _parse(cls: type[T], command: str, arguments: list[str], description: str | None) -> T:
    return parse(cls, f"fedpohcs {command}", description, arguments)
