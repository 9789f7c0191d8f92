"""The command line. Every command checks its input before it imports what is heavy or writes anything."""

import argparse
import dataclasses
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tyro

from fedpohcs import __version__, inspection, options
from fedpohcs.config import ExperimentConfig
from fedpohcs.errors import UserError, require, require_known
from fedpohcs.parsing import parse
from fedpohcs.plugins import register_plugins
from fedpohcs.presets import PRESETS, preset
from fedpohcs.theory.command import theory

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 130 for an interrupt."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(f"fedpohcs: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("fedpohcs: " + (str(stop) or "interrupted."), file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as stop:  # how tyro ends after --help
        return stop.code if isinstance(stop.code, int) else 0


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"fedpohcs {__version__}")
        return 0
    require_known("command", arguments[0], COMMANDS)
    COMMANDS[arguments[0]](arguments[1:])
    return 0


def _overview() -> str:
    commands = "\n".join(f"  {name:<11}{_first_line(command)}" for name, command in COMMANDS.items())
    return (
        "usage: fedpohcs COMMAND ...\n\n"
        "Federated reinforcement learning with heterogeneity-aware client selection.\n\n"
        f"commands:\n{commands}\n\n"
        "fedpohcs COMMAND --help explains a command; fedpohcs --version prints the version."
    )


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


def train(arguments: list[str]) -> None:
    """Train one federation and write a run folder."""
    from fedpohcs.storage import check_free

    start = starting_point("train", arguments)
    default = options.TrainOptions(settings_as(options.RunSettings, start.config(start.level, start.selector)))
    given = _parse(options.TrainOptions, f"train {start.name}", start.rest, default)
    config = settings_as(ExperimentConfig, given.config)
    out = given.out or Path("runs") / start.name / run_path(config)
    check_free(out, given.overwrite)
    from fedpohcs.experiment import run_experiment
    from fedpohcs.loggers import make_loggers

    loggers = make_loggers(_split("log", given.log) if given.log else [], out)
    with _watched(out) as display:
        run_experiment(
            config,
            out,
            overwrite=given.overwrite,
            observers=[display, *loggers],
            checkpoint_every=given.checkpoint_every,
            keep_records=False,
        )
    print(f"run: {out}")


def resume(arguments: list[str]) -> None:
    """Go on with a run that stopped, or make a finished one longer."""
    given = _parse(options.ResumeOptions, "resume", arguments)
    from fedpohcs.experiment import resume_experiment
    from fedpohcs.loggers import make_loggers

    loggers = make_loggers(_split("log", given.log) if given.log else [], given.run)
    with _watched(given.run) as display:
        resume_experiment(
            given.run,
            rounds=given.rounds,
            observers=[display, *loggers],
            checkpoint_every=given.checkpoint_every,
            keep_records=False,
        )
    print(f"run: {given.run}")


def compare(arguments: list[str]) -> None:
    """Train with several selectors, seeds and levels, or take runs that are there; write table, figures and report."""
    if arguments and arguments[0] not in PRESETS and Path(arguments[0]).is_dir():
        return _compare_folders(arguments)
    start = starting_point("compare", arguments)
    given = _parse_compare(start, start.config(None, None))
    levels = _split("levels", given.levels) if given.levels else [given.config.level]
    selectors, seeds = _split("selectors", given.selectors), [_seed(s) for s in _split("seeds", given.seeds)]
    configs = []
    for level in levels:
        for selector in selectors:
            shared = _parse_compare(start, start.config(level, selector)).config
            configs += [dataclasses.replace(settings_as(ExperimentConfig, shared), seed=seed) for seed in seeds]
    from fedpohcs.comparison import run_all, write_results

    runs = {given.out / run_path(config): config for config in configs}
    with stopped_by_signals(f"stopped; to go on: fedpohcs compare {' '.join(arguments)}"):
        run_all(runs, given.out, overwrite=given.overwrite, jobs=given.jobs, backend=given.backend)
    write_results(list(runs), given.out)


def _compare_folders(arguments: list[str]) -> None:
    given = _parse(options.CompareFoldersOptions, "compare", arguments)
    from fedpohcs.comparison import write_results
    from fedpohcs.storage import find_runs

    runs = find_runs(given.runs)
    given.out.mkdir(parents=True, exist_ok=True)
    write_results(runs, given.out)


