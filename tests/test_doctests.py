"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import fedpohcs

SOURCE = Path(fedpohcs.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_the_examples_of_a_module_work(path: Path) -> None:
    module = importlib.import_module(".".join(("fedpohcs", *path.relative_to(SOURCE).with_suffix("").parts)))
    failed, attempted = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert attempted > 0
    assert failed == 0


def test_every_area_with_small_functions_has_examples() -> None:
    areas = {path.relative_to(SOURCE).parts[0] for path in MODULES}
    assert {"analysis", "core", "learners", "server", "worlds"} <= areas
