"""Shows notebooks as pages, and examples of docstrings as code. MkDocs and mkdocstrings call what is here by name."""

import json
import re
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.structure.files import File, Files


class DoctestExamples(Extension):
    """Let the reference show sections called `Example` as code: griffe knows the plural alone."""

    def on_object(self, *, obj: Object, **rest: Any) -> None:
        """Called for everything that has a docstring, before the docstring is read."""
        del rest
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add a Markdown page for every notebook; the notebook itself stays, for download."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = to_markdown(Path(str(notebook.abs_src_path)), notebook.src_uri.rpartition("/")[2])
        files.append(File.generated(config, notebook.src_uri.replace(".ipynb", ".md"), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Let links to a notebook lead to its page."""
    del rest
    own = page.file.src_uri.rpartition("/")[2].replace(".md", ".ipynb")
    return re.sub(r"\]\(([\w/.-]+)\.ipynb\)", lambda link: link[0] if own in link[0] else f"]({link[1]}.md)", markdown)


def to_markdown(path: Path, name: str) -> str:
    """The cells of a notebook one after the other, with the text that they printed."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first, *rest = (_cell_to_markdown(cell) for cell in cells)
    return "\n\n".join([first, f"This page is a notebook: [{name}]({name}).", *rest]) + "\n"


def _cell_to_markdown(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    printed = "".join(line for output in cell["outputs"] for line in output.get("text", []))
    return f"```python\n{source}\n```" + (f"\n\n```text\n{printed.rstrip()}\n```" if printed.strip() else "")