def reproduce(arguments: list[str]) -> None:
    """List the paper's figures and tables, or run what one of them needs and draw it."""
    given = _parse(options.ReproduceOptions, "reproduce", arguments)
    from fedpohcs.reproduction import list_exhibits, reproduce_exhibit

    if given.exhibit is None:
        return list_exhibits()
    with stopped_by_signals(f"stopped; to go on: fedpohcs reproduce {' '.join(arguments)}"):
        reproduce_exhibit(given.exhibit, given.out, quick=given.quick, jobs=given.jobs)


def config(arguments: list[str]) -> None:
    """Print a preset as a TOML file that train and compare read with --config."""
    start = starting_point("config", arguments)
    default = options.ConfigOptions(settings_as(options.RunSettings, start.config(start.level, start.selector)))
    given = _parse(options.ConfigOptions, f"config {start.name}", start.rest, default)
    from fedpohcs.configfile import to_toml

    print(to_toml(settings_as(ExperimentConfig, given.config)), end="")


def plot(arguments: list[str]) -> None:
    """Draw return by round, or who was selected, from run folders."""
    given = _parse(options.PlotOptions, "plot", arguments)
    from fedpohcs.analysis.figures import participation, return_by_round, save_figure

    draw = {"curves": return_by_round, "participation": participation}[given.kind]
    save_figure(draw(_load_groups(given.runs)), given.output)
    print(given.output)


def table(arguments: list[str]) -> None:
    """Print the statistics of run folders over their seeds."""
    given = _parse(options.TableOptions, "table", arguments)
    from fedpohcs.analysis import rendering, tables

    choice = (given.reference, options.thresholds(given.thresholds), options.windows(given.windows))
    groups = _load_groups(given.runs)
    if given.format == "csv":
        print(tables.to_csv(groups, *choice), end="")
        return
    show = {"text": rendering.print_tables, "markdown": rendering.print_markdown, "latex": rendering.print_latex}
    show[given.format](tables.statistics_tables(groups, *choice))


def report(arguments: list[str]) -> None:
    """Write one self-contained HTML page about run folders."""
    given = _parse(options.ReportOptions, "report", arguments)
    from fedpohcs.analysis.report import write_report

    thresholds = options.thresholds(given.thresholds)
    write_report(_load_groups(given.runs), given.output, given.title, thresholds)
    print(given.output)


def list_names(arguments: list[str]) -> None:
    """Print the worlds, levels, selectors, presets, aggregators and attacks there are."""
    _parse(options.ListOptions, "list", arguments)
    from fedpohcs.aggregation import AGGREGATORS
    from fedpohcs.envs import WORLDS, world_class, world_levels
    from fedpohcs.execution.attacked import ATTACKS
    from fedpohcs.selection import SELECTORS

    register_plugins()
    worlds = {name: f"{_first_line(world_class(name))} Levels: {', '.join(world_levels(name))}." for name in WORLDS}
    aggregators = {name: aggregator.combine for name, aggregator in AGGREGATORS.items()}
    attacks = {name: attack.tell for name, attack in ATTACKS.items()}
    registries = {"selectors": SELECTORS, "presets": PRESETS, "aggregators": aggregators, "attacks": attacks}
    sections = {"worlds": worlds} | {
        title: {name: _first_line(entry) for name, entry in registry.items()} for title, registry in registries.items()
    }
    for title, entries in sections.items():
        print(f"{title}:")
        for name, description in entries.items():
            print(f"  {name:<22}{description}")


def osm(arguments: list[str]) -> None:
    """Build, fetch or show traffic networks, or measure how IDM drives in them."""
    from fedpohcs.envs.hongkong.commands import run_command

    run_command(arguments)


def flower(arguments: list[str]) -> None:
    """Run a federation on Flower: on this machine, or prepared for a fleet."""
    from fedpohcs.deploy.command import run_command

    run_command(arguments)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train,
    "resume": resume,
    "compare": compare,
    "reproduce": reproduce,
    "config": config,
    "plot": plot,
    "table": table,
    "report": report,
    "watch": inspection.watch,
    "export": inspection.export,
    "play": inspection.play,
    "list": list_names,
    "theory": theory,
    "osm": osm,
    "flower": flower,
}


def _parse(cls: type[T], command: str, arguments: list[str], default: T | None = None) -> T:
    description = _first_line(COMMANDS[command.partition(" ")[0]])
    return parse(cls, f"fedpohcs {command}", description, arguments, default)


