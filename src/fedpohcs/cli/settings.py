"""Where the settings of a command come from: a preset or a file, before its options change them."""

import argparse
import dataclasses
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedpohcs.cli.options import RunSettings
from fedpohcs.cli.parsing import parse
from fedpohcs.core.algorithms import parse_method
from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError, require, require_known
from fedpohcs.core.learning import as_kind
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import PRESETS, register_plugins
from fedpohcs.core.toml import overlay, parse_assignment, read_toml

T = TypeVar("T")


class StartingPoint(NamedTuple):
    """Where the settings of a command come from before its options change them."""

    name: str
    config: Callable[[str | None, str | None], ExperimentConfig]  # of a level and a method; None: the default
    rest: list[str]
    level: str | None
    method: str | None
    note: str = ""  # for the help


def starting_point(command: str, arguments: list[str]) -> StartingPoint:
    """The preset in front, or the file after --config. `--help` alone shows the options with values of one preset."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--config", "--level", "--selector", "--algorithm", "--clients", "--env"):
        peek.add_argument(option)
    peek.add_argument("--learner.kind", dest="learner")
    peek.add_argument("--set", action="append", default=[])
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
        name, make = Path(seen.config).stem, functools.partial(read_toml, Path(seen.config))
    elif name is not None:
        make = functools.partial(preset, name)
    elif "-h" in arguments or "--help" in arguments:
        return _shown_as_example(command)
    else:
        first, known = next(iter(PRESETS)), ", ".join(PRESETS)
        raise UserError(f"{command} needs a preset first: fedpohcs {command} {first} ... Known: {known}.")
    if seen.env is not None:
        own = make(None, None, None)
        require(hasattr(own.scenario, "env"), "env", seen.env, f"is for the world 'gym', not for {own.world!r}")
    rest = present_names(rest)
    clients = None if seen.clients is None else _whole_number("clients", seen.clients)
    assigned = _assigned(command, seen.set)

    def start(level: str | None, selector: str | None) -> ExperimentConfig:
        config = _with_settings(_with_method(make, level, selector), assigned)
        return _with_learner(_with_clients(config, clients), seen.learner)

    names = {name: getattr(seen, name) or assigned.get(name) for name in ("level", "algorithm", "selector")}
    return StartingPoint(name, start, rest, names["level"], _method(names["algorithm"], names["selector"]))


def _assigned(command: str, texts: list[str]) -> dict[str, Any]:
    """The settings that --set gives."""
    assigned = functools.reduce(overlay, map(parse_assignment, texts), {})
    for name in ("level", "algorithm", "selector", "seed"):
        varies = command == "compare" and name in assigned
        require(not varies, "set", name, "is what compare varies", f"Use --{name}s.")
    return assigned


def _with_settings(config: ExperimentConfig, assigned: dict[str, Any]) -> ExperimentConfig:
    return from_dict(overlay(to_dict(config), assigned)) if assigned else config


def _shown_as_example(command: str) -> StartingPoint:
    """The starting point of `--help` without a preset. A value must be shown, so it is that of some preset."""
    example, known = next(iter(PRESETS)), ", ".join(PRESETS)
    note = (
        f"PRESET is one of: {known}. There is no default. The values below are those of {example}; "
        f"fedpohcs {command} PRESET --help shows those of another."
    )
    return StartingPoint("PRESET", functools.partial(preset, example), ["--help"], None, None, note)


class Given(NamedTuple):
    """What a command was told that runs, or describes, one experiment."""

    options: Any  # of the command's own class
    config: ExperimentConfig
    folder: Path  # of the run, unless the options name another


def parse_experiment(cls: Callable[..., Any], command: str, description: str | None, arguments: list[str]) -> Given:
    """The options of a command, and the experiment that they make of a preset or file."""
    start = starting_point(command, arguments)
    default = cls(settings_as(RunSettings, start.config(start.level, start.method)))
    text = f"{description or ''} {start.note}"
    options = parse(type(default), f"fedpohcs {command} {start.name}", text, start.rest, default)
    config = settings_as(ExperimentConfig, options.config)
    return Given(options, config, Path("runs") / start.name / run_path(config))


def present_names(arguments: list[str]) -> list[str]:
    """The options with `--env` written out as `--scenario.env`, and `--traffic.*` of release 0.1 as `--scenario.*`."""
    if any(option.startswith("--traffic.") for option in arguments):
        print(
            "fedpohcs: --traffic.* is called --scenario.* now; the old name goes with the next release", file=sys.stderr
        )
    arguments = _split_methods(arguments)
    arguments = [re.sub(r"^--traffic\.", "--scenario.", option) for option in arguments]
    return [re.sub(r"^--env(?==|$)", "--scenario.env", option) for option in arguments]


def _split_methods(arguments: list[str]) -> list[str]:
    """The options with `--selector fedavg+momentum` written out as two, and so for `--algorithm`."""
    split: list[str] = []
    for before, option in zip(["", *arguments], arguments, strict=False):
        joined = re.fullmatch(r"--(selector|algorithm)=(.*)", option, re.DOTALL)
        if joined or before in ("--selector", "--algorithm"):
            split = split if joined else split[:-1]
            split += _options_of(joined[2] if joined else option, joined[1] if joined else before[2:])
        else:
            split.append(option)
    return split


def _options_of(method: str, setting: str) -> list[str]:
    """The options that a method stands for."""
    names = ("--algorithm", "--selector", "--federation.server-optimiser")
    parts = zip(names, parse_method(method, setting), strict=True)
    return [word for option, name in parts if name is not None for word in (option, name)]


def _method(algorithm: str | None, selector: str | None) -> str | None:
    """An algorithm and a selector as one name, as `compare` takes them."""
    if selector is not None:
        parse_method(selector, "selector")
    return "+".join(filter(None, (algorithm, selector))) or None


def _with_method(make: Callable[..., ExperimentConfig], level: str | None, method: str | None) -> ExperimentConfig:
    """The config of an algorithm or a selector, perhaps with a server optimiser: `fedavg+momentum`."""
    if method is None:
        return make(level, None, None)
    algorithm, selector, optimiser = parse_method(method)
    config = make(level, selector, algorithm)
    if optimiser is None:
        return config
    return dataclasses.replace(config, federation=dataclasses.replace(config.federation, server_optimiser=optimiser))


def _with_learner(config: ExperimentConfig, kind: str | None) -> ExperimentConfig:
    """The config with another kind of learner at its defaults, which the options then change."""
    return config if kind is None else dataclasses.replace(config, learner=as_kind(config.learner, kind))


def _with_clients(config: ExperimentConfig, num_clients: int | None) -> ExperimentConfig:
    if num_clients is None:
        return config
    federation, least = config.federation, max(num_clients, 1)
    shrunk = {name: min(getattr(federation, name), least) for name in ("num_candidates", "num_selected")}
    return dataclasses.replace(config, federation=dataclasses.replace(federation, num_clients=num_clients, **shrunk))


def settings_as(cls: type[T], config: ExperimentConfig) -> T:
    """The settings copied into another class of settings."""
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(ExperimentConfig)})


def _whole_number(name: str, text: str) -> int:
    require(text.removeprefix("-").isdecimal(), name, text, "must be a whole number")
    return int(text)


def run_path(config: ExperimentConfig) -> Path:
    """Path of a run below the folder of its preset."""
    return Path(config.level) / config.method / f"seed-{config.seed}"
