"""The commands that look at runs: watch them, export what they learned, and play it."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fedpohcs.cli import options
from fedpohcs.cli.parsing import parse
from fedpohcs.core.errors import UserError, require

T = TypeVar("T")
POPULATION = ("level", "clients", "held_out", "placement", "episodes", "seed", "finetune")


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

    with _warnings_as_notes():
        export_policy(given.run, given.output, given.client, sample=given.sample, card=given.card)
    print(given.output)
    if given.card:
        print(given.output.with_name("README.md"))


def play(arguments: list[str]) -> None:
    """Let a trained policy play in the world of one client, or of all; print returns and draw a GIF."""
    if arguments[:1] == ["hongkong"]:
        from fedpohcs.cli.traffic import play_drive

        return play_drive(arguments[1:])
    given = _parse(options.PlayOptions, "play", arguments, play.__doc__)
    require(given.episodes > 0, "episodes", given.episodes, "must be at least 1")
    require(given.seed >= 0, "seed", given.seed, "must be at least 0")
    if given.output is not None and given.output.suffix != ".gif":
        raise UserError(f"output (={str(given.output)!r}) must end in .gif.")
    if given.client is None:
        return _play_with_all(given)
    require(given.beside is None, "beside", given.beside, "must not be combined with client")
    from fedpohcs.runs.loading import read_config
    from fedpohcs.runs.playing import play_episodes
    from fedpohcs.runs.stored import find_stored
    from fedpohcs.worlds import world_class
    from fedpohcs.worlds.pictures import can_draw, write_gif

    run = find_stored(given.run).run
    config = read_config(run)
    has_painter = world_class(config.world).painter is not None
    rule = f"cannot be drawn: there is no picture of the world {config.world}"
    require(given.output is None or has_painter, "output", str(given.output), rule)
    with _warnings_as_notes():
        episodes = play_episodes(given.run, given.client, given.episodes, given.seed, greedy=given.greedy)
    for number, episode in enumerate(episodes, start=1):
        end = "ended there" if episode.terminated else "out of time"
        print(f"episode {number}: return {episode.total:.2f} in {len(episode.rewards)} steps, {end}")
    print(f"mean return {sum(episode.total for episode in episodes) / len(episodes):.2f}")
    if can_draw(config.world, episodes[0]) or given.output is not None:
        output = given.output or run / f"client-{given.client}.gif"
        write_gif(config, given.client, episodes[0], output)
        print(output)


def _play_with_all(given: options.PlayOptions) -> None:
    """An episode of one policy, or of two, with every client."""
    from fedpohcs.runs.loading import read_config
    from fedpohcs.runs.playing import play_clients
    from fedpohcs.runs.stored import find_stored
    from fedpohcs.worlds.pictures import Panel, find_painter, write_fleet_gif

    names = [given.run, *([given.beside] if given.beside else [])]
    configs = [read_config(find_stored(name).run) for name in names]
    config = configs[0]
    populations = {(some.world, some.level, some.federation.num_clients) for some in configs}
    require(len(populations) == 1, "beside", given.beside, "must have the same world, level and number of clients")
    painter = find_painter(config.world)
    drawable = painter is not None and painter.paint_all is not None
    rule = f"cannot be drawn: there is no picture of all clients of {config.world}"
    require(given.output is None or drawable, "output", str(given.output), rule)
    panels = []
    for name in names:
        with _warnings_as_notes():
            played = play_clients(name, given.seed, greedy=given.greedy)
        returns = [episode.total for episode in played.episodes]
        print(
            f"{name}: {len(returns)} clients, mean return {sum(returns) / len(returns):.2f}, worst {min(returns):.2f}"
        )
        panels.append(Panel(played.title, played.episodes))
    if drawable:
        output = given.output or find_stored(given.run).run / "clients.gif"
        write_fleet_gif(config, panels, output)
        print(output)


def evaluate(arguments: list[str]) -> None:
    """Let a stored policy play with every client of a population; print the returns."""
    given = _parse(options.EvaluateOptions, "evaluate", arguments, evaluate.__doc__)
    require(given.seed >= 0, "seed", given.seed, "must be at least 0")
    require(given.finetune >= 0, "finetune", given.finetune, "must be at least 0")
    from fedpohcs.runs.evaluating import evaluate_policy

    chosen = {name: getattr(given, name) for name in POPULATION}
    with _warnings_as_notes():
        found = evaluate_policy(given.run, **chosen)
    trained = found.config.federation.num_clients
    tuned = f", after {given.finetune} local iterations of each client" if given.finetune else ""
    print(f"{found.config.world} ({found.config.level}), policy of round {found.round}{tuned}")
    for title, rows in (("clients", found.client < trained), ("held-out clients", found.client >= trained)):
        if rows.any():
            some = found._replace(client=found.client[rows], mean_return=found.mean_return[rows])
            worst, best = some.mean_return.argmin(), some.mean_return.argmax()
            print(
                f"{rows.sum()} {title}: mean return {some.mean_return.mean():.2f}, worst tenth {some.worst_tenth:.2f}, "
                f"worst {some.mean_return[worst]:.2f} (client {some.client[worst]}), "
                f"best {some.mean_return[best]:.2f} (client {some.client[best]})"
            )
    if given.output is not None:
        _write_returns(given.output, found)
        print(given.output)


def _write_returns(path: Path, found: Any) -> None:
    rows = zip(found.client.tolist(), found.mean_return.tolist(), found.own_filter.tolist(), strict=True)
    lines = ["client,mean_return,own_filter", *(f"{client},{value!r},{int(own)}" for client, value, own in rows)]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print warnings as lines of this program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        print(f"fedpohcs: {warning.message}", file=sys.stderr)


def _parse(cls: type[T], command: str, arguments: list[str], description: str | None) -> T:
    return parse(cls, f"fedpohcs {command}", description, arguments)