def _parse_compare(start: "StartingPoint", config: ExperimentConfig) -> options.CompareOptions:
    default = options.CompareOptions(settings_as(options.SharedSettings, config), out=tyro.MISSING)
    return _parse(options.CompareOptions, f"compare {start.name}", start.rest, default)


class StartingPoint(NamedTuple):
    """Where the settings of a command come from before its options change them."""

    name: str
    config: Callable[[str | None, str | None], ExperimentConfig]  # at a level and with a selector, None: its own
    rest: list[str]
    level: str | None
    selector: str | None


def starting_point(command: str, arguments: list[str]) -> StartingPoint:
    """The preset in front, or the file after --config. `--help` alone explains the options of the first preset."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--config", "--level", "--selector", "--clients"):
        peek.add_argument(option)
    try:
        seen, _ = peek.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(f"{error.argument_name}: {error.message}. See fedpohcs {command} --help.") from error
    name, rest = None, arguments
    if arguments and not arguments[0].startswith("-"):
        register_plugins()
        require_known("preset", arguments[0], PRESETS)
        name, rest = arguments[0], arguments[1:]
    if seen.config is not None:
        if name is not None:
            raise UserError(f"config (={seen.config!r}) takes the place of the preset {name!r}. Leave one of them out.")
        from fedpohcs.configfile import read_toml

        base = read_toml(Path(seen.config))
        name, make = Path(seen.config).stem, lambda level, selector: _with_names(base, level, selector)
    elif name is not None:
        make = functools.partial(preset, name)
    elif "-h" in arguments or "--help" in arguments:
        name, rest = next(iter(PRESETS)), ["--help"]
        make = functools.partial(preset, name)
    else:
        first, known = next(iter(PRESETS)), ", ".join(PRESETS)
        raise UserError(f"{command} needs a preset first: fedpohcs {command} {first} ... Known: {known}.")
    clients = None if seen.clients is None else _whole_number("clients", seen.clients)
    sized = lambda level, selector: _with_clients(make(level, selector), clients)  # noqa: E731
    return StartingPoint(name, sized, rest, seen.level, seen.selector)


def _with_names(config: ExperimentConfig, level: str | None, selector: str | None) -> ExperimentConfig:
    return dataclasses.replace(config, level=level or config.level, selector=selector or config.selector)


def _with_clients(config: ExperimentConfig, num_clients: int | None) -> ExperimentConfig:
    if num_clients is None:
        return config
    federation, least = config.federation, max(num_clients, 1)
    shrunk = {name: min(getattr(federation, name), least) for name in ("num_candidates", "num_selected")}
    return dataclasses.replace(config, federation=dataclasses.replace(federation, num_clients=num_clients, **shrunk))


def settings_as(cls: type[T], config: ExperimentConfig) -> T:
    """The same settings as another class of settings."""
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ExperimentConfig)})


def _split(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if "" in parts or len(set(parts)) < len(parts):
        raise UserError(f"{name} (={text!r}) must be different names joined by commas.")
    return parts


def _whole_number(name: str, text: str) -> int:
    require(text.removeprefix("-").isdecimal(), name, text, "must be a whole number")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"seeds (={text!r}) must be whole numbers joined by commas.")
    return int(text)


def run_path(config: ExperimentConfig) -> Path:
    """Where a run lies among those of its preset."""
    return Path(config.level) / config.selector / f"seed-{config.seed}"


class Terminated(KeyboardInterrupt):
    """Asked to stop by SIGTERM."""


@contextmanager
def stopped_by_signals(message: str = "interrupted.") -> Iterator[None]:
    """SIGINT and SIGTERM end the block with `message`; a second one kills at once. A closed terminal is no reason."""

    def stop(number: int, frame: object) -> None:
        del frame
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: signal.SIG_IGN}
    before = {name: signal.signal(name, handler) for name, handler in handlers.items()}
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(message) from interrupt
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def _watched(out: Path) -> Iterator[Any]:
    """A progress display for the run in `out`."""
    from fedpohcs.display import ProgressDisplay

    with stopped_by_signals(f"stopped; to go on: fedpohcs resume {out}"), ProgressDisplay() as display:
        yield display


def _load_groups(paths: Sequence[Path]) -> list[Any]:
    from fedpohcs.analysis.groups import load_groups

    if not paths:
        raise UserError("runs (=none) must name at least one run folder.")
    return load_groups(paths)
