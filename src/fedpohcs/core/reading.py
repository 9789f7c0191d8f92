"""Reads text, JSON and TOML that anybody may have written: what is too large, too deep or no number is refused.

All errors are `ValueError` or `OSError`; the caller names the file.
"""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

LARGEST_SETTINGS = 4 * 2**20  # bytes of a file of settings; a weight for each of 65,535 clients needs 2 MB
DEEPEST = 32  # levels of lists and tables within each other; a config has 3
LONGEST_KEY = 8  # parts of a dotted key; parsing takes quadratic time

# What is not closed ends with the file or line. Otherwise the search for its end would begin again at every quote.
_QUOTED_OR_COMMENT = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?'
    r"|'''(?:[^']|'(?!''))*+(?:''')?"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?'
    r"|'[^'\n]*+'?|#[^\n]*+",
    re.DOTALL,
)
_DOTTED_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{LONGEST_KEY},}}")


def read_settings(path: Path) -> str:
    """The text of a file of settings."""
    size = path.stat().st_size
    if size > LARGEST_SETTINGS:
        raise ValueError(f"{path.name} has {size} bytes, more than {LARGEST_SETTINGS}")
    return path.read_text(encoding="utf-8")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. What is not a number (NaN, Infinity, 1e999) is None."""
    return _shallow(lambda: json.loads(text, parse_constant=lambda _: None, parse_float=_finite))


def parse_json_object(text: str | bytes) -> dict[str, Any]:
    """The value of a JSON text that must be an object."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__} in place of a JSON object")
    return found


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    if _DOTTED_KEY.search(_QUOTED_OR_COMMENT.sub(_placeholder, text)):
        raise ValueError(f"it has a key of more than {LONGEST_KEY} parts")
    return _shallow(lambda: tomllib.loads(text))


def _placeholder(found: re.Match[str]) -> str:
    """What stands for a comment or a text, so that dots in them are not counted."""
    return "" if found[0].startswith("#") else "x"


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _shallow(parse: Any) -> Any:
    """What `parse` gives, unless it is nested too deeply for code that calls itself for every level."""
    try:
        found = parse()
    except RecursionError as error:
        raise ValueError(f"it has more than {DEEPEST} levels") from error
    level = [found]
    for _ in range(DEEPEST):
        level = [inner for one in level if isinstance(one, (dict, list)) for inner in _inside(one)]
    if level:
        raise ValueError(f"it has more than {DEEPEST} levels")
    return found


def _inside(one: dict[str, Any] | list[Any]) -> list[Any]:
    return list(one.values()) if isinstance(one, dict) else one
