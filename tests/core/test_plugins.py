"""Names that other installed packages bring along."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fedpohcs
from fedpohcs.core.moved import MOVED

MODULE = """
from dataclasses import replace
from fedpohcs import preset
from fedpohcs.worlds.tabular import TabularWorlds
from fedpohcs.metrics.base import Metric, each
from fedpohcs.server.selection import by_score


class Twin(TabularWorlds):
    \\"\\"\\"The tabular world under another name.\\"\\"\\"


def luck(context, client):
    \\"\\"\\"A number that is drawn.\\"\\"\\"
    return hash((context.round_number, client)) % 100


LUCK = Metric(each(luck), reads=None)


def coin():
    \\"\\"\\"The luckiest candidates.\\"\\"\\"
    return by_score("luck", "luck", lambda question, metrics: {"luck": metrics.column("luck")})


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
[fedpohcs.metrics]
luck = their_package:LUCK
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


def test_entry_points_add_worlds_selectors_metrics_and_presets_and_replace_none(installed: Path) -> None:
    words = " ".join(run(installed, "list").stdout.split())
    assert "twin The tabular world under another name." in words
    assert "coin The luckiest candidates." in words
    assert "luck A number that is drawn." in words
    assert "tabular N clients that share states" in words
    trained = run(installed, "train", "twin", "--rounds", "1", "--out", "run")
    assert trained.returncode == 0, trained.stderr
    assert '"selector": "coin"' in (installed / "run" / "config.json").read_text()
    assert ",candidate,luck," in (installed / "run" / "clients.csv").read_text()


def test_a_plugin_that_cannot_be_loaded_is_named_with_its_package(installed: Path) -> None:
    (installed / "their_package.py").write_text("raise RuntimeError('half installed')")
    broken = run(installed, "list")
    assert broken.returncode == 2
    assert "world 'twin' (='their_package:Twin') cannot be loaded" in broken.stderr
    assert "half installed" in broken.stderr


def test_old_names_of_modules_give_the_new_modules_and_warn() -> None:
    for old, new in (
        ("config", "core.config"),
        ("envs.mountain_car", "worlds.mountain_car"),
        ("rounds", "server.round"),
    ):
        with pytest.warns(DeprecationWarning, match=f"fedpohcs.{old} has moved|fedpohcs.envs has moved"):
            moved = importlib.import_module(f"fedpohcs.{old}")
        assert moved is importlib.import_module(f"fedpohcs.{new}")
        assert moved.__spec__ is not None
        assert moved.__spec__.name == f"fedpohcs.{new}"


def test_every_old_name_leads_to_a_module() -> None:
    source = Path(fedpohcs.__file__).parent
    for new in MOVED.values():
        place = source.joinpath(*new.split("."))
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), new
