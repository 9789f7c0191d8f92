"""The package as an index would get it: built, checked, and installed where nothing else of the repository is."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
BUILD = "import sys; import hatchling.build as build; build.build_sdist(sys.argv[1]); build.build_wheel(sys.argv[1])"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def description(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(name).decode()


def test_the_metadata_of_the_wheel_are_valid_and_complete(description: str) -> None:
    found = Metadata.from_email(description, validate=True)
    assert found.name == "fedpohcs"
    assert found.summary == PROJECT["description"]
    assert found.license_expression == "MIT" and found.license_files == ["LICENSE"]
    assert found.description_content_type == "text/markdown"
    assert {"flower", "gym", "mujoco", "privacy", "sumo"} <= set(found.provides_extra or ())
    assert str(found.requires_python) == ">=3.11"


def test_the_description_is_the_readme_without_links_that_only_a_clone_can_follow(description: str) -> None:
    text = email.message_from_string(description).get_payload()
    assert isinstance(text, str)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.lstrip().startswith("# fedpohcs\n")
    assert [line for line in readme.splitlines() if line.startswith("#")] == [
        line for line in text.splitlines() if line.startswith("#")
    ]
    assert text.count("```") == readme.count("```")


def test_relative_links_become_absolute_where_the_address_of_the_files_is_known() -> None:
    names: dict = {}
    exec(compile((ROOT / "hatch_build.py").read_text(encoding="utf-8"), "hatch_build.py", "exec"), names)
    text = "![cars](docs/a.gif)\n[one](docs/b.md#c), [two](https://example.org), [three](#here)"
    assert names["describe"](text, "") == "one, [two](https://example.org), [three](#here)"
    assert names["describe"](text, "https://example.org/files/") == (
        "![cars](https://example.org/files/docs/a.gif)\n[one](https://example.org/files/docs/b.md#c), "
        "[two](https://example.org), [three](#here)"
    )


def test_the_source_distribution_has_what_its_tests_and_docs_need_and_nothing_that_was_made(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "Makefile", "mkdocs.yml", "hatch_build.py", "docs/tutorial.ipynb"} <= names
    assert "examples/newcomer.py" in names and "src/fedpohcs/analysis/page/report.html" in names
    assert not [name for name in names if name.startswith((".venv", "runs/", "site/")) or "__pycache__" in name]


def test_every_extra_that_a_text_names_exists_and_is_installed_in_the_same_way_everywhere() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), ROOT / "Makefile"]
    texts += [*(ROOT / "examples").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"pip install '\.\[", text), path
        for extra in re.findall(r"pip install 'fedpohcs\[([\w,-]+)\]'", text):
            assert set(extra.split(",")) <= set(PROJECT["optional-dependencies"]), path


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    place, work = tmp_path / "installed", tmp_path / "empty"
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(place), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(place)}  # before the editable package of the repository

    def run(*arguments: str) -> str:
        command = [sys.executable, "-P", *arguments]
        return subprocess.run(command, cwd=work, env=environment, check=True, capture_output=True, text=True).stdout

    assert Path(run("-c", "import fedpohcs; print(fedpohcs.__file__)").strip()).is_relative_to(place)
    run("-m", "fedpohcs", "train", "tabular", "--rounds", "1", "--out", "run")
    run("-m", "fedpohcs", "report", "run", "-o", "report.html")
    assert "Return by round" in (work / "report.html").read_text(encoding="utf-8")
    assert (place / "bin" / "fedpohcs").is_file()
