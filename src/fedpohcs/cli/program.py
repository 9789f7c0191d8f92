"""The command line. Every command checks its input before it imports what is heavy or writes anything."""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tyro

from fedpohcs.cli import inspect as inspection
from fedpohcs.cli import options
from fedpohcs.cli.parsing import first_line, parse, run_subcommand
from fedpohcs.cli.settings import StartingPoint, parse_experiment, run_path, settings_as, starting_point
from fedpohcs.cli.signals import TerminationInterrupt, how_to_go_on, stopped_by_signals
from fedpohcs.cli.theory import theory
from fedpohcs.core.algorithms import find_algorithm, parse_method
from fedpohcs.core.config import SHARDED, ExperimentConfig
from fedpohcs.core.errors import UserError, printable, require, require_known
from fedpohcs.core.registries import ALGORITHMS, PRESETS, register_plugins
from fedpohcs.core.version import __version__
from fedpohcs.execution.cluster import ClusterSettings
from fedpohcs.runs.keeping import parse_keep

T = TypeVar("T")
ABOUT = "Federated reinforcement learning with heterogeneity-aware client selection."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 2 for bad input, 130 for an interrupt."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(f"fedpohcs: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("fedpohcs: " + (str(stop) or "interrupted."), file=sys.stderr)
        return 143 if isinstance(stop, TerminationInterrupt) else 130
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SystemExit as stop:  # how tyro ends after --help
        return stop.code if isinstance(stop.code, int) else 0


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        print(f"fedpohcs {__version__}")
    else:
        run_subcommand("fedpohcs", COMMANDS, arguments, ABOUT)
    return 0


def train(arguments: list[str]) -> None:
    """Train one federation and write a run folder."""
    from fedpohcs.runs.folder import check_free

    given, config, folder = parse_experiment(options.TrainOptions, "train", train.__doc__, arguments)
    out = given.out or folder
    check_free(out, given.overwrite)
    _check_cluster(given.ray, config.executor)
    from fedpohcs.execution import make_protected_executor
    from fedpohcs.runs.experiment import run_experiment
    from fedpohcs.runs.loggers import make_loggers

    loggers = make_loggers(_loggers(given.log), out)
    with _watched(out, given) as displays:
        run_experiment(
            config,
            out,
            overwrite=given.overwrite,
            observers=[*displays, *loggers],
            checkpoint_every=given.checkpoint_every,
            keep=parse_keep(given.keep),
            keep_records=False,
            make_clients=partial(make_protected_executor, cluster=given.ray),
        )
    if not (given.json or given.quiet):
        print(f"run: {out}")


def resume(arguments: list[str]) -> None:
    """Go on with a run that stopped, or make a finished one longer."""
    given = _parse(options.ResumeOptions, "resume", arguments)
    from fedpohcs.runs.loading import read_config

    stored = read_config(given.run).executor
    rule = f"is for runs in shards, and this run is {stored}: last digits depend on the executor"
    require(given.executor is None or stored in SHARDED, "executor", given.executor, rule)
    executor = given.executor or stored
    _check_cluster(given.ray, executor)
    from fedpohcs.execution import make_protected_executor
    from fedpohcs.runs.experiment import resume_experiment
    from fedpohcs.runs.loggers import make_loggers

    loggers = make_loggers(_loggers(given.log), given.run)
    with _watched(given.run, given) as displays:
        resume_experiment(
            given.run,
            rounds=given.rounds,
            observers=[*displays, *loggers],
            checkpoint_every=given.checkpoint_every,
            keep=parse_keep(given.keep),
            keep_records=False,
            make_clients=partial(make_protected_executor, executor=executor, cluster=given.ray),
            executor=executor,
        )
    if not (given.json or given.quiet):
        print(f"run: {given.run}")


def _check_cluster(given: ClusterSettings, executor: str) -> None:
    """Refuse settings of a cluster where none is used."""
    for name, value in dataclasses.asdict(given).items():
        plain = value == getattr(ClusterSettings(), name)
        require(plain or executor == "ray", f"ray.{name}", value, f"is for executor ray, not for {executor}")


