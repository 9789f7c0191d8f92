"""Configs as TOML files, with an explanation above each key. Errors in a file are reported by key."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Any

from fedpohcs.core.algorithms import under_settings
from fedpohcs.core.config import ExperimentConfig, from_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.reading import parse_toml, read_settings


def to_toml(config: ExperimentConfig) -> str:
    """The whole config as TOML; a comment above each key explains it.

    Example:
        >>> from fedpohcs import preset
        >>> to_toml(preset("tabular")).splitlines()[:2]
        ['world = "tabular"', '# Level of heterogeneity; every world names its own.']
    """
    return "\n".join(_section(config)) + "\n"


def read_toml(path: Path) -> ExperimentConfig:
    """The config in a file. Keys that are missing have the value of its algorithm, or the default of their class."""
    try:
        values = parse_toml(read_settings(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"config (={str(path)!r}) cannot be read: {reason}.") from error
    except ValueError as error:
        raise UserError(f"config (={str(path)!r}) is not TOML: {error}.") from error
    try:
        if isinstance(name := values.get("algorithm"), str):
            values = under_settings(name, values)
        return from_dict(values)
    except UserError as error:
        raise UserError(f"config (={str(path)!r}): {error}") from error


def _section(config: Any, name: str = "") -> list[str]:
    """Plain keys first, then a table for each nested config, as TOML wants it."""
    help_texts = _help_texts(type(config))
    lines, tables = [], []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            if not dataclasses.fields(value):  # a world without settings
                continue
            tables += [
                "",
                f"[{field.name}]",
                *_comment(inspect.getdoc(type(value)) or ""),
                *_section(value, field.name),
            ]
            continue
        lines += _comment(help_texts.get(field.name, ""))
        lines.append(f"# {field.name} =" if value is None else f"{field.name} = {_literal(value)}")
    return lines + tables


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), 116)]


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    return repr(value)


def _character(one: str) -> str:
    """A character of a text in quotes; what a terminal does not print is written as its number."""
    if one in '"\\':
        return f"\\{one}"
    return one if one.isprintable() else f"\\U{ord(one):08x}"


def _help_texts(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass and of the classes it extends, by field."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= _own_help_texts(base) if dataclasses.is_dataclass(base) else {}
    return texts


def _own_help_texts(cls: type) -> dict[str, str]:
    """Help texts of the fields of the class itself; none if its source cannot be read."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    except (OSError, TypeError):
        return {}
    texts = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            texts[field.target.id] = str(below.value.value)  # type: ignore[union-attr]
    return texts
