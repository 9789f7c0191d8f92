"""Configs as TOML files, with an explanation above each key. Errors in a file are reported by key."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Any

from fedpohcs.core.algorithms import under_settings, with_algorithm
from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.learning import default_learner, kept_across_kinds
from fedpohcs.core.presets import preset
from fedpohcs.core.reading import parse_toml, read_settings

MOST_FILES = 8  # that extend each other


def to_toml(config: ExperimentConfig) -> str:
    """The whole config as TOML; a comment above each key explains it.

    Example:
        >>> from fedpohcs import preset
        >>> to_toml(preset("tabular")).splitlines()[:2]
        ['world = "tabular"', '# Level of heterogeneity; every world names its own.']
    """
    return "\n".join(_section(config)) + "\n"


def read_toml(
    path: Path, level: str | None = None, selector: str | None = None, algorithm: str | None = None
) -> ExperimentConfig:
    """The config in a file.

    `extends = "other.toml"`, relative to the file, or `extends = "mountain-cars"`, a preset, names what it changes.
    Keys that are in none of them have the value of the file's algorithm, or the default of their class.

    Args:
        path: the file.
        level: in place of the one in the file. A preset that it extends may adapt other settings to it.
        selector: likewise.
        algorithm: whose settings take the place of those of the file.
    """
    layers, base = _layers(path)
    chosen: dict[str, Any] = {name: x for name, x in (("level", level), ("selector", selector)) if x is not None}
    try:
        config = _on_base(functools.reduce(overlay, [*reversed(layers), chosen]), base)
        return config if algorithm is None else dataclasses.replace(with_algorithm(config, algorithm), **chosen)
    except UserError as error:
        raise UserError(f"config (={str(path)!r}): {error}") from error


def _on_base(values: dict[str, Any], base: str | None) -> ExperimentConfig:
    """The config of a file's settings, on a preset or on the defaults."""
    named = {name: values[name] for name in ("level", "selector", "algorithm") if isinstance(values.get(name), str)}
    if base is not None:
        values = overlay(to_dict(preset(base, **named)), values)
    elif "algorithm" in named:
        values = under_settings(named["algorithm"], values)
    return from_dict(values)


def _layers(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The tables of a file and of those that it extends, the file itself first; and the preset below them all."""
    seen: list[Path] = []
    layers: list[dict[str, Any]] = []
    while True:
        require(path.resolve() not in seen, "extends", str(path), "leads back to a file that extends it")
        require(
            len(seen) < MOST_FILES, "extends", str(path), f"is one file too many: at most {MOST_FILES} may be chained"
        )
        seen.append(path.resolve())
        layers.append(_read_table(path))
        extends = layers[-1].pop("extends", None)
        if extends is None:
            return layers, None
        require(isinstance(extends, str), "extends", extends, f"in {path} must be the name of a file or of a preset")
        if not extends.endswith(".toml"):
            return layers, extends
        path = path.parent / extends


def _read_table(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_settings(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"config (={str(path)!r}) cannot be read: {reason}.") from error
    except ValueError as error:
        raise UserError(f"config (={str(path)!r}) is not TOML: {error}.") from error


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Settings with those of `above` in place of those of `below`, key by key.

    Another world brings its own scenario. Another kind of learner keeps what all kinds share.
    """
    merged = dict(below)
    if above.get("world", below.get("world")) != below.get("world"):
        merged.pop("scenario", None)
    for key, value in above.items():
        old = merged.get(key)
        if not (isinstance(old, dict) and isinstance(value, dict)):
            merged[key] = value
            continue
        kind = old.get("kind", default_learner().kind)
        if key == "learner" and value.get("kind", kind) != kind:
            old = {name: old[name] for name in kept_across_kinds(kind, value["kind"]) if name in old}
        merged[key] = overlay(old, value)
    return merged


def parse_assignment(text: str) -> dict[str, Any]:
    """The nested settings of `section.key=value`. The value is written as in TOML, or None; text needs no quotes.

    Example:
        >>> parse_assignment("learner.hidden_sizes=[32, 32]"), parse_assignment("selector=fedavg")
        ({'learner': {'hidden_sizes': [32, 32]}}, {'selector': 'fedavg'})
    """
    key, equals, value = text.partition("=")
    parts = [part.strip().replace("-", "_") for part in key.split(".")]
    rule = "must be KEY=VALUE, such as learner.learning_rate=0.01"
    require(bool(equals) and all(part.isidentifier() for part in parts) and len(parts) <= 2, "set", text, rule)
    settings: Any = parse_value(value.strip())
    for part in reversed(parts):
        settings = {part: settings}
    return settings


def parse_value(text: str) -> Any:
    """A value of TOML, or None, or the text itself where it is neither."""
    if text == "None":
        return None
    try:
        return parse_toml(f"value = {text}")["value"] if "\n" not in text else text
    except ValueError:
        return text


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
