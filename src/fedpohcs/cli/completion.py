"""`fedpohcs completion`: what a shell needs to complete commands, options and the choices of options."""

import dataclasses
import io
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Positional, arg, subcommand

from fedpohcs.cli import flower, options, sweep, theory, traffic
from fedpohcs.cli.parsing import parse
from fedpohcs.cli.settings import settings_as
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import PRESETS, register_plugins
from fedpohcs.deploy.node_command import NodeOptions
from fedpohcs.deploy.server_command import ServerOptions

CALL = "completions = get_completions(words, current_index, COMPLETION_SPEC)"
"""Where the scripts of tyro find what to offer."""
PRESETS_AND_FILES = """
    given = words[current_index] if current_index < len(words) else ''
    if not given.startswith('-') and all(one.startswith('-') for one in completions):
        presets = {presets} if words[1:current_index] in {commands} else []
        completions = [name for name in presets if name.startswith(given)] or ['__TYRO_COMPLETE_FILES__']
"""
"""What tyro does not offer: a preset as the first word of a command that has one, and files where no option is begun.
Without double quotes, because the script for fish stands in some."""
CORRECTIONS = {
    # the words before are put in front of the one that is begun; folders end in a slash
    "bash": {
        'COMPREPLY=($(compgen -f -- "$cur"))': "compopt -o filenames 2>/dev/null\n"
        '    COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))'
    },
    # the number of the word counts from 0
    "zsh": {'"${words[@]}" "$CURRENT"': '"${words[@]}" "$((CURRENT - 1))"'},
    # Linux refuses an argument as long as the program is; the word that is begun is missing
    "fish": {'$python_cmd -c "$pycode" $words': 'printf "%s" "$pycode" | $python_cmd - $words (commandline -ct)'},
}
EXAMPLE = "tabular"  # the preset whose options are completed; others have the same, and perhaps a scenario


class AfterPreset:
    """Marks the options of a command whose first word is a preset."""


@dataclass(frozen=True)
class CompletionOptions:
    """`fedpohcs completion`."""

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """Shell that will read the script."""


def completion(arguments: list[str]) -> None:
    """Print a script that lets a shell complete commands and options: bash, zsh or fish."""
    given = parse(CompletionOptions, "fedpohcs completion", completion.__doc__, arguments)
    print(script(given.shell), end="")


def script(shell: str) -> str:
    """The script for a shell."""
    register_plugins()
    text = io.StringIO()
    with redirect_stdout(text), suppress(SystemExit):  # how tyro ends after it has printed
        tyro.cli(_union(_commands()), prog="fedpohcs", args=["--tyro-write-completion", shell, "-"])
    return _corrected(text.getvalue(), shell)


def _corrected(text: str, shell: str) -> str:
    """The script of tyro for a shell, with what is missing and what the shell needs."""
    commands = [words.split() for words in _preset_commands(_commands())]
    addition = PRESETS_AND_FILES.format(presets=sorted(PRESETS), commands=commands)
    lines = [f"{line}{addition}" if line.strip().startswith(CALL) else line for line in text.split("\n")]
    text = "\n".join(lines)
    for old, new in CORRECTIONS[shell].items():
        text = text.replace(old, new)
    return text


def _preset_commands(commands: dict[str, Any]) -> Iterator[str]:
    """The commands whose first word is a preset."""
    for name, one in commands.items():
        if isinstance(one, dict):
            yield from (f"{name} {rest}" for rest in _preset_commands(one))
        elif issubclass(one, AfterPreset):
            yield name


def _commands() -> dict[str, Any]:
    """The options of every command, or of its subcommands."""
    return {
        "train": _with_preset(options.TrainOptions),
        "resume": options.ResumeOptions,
        "compare": _with_preset(options.CompareOptions, options.SharedSettings),
        "sweep": _with_preset(sweep.SweepOptions),
        "reproduce": options.ReproduceOptions,
        "config": _with_preset(options.ConfigOptions),
        "plot": options.PlotOptions,
        "table": options.TableOptions,
        "report": options.ReportOptions,
        "watch": options.WatchOptions,
        "export": options.ExportOptions,
        "play": options.PlayOptions,
        "evaluate": options.EvaluateOptions,
        "list": options.ListOptions,
        "completion": CompletionOptions,
        "theory": {"verify": theory.VerifyOptions, "plot": theory.PlotOptions},
        "osm": {
            "build": traffic.BuildOptions,
            "fetch": traffic.FetchOptions,
            "show": traffic.ShowOptions,
            "reference": traffic.ReferenceOptions,
        },
        "flower": {
            "run": _with_preset(flower.RunOptions),
            "app": _with_preset(flower.AppOptions),
            "plan": _with_preset(flower.PlanOptions),
            "server": ServerOptions,
            "node": NodeOptions,
            "export": flower.ExportOptions,
            "identity": flower.IdentityOptions,
            "members": {"add": flower.AddOptions, "remove": flower.MemberOptions, "list": flower.ListOptions},
            "keys": flower.KeysOptions,
        },
    }


def _with_preset(cls: Any, settings: Any = options.RunSettings) -> Any:
    """Options of a command whose first word is a preset, with the settings of one."""
    extra: dict[str, Any] = {"out": tyro.MISSING} if cls is options.CompareOptions else {}
    default = cls(settings_as(settings, preset(EXAMPLE)), **extra)
    options_field = ("options", Annotated[cls, arg(name="")], field(default=default))
    return dataclasses.make_dataclass(cls.__name__, [options_field], bases=(AfterPreset,), frozen=True)


def _union(commands: dict[str, Any]) -> Any:
    """Commands as the subcommands of one parser."""
    members = [
        Annotated[_group(name, one) if isinstance(one, dict) else one, subcommand(name=name)]
        for name, one in commands.items()
    ]
    return Union[tuple(members)]  # noqa: UP007


def _group(name: str, commands: dict[str, Any]) -> Any:
    return dataclasses.make_dataclass(name, [("command", Annotated[_union(commands), arg(name="")])])