def compare(arguments: list[str]) -> None:
    """Train with several algorithms, seeds and levels, or read existing runs; write table, figures and report."""
    if arguments and arguments[0] not in PRESETS and Path(arguments[0]).is_dir():
        return _compare_folders(arguments)
    start = starting_point("compare", arguments)
    given = _parse_compare(start, start.config(None, None))
    levels = _split("levels", given.levels) if given.levels else [given.config.level]
    methods, seeds = _methods(given), _seeds(given.seeds)
    configs = []
    for level in levels:
        for method in methods:
            shared = _parse_compare(start, start.config(level, method)).config
            configs += [dataclasses.replace(settings_as(ExperimentConfig, shared), seed=seed) for seed in seeds]
    from fedpohcs.cli.compare import run_all, write_results

    runs = {given.out / run_path(config): config for config in configs}
    chosen: dict[str, Any] = {name: getattr(given, name) for name in ("overwrite", "jobs", "backend")}
    _check_output(given)
    output = "json" if given.json else "nothing" if given.quiet else "progress"
    with stopped_by_signals(f"stopped; to go on: fedpohcs compare {' '.join(arguments)}"):
        run_all(runs, given.out, **chosen, output=output, log=_loggers(given.log))
    write_results(list(runs), given.out, quiet=output != "progress")


def _methods(given: options.CompareOptions) -> list[str]:
    """The algorithms or selectors to compare."""
    setting = "selector" if given.algorithms is None else "algorithm"
    names = _split(f"{setting}s", given.algorithms or given.selectors)
    for name in names:
        parse_method(name, setting)
    return names


def _compare_folders(arguments: list[str]) -> None:
    given = _parse(options.CompareFoldersOptions, "compare", arguments)
    from fedpohcs.cli.compare import write_results
    from fedpohcs.runs.loading import find_runs

    runs = find_runs(given.runs)
    given.out.mkdir(parents=True, exist_ok=True)
    write_results(runs, given.out)


def reproduce(arguments: list[str]) -> None:
    """List the paper's figures and tables, or run what one of them needs and draw it."""
    given = _parse(options.ReproduceOptions, "reproduce", arguments)
    from fedpohcs.cli.reproduce import list_exhibits, reproduce_exhibit

    if given.exhibit is None:
        return list_exhibits()
    with stopped_by_signals(f"stopped; to go on: fedpohcs reproduce {' '.join(arguments)}"):
        reproduce_exhibit(given.exhibit, given.out, quick=given.quick, jobs=given.jobs)


def config(arguments: list[str]) -> None:
    """Print a preset as a TOML file that train and compare read with --config."""
    from fedpohcs.core.toml import to_toml

    print(to_toml(parse_experiment(options.ConfigOptions, "config", config.__doc__, arguments).config), end="")


def plot(arguments: list[str]) -> None:
    """Draw return by round, or who was selected, from run folders."""
    given = _parse(options.PlotOptions, "plot", arguments)
    from fedpohcs.analysis.figures import gains, participation, return_by_round, save_figure

    require(given.kind == "curves" or given.against == "rounds", "against", given.against, "is for --kind curves")
    groups, others = _load_groups(given.runs), {"participation": participation, "gains": gains}
    figure = others[given.kind](groups) if given.kind in others else return_by_round(groups, given.against)
    save_figure(figure, given.output)
    print(given.output)


def table(arguments: list[str]) -> None:
    """Print the statistics of run folders over their seeds."""
    given = _parse(options.TableOptions, "table", arguments)
    from fedpohcs.analysis import rendering, tables

    options.check_table(given)
    names = options.display_names(given.names)
    reference = names.get(given.reference or "fedavg", given.reference)
    choice = (reference, options.thresholds(given.thresholds), options.windows(given.windows))
    groups = _named(_load_groups(given.runs), names)
    if given.format == "csv":
        print(tables.to_csv(groups, *choice), end="")
        return
    found = tables.statistics_tables(groups, *choice)
    found = tables.choose_rows(found, given.rows) if given.rows else found
    if given.format == "text":
        return rendering.print_tables(found)
    latex = given.format == "latex"
    text = rendering.to_latex(found, bold=given.bold, prefix=given.label) if latex else rendering.to_markdown(found)
    print(text, end="")


def _named(groups: list[Any], names: dict[str, str]) -> list[Any]:
    """The groups under the names that they are to be shown by."""
    for label in names:
        require_known("names", label, {group.label for group in groups})
    return [group._replace(label=names.get(group.label, group.label)) for group in groups]


def report(arguments: list[str]) -> None:
    """Write one self-contained HTML page about run folders."""
    given = _parse(options.ReportOptions, "report", arguments)
    from fedpohcs.analysis.report import write_report

    thresholds = options.thresholds(given.thresholds)
    write_report(_load_groups(given.runs), given.output, given.title, thresholds)
    print(given.output)


