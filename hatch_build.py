"""The description for a package index: the README, without links and pictures that work in the repository alone.

`[tool.hatch.metadata.hooks.custom] files` in pyproject.toml is the address below which the files of the repository can
be read, if there is one. Relative links then become absolute. Without an address they become plain text, because an
index would show them as broken links.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)\s]+\)\n*")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")


class Description(MetadataHookInterface):
    """Fills in `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for every wheel and source distribution."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": describe(text, self.config.get("files", ""))}


def describe(readme: str, files: str) -> str:
    """The README for readers who do not have the repository.

    Example:
        >>> describe("See [the docs](docs/index.md).", "")
        'See the docs.'
        >>> describe("See [the docs](docs/index.md).", "https://example.org/files")
        'See [the docs](https://example.org/files/docs/index.md).'
    """
    if not files:
        return LINK.sub(r"\1", PICTURE.sub("", readme))
    base = files.rstrip("/")
    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", rf"]({base}/\1)", readme)
