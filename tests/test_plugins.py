"""Names that other installed packages bring along."""

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from dataclasses import replace
from fedpohcs import preset
from fedpohcs.envs.tabular import TabularWorlds
from fedpohcs.selection import fedavg


class Twin(TabularWorlds):
    \\"\\"\\"The tabular world under another name.\\"\\"\\"


def coin():
    \\"\\"\\"At random, like fedavg.\\"\\"\\"
    return fedavg()


def twin(level="low", selector="coin"):
    \\"\\"\\"A few clients of the twin.\\"\\"\\"
    return replace(preset("tabular", level=level), world="twin", selector=selector)
"""
ENTRIES = """
[fedpohcs.worlds]
twin = their_package:Twin
tabular = their_package:Twin
[fedpohcs.selectors]
coin = their_package:coin
[fedpohcs.presets]
twin = their_package:twin
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of installed packages that holds one with entry points."""
    (tmp_path / "their_package.py").write_text(MODULE.replace('\\"', '"'))
    folder = tmp_path / "their_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(ENTRIES)
    return tmp_path


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); from fedpohcs.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=installed, timeout=300)


def test_entry_points_add_worlds_selectors_and_presets_and_replace_none(installed: Path) -> None:
    listed = run(installed, "list").stdout
    assert "twin                  The tabular world under another name." in listed
    assert "coin                  At random, like fedavg." in listed
    assert "tabular               N clients that share states" in listed
    trained = run(installed, "train", "twin", "--rounds", "1", "--out", "run")
    assert trained.returncode == 0, trained.stderr
    assert '"selector": "coin"' in (installed / "run" / "config.json").read_text()


def test_a_plugin_that_cannot_be_loaded_is_named_with_its_package(installed: Path) -> None:
    (installed / "their_package.py").write_text("raise RuntimeError('half installed')")
    broken = run(installed, "list")
    assert broken.returncode == 2
    assert "fedpohcs.selectors 'coin' (='their_package:coin') of their-package cannot be loaded" in broken.stderr
    assert "half installed" in broken.stderr
