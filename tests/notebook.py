"""Runs the code cells of a notebook in order, in one namespace.

python tests/notebook.py docs/tutorial.ipynb    runs it in a temporary folder and stores what the cells print
"""

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any


def run_notebook(notebook: dict[str, Any], name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each code cell with what it printed. The namespace becomes the module `name`."""
    module = ModuleType(name)
    sys.modules[name] = module
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), module.__dict__)
            yield cell, printed.getvalue()


def store_outputs(path: Path) -> None:
    """Run a notebook and store the text of its cells in it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for count, (cell, text) in enumerate(run_notebook(notebook, "notebook_cells"), start=1):
            cell["execution_count"] = count
            lines = text.splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    store_outputs(Path(sys.argv[1]).resolve())