def list_names(arguments: list[str]) -> None:
    """Print the names of worlds, levels, algorithms, learners, selectors and all other parts that are registered."""
    _parse(options.ListOptions, "list", arguments)
    from fedpohcs.core.registries import AGGREGATORS, ATTACKS, LEARNERS, METRICS, OPTIMISERS, SELECTORS, WORLDS
    from fedpohcs.metrics.base import find_metric
    from fedpohcs.worlds import world_class, world_levels

    register_plugins()
    worlds = {name: f"{first_line(world_class(name))} Levels: {', '.join(world_levels(name))}." for name in WORLDS}
    aggregators = {name: aggregator.combine for name, aggregator in AGGREGATORS.items()}
    attacks = {name: attack.forge for name, attack in ATTACKS.items()}
    metrics = {name: find_metric(name).measure for name in METRICS}
    registries = {
        "learners": LEARNERS,
        "selectors": SELECTORS,
        "metrics": metrics,
        "presets": PRESETS,
        "aggregators": aggregators,
        "server optimisers": OPTIMISERS,
        "attacks": attacks,
    }
    algorithms = {name: find_algorithm(name).about for name in ALGORITHMS}
    sections = {"worlds": worlds, "algorithms": algorithms} | {
        title: {name: first_line(entry) for name, entry in registry.items()} for title, registry in registries.items()
    }
    for title, entries in sections.items():
        print(f"{title}:")
        width = max(map(len, entries))
        for name, description in entries.items():
            print(f"  {name:<{width}}  {description}")


def sweep(arguments: list[str]) -> None:
    """Search for good settings: many runs, each with settings that Optuna proposes; weak ones are stopped early."""
    from fedpohcs.cli.sweep import sweep as run_command

    run_command(arguments)


def completion(arguments: list[str]) -> None:
    """Print a script that lets a shell complete commands and options: bash, zsh or fish."""
    from fedpohcs.cli.completion import completion as run_command

    run_command(arguments)


def osm(arguments: list[str]) -> None:
    """Build, fetch or show traffic networks, or measure how IDM drives in them."""
    from fedpohcs.cli.traffic import run_command

    run_command(arguments)


def flower(arguments: list[str]) -> None:
    """Run a federation on Flower: on this machine, or prepared for a fleet."""
    from fedpohcs.cli.flower import run_command

    run_command(arguments)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train,
    "resume": resume,
    "compare": compare,
    "sweep": sweep,
    "reproduce": reproduce,
    "config": config,
    "plot": plot,
    "table": table,
    "report": report,
    "watch": inspection.watch,
    "export": inspection.export,
    "play": inspection.play,
    "evaluate": inspection.evaluate,
    "list": list_names,
    "completion": completion,
    "theory": theory,
    "osm": osm,
    "flower": flower,
}


def _parse(cls: type[T], command: str, arguments: list[str]) -> T:
    return parse(cls, f"fedpohcs {command}", first_line(COMMANDS[command]), arguments)


def _parse_compare(start: StartingPoint, config: ExperimentConfig) -> options.CompareOptions:
    default = options.CompareOptions(settings_as(options.SharedSettings, config), out=tyro.MISSING)
    text = f"{first_line(compare)} {start.note}"
    return parse(options.CompareOptions, f"fedpohcs compare {start.name}", text, start.rest, default)


def _split(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if "" in parts or len(set(parts)) < len(parts):
        raise UserError(f"{name} (={text!r}) must be different names joined by commas.")
    return parts


def _loggers(text: str | None) -> list[str]:
    return _split("log", text) if text else []


def _seeds(text: str) -> list[int]:
    """The seeds of a list of numbers and ranges: 0,1,10-12."""
    seeds = []
    for part in _split("seeds", text):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise UserError(f"seeds (={text!r}) must be whole numbers or ranges such as 10-12, joined by commas.")
        seeds += range(int(first), int(last) + 1)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"seeds (={text!r}) must be different numbers.")
    return seeds


def _check_output(given: Any) -> None:
    require(not (given.json and given.quiet), "json", given.json, "must not be combined with quiet")


@contextmanager
def _watched(out: Path, given: Any) -> Iterator[list[Any]]:
    """What shows the run in `out`: a progress display, JSON lines, or nothing."""
    _check_output(given)
    from fedpohcs.cli.display import ProgressDisplay
    from fedpohcs.cli.json_lines import JsonLines

    with stopped_by_signals(how_to_go_on(out, "fedpohcs resume")):
        if given.json or given.quiet:
            yield [JsonLines()] if given.json else []
            return
        with ProgressDisplay() as display:
            yield [display]


def _load_groups(paths: Sequence[Path]) -> list[Any]:
    from fedpohcs.analysis.groups import load_groups

    if not paths:
        raise UserError("runs (=none) must name at least one run folder.")
    return load_groups(paths)
