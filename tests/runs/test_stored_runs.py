"""Runs that were stored once, made again with the present code.

On a processor of the family that made them, `rounds.csv` and `clients.csv` must be equal to the byte. XLA picks its
instructions by the processor, so the last digits differ between families: elsewhere numbers must agree to the
tolerance of `tests/stored/tolerances.json`, and ids and counts must still be equal.
"""

import json
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.cli import main

STORED = Path(__file__).parent / "stored"
SMALL = ["--federation.num-candidates", "6", "--federation.num-selected", "3"]
COMMANDS = {
    "tabular": ["tabular", "--rounds", "4"],
    "tabular-gradient-norm": [
        *("tabular", "--selector", "gradient-norm", "--rounds", "3"),
        *("--federation.evaluation-episodes", "16"),
    ],
    "mountain-cars": [
        *("mountain-cars", "--clients", "12", *SMALL, "--learner.filter-warmup-steps", "20000", "--rounds", "4"),
    ],
    "hoppers": [
        *("hoppers", "--clients", "4", "--federation.num-candidates", "3", "--federation.num-selected", "2"),
        *("--learner.local-iterations", "2", "--learner.filter-warmup-steps", "1000", "--modelling.episodes", "5"),
        *("--federation.evaluation-episodes", "3", "--rounds", "3"),
    ],
}


def processor_family() -> str:
    """Architecture, vendor, and whether there are 512-bit vectors."""
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.exists() else ""
    vendor = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("vendor_id")), "unknown")
    return f"{platform.machine()}-{vendor}" + ("-avx512" if "avx512f" in text else "")


def assert_same_table(made: Path, stored: Path) -> None:
    tolerances = json.loads((STORED / "tolerances.json").read_text(encoding="utf-8"))
    tolerance = tolerances.get(processor_family(), tolerances["other"])
    rows, wanted = (path.read_text(encoding="utf-8").splitlines() for path in (made, stored))
    rows = [",".join(row.split(",")[: wanted[0].count(",") + 1]) for row in rows]  # without columns that came later
    assert len(rows) == len(wanted)
    if tolerance == 0:
        assert rows == wanted, f"{stored} is not reproduced to the byte"
        return
    for row, other in zip(rows, wanted, strict=True):
        for cell, expected in zip(row.split(","), other.split(","), strict=True):
            if "." in expected:
                np.testing.assert_allclose(float(cell), float(expected), rtol=tolerance, err_msg=str(stored))
            else:
                assert cell == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stored_run_is_reproduced(name: str, tmp_path: Path) -> None:
    assert main(["train", *COMMANDS[name], "--out", str(tmp_path / "run")]) == 0
    for table in ("rounds.csv", "clients.csv"):
        assert_same_table(tmp_path / "run" / table, STORED / name / table)


@pytest.mark.parametrize(("name", "rounds"), [("resumed-one-phase", 4), ("resumed-masked", 3)])
def test_a_checkpoint_of_the_first_release_still_resumes(name: str, rounds: int, tmp_path: Path) -> None:
    """Written by 0.1.0 before types had registered names: one with tables and predictors, one of private clients."""
    run = shutil.copytree(STORED / name / "stopped", tmp_path / "run")
    assert main(["resume", str(run), "--rounds", str(rounds)]) == 0
    assert_same_table(run / "rounds.csv", STORED / name / "rounds.csv")
