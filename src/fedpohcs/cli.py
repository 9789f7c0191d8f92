"""The command line. Every command checks its input before it imports what is heavy or writes anything."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from fedpohcs import __version__, options
from fedpohcs.config import ExperimentConfig
from fedpohcs.errors import UserError, require_known
from fedpohcs.plugins import register_plugins
from fedpohcs.presets import PRESETS, preset

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 130 for an interrupt."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(f"fedpohcs: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedpohcs: interrupted; the rounds finished so far are kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as stop:  # how tyro and argparse end after --help or a parse error
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
    commands = "\n".join(f"  {name:<9}{_first_line(command)}" for name, command in COMMANDS.items())
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

    name, rest = _take_preset("train", arguments)
    chosen = _peek("train", rest)
    config = _with_clients(preset(name, chosen.level, chosen.selector), chosen.clients)
    default = options.TrainOptions(_as(options.RunSettings, config))
    given = _parse(options.TrainOptions, f"train {name}", rest, default)
    config = _as(ExperimentConfig, given.config)
    out = given.out or Path("runs") / name / _run_path(config)
    check_free(out, given.overwrite)
    _run(config, out, given.overwrite)
    print(f"run: {out}")


def compare(arguments: list[str]) -> None:
    """Train with several selectors and seeds, then write a table, figures and a report."""
    name, rest = _take_preset("compare", arguments)
    clients = _peek("compare", rest).clients
    given = _parse_compare(name, rest, _with_clients(preset(name), clients))
    levels = _split("levels", given.levels) if given.levels else [given.config.level]
    selectors, seeds = _split("selectors", given.selectors), [_seed(s) for s in _split("seeds", given.seeds)]
    configs = []
    for level in levels:
        for selector in selectors:
            default = _with_clients(preset(name, level, selector), clients)
            shared = _parse_compare(name, rest, default).config
            configs += [dataclasses.replace(_as(ExperimentConfig, shared), seed=seed) for seed in seeds]
    from fedpohcs.comparison import plan_runs, write_results

    plan = plan_runs({given.out / _run_path(config): config for config in configs}, given.out, given.overwrite)
    for number, (folder, config) in enumerate(plan.items(), start=1):
        note = "" if config else " is complete already, kept"
        print(f"run {number} of {len(plan)}: {folder}{note}", flush=True)
        if config:
            _run(config, folder, overwrite=True)
    write_results(list(plan), given.out)


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
    from fedpohcs.analysis import tables

    groups = _load_groups(given.runs)
    if given.format == "csv":
        print(tables.to_csv(groups), end="")
    elif given.format == "markdown":
        print(tables.to_markdown(tables.statistics_tables(groups, given.reference)), end="")
    else:
        tables.print_tables(tables.statistics_tables(groups, given.reference))


def report(arguments: list[str]) -> None:
    """Write one self-contained HTML page about run folders."""
    given = _parse(options.ReportOptions, "report", arguments)
    from fedpohcs.analysis.report import write_report

    write_report(_load_groups(given.runs), given.output, given.title)
    print(given.output)


def list_names(arguments: list[str]) -> None:
    """Print the worlds, levels, selectors, presets and aggregators there are."""
    _parse(options.ListOptions, "list", arguments)
    from fedpohcs.aggregation import AGGREGATORS
    from fedpohcs.envs import WORLDS, world_class, world_levels
    from fedpohcs.selection import SELECTORS

    register_plugins()
    worlds = {name: f"{_first_line(world_class(name))} Levels: {', '.join(world_levels(name))}." for name in WORLDS}
    registries = {"selectors": SELECTORS, "presets": PRESETS, "aggregators": AGGREGATORS}
    sections = {"worlds": worlds} | {
        title: {name: _first_line(entry) for name, entry in registry.items()} for title, registry in registries.items()
    }
    for title, entries in sections.items():
        print(f"{title}:")
        for name, description in entries.items():
            print(f"  {name:<22}{description}")


def osm(arguments: list[str]) -> None:
    """Build, fetch, show or drive traffic networks."""
    from fedpohcs.envs.hongkong.commands import run_command

    run_command(arguments)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train,
    "compare": compare,
    "plot": plot,
    "table": table,
    "report": report,
    "list": list_names,
    "osm": osm,
}


def _parse(cls: type[T], command: str, arguments: list[str], default: T | None = None) -> T:
    description = _first_line(COMMANDS[command.partition(" ")[0]])
    extra: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(cls, prog=f"fedpohcs {command}", description=description, args=arguments, **extra)


def _parse_compare(name: str, arguments: list[str], config: ExperimentConfig) -> options.CompareOptions:
    default = options.CompareOptions(_as(options.SharedSettings, config), out=tyro.MISSING)
    return _parse(options.CompareOptions, f"compare {name}", arguments, default)


def _take_preset(command: str, arguments: list[str]) -> tuple[str, list[str]]:
    """The preset in front and the rest. `--help` alone explains the options of the first preset."""
    if arguments and not arguments[0].startswith("-"):
        register_plugins()
        require_known("preset", arguments[0], PRESETS)
        return arguments[0], arguments[1:]
    first = next(iter(PRESETS))
    if "-h" in arguments or "--help" in arguments:
        return first, ["--help"]
    known = ", ".join(PRESETS)
    raise UserError(f"{command} needs a preset first: fedpohcs {command} {first} ... Known: {known}.")


def _peek(command: str, arguments: list[str]) -> argparse.Namespace:
    """The options that decide what the others default to."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, prog=f"fedpohcs {command}")
    parser.add_argument("--level")
    parser.add_argument("--selector")
    parser.add_argument("--clients", type=int)
    return parser.parse_known_args(arguments)[0]


def _with_clients(config: ExperimentConfig, num_clients: int | None) -> ExperimentConfig:
    if num_clients is None:
        return config
    federation, least = config.federation, max(num_clients, 1)
    shrunk = {name: min(getattr(federation, name), least) for name in ("num_candidates", "num_selected")}
    return dataclasses.replace(config, federation=dataclasses.replace(federation, num_clients=num_clients, **shrunk))


def _as(cls: type[T], config: ExperimentConfig) -> T:
    """The same settings as another class of settings."""
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ExperimentConfig)})


def _split(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if "" in parts or len(set(parts)) < len(parts):
        raise UserError(f"{name} (={text!r}) must be different names joined by commas.")
    return parts


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"seeds (={text!r}) must be whole numbers joined by commas.")
    return int(text)


def _run_path(config: ExperimentConfig) -> Path:
    return Path(config.level) / config.selector / f"seed-{config.seed}"


def _run(config: ExperimentConfig, out: Path, overwrite: bool) -> None:
    from fedpohcs.display import ProgressDisplay
    from fedpohcs.experiment import run_experiment

    with ProgressDisplay() as display:
        run_experiment(config, out, overwrite=overwrite, observers=[display])


def _load_groups(paths: Sequence[Path]) -> list[Any]:
    from fedpohcs.analysis.groups import load_groups

    if not paths:
        raise UserError("runs (=none) must name at least one run folder.")
    return load_groups(paths)
