"""tyro's parser. Its errors become one line, like all others: the option, the value, the rule, the remedy."""

import contextlib
import difflib
import io
import itertools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tyro

from fedpohcs.core.errors import UserError, require_known

T = TypeVar("T")
Command = Callable[[list[str]], None]


def run_subcommand(prog: str, commands: Mapping[str, Command], arguments: list[str], about: str = "") -> None:
    """Run the command that the first argument names.

    Without arguments the help goes to the standard error and the exit code is 2, as for other incomplete input.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(prog, commands, about), file=sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else 2)
    require_known(" ".join([*prog.split()[1:], "command"]), arguments[0], commands)
    commands[arguments[0]](arguments[1:])


def _overview(prog: str, commands: Mapping[str, Command], about: str) -> str:
    width = max(map(len, commands)) + 2
    lines = [f"  {name:<{width}}{first_line(command)}" for name, command in commands.items()]
    parts = (f"usage: {prog} COMMAND ...", about, "\n".join(["commands:", *lines]))
    return "\n\n".join([*filter(None, parts), f"{prog} COMMAND --help explains a command."])


def first_line(documented: Any) -> str:
    """The first line of a docstring."""
    return (documented.__doc__ or "").strip().partition("\n")[0]


def parse(cls: type[T], prog: str, description: str | None, arguments: list[str], default: T | None = None) -> T:
    """The options of a command, as the dataclass that describes them."""
    extra: dict[str, Any] = {} if default is None else {"default": default}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(cls, prog=prog, description=(description or "").strip(), args=arguments, **extra)
    except SystemExit as stop:
        if not stop.code:  # after --help
            raise
        text = in_one_line(said.getvalue())
        raise UserError(f"{text}{_about_flags(text, arguments)} See {prog} --help.") from None


def in_one_line(box: str) -> str:
    """The error that tyro prints in a box, without the parts that repeat the help."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    inside = re.sub(r"^\s*[│|╭╰+]|[│|╮╯+]\s*$", " ", plain, flags=re.MULTILINE)  # drawn with ASCII on old terminals
    _, *parts = [" ".join(part.split()) for part in re.split(r"[─-]{3,}", inside)]
    said = [part for part in parts if part and not part.startswith("For full helptext")]
    if not said:
        return " ".join(plain.split())
    text = f"{said[0].rstrip('.')}."
    for part in said[1:]:
        if part.startswith("Argument helptext: "):
            option, *words = part.removeprefix("Argument helptext: ").split()
            kinds = itertools.takewhile(lambda word: re.fullmatch(r"[\[{]*([A-Z]{2,}|\.{3}).*", word), words)
            text += f" It is used as {' '.join([option, *kinds])}."
        elif part.startswith("Perhaps you meant"):
            known = re.findall(r"--[\w.-]+", part)
            nearest = difflib.get_close_matches(_first_option(text), known, n=1, cutoff=0.0)
            text += f" Did you mean {nearest[0]}?" if nearest else ""
    return text


def _about_flags(text: str, arguments: list[str]) -> str:
    """What to do where a value follows an option that takes none."""
    found = re.fullmatch(r"Unrecognized options: (true|false|yes|no|on|off|0|1)\.", text, re.IGNORECASE)
    for option, word in itertools.pairwise(arguments):
        if found and word == found[1] and option.startswith("--"):
            group, dot, name = option.removeprefix("--").rpartition(".")
            return f" {option} takes no value; --{group}{dot}no-{name} switches it off."
    return ""


def _first_option(text: str) -> str:
    found = re.search(r"--[\w.-]+", text)
    return found[0].rstrip(".") if found else ""
