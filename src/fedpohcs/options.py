"""What each command reads, as dataclasses: tyro makes the parser and the help texts of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Fixed, Positional, Suppress, arg

from fedpohcs.config import ExperimentConfig


@dataclass(frozen=True)
class RunSettings(ExperimentConfig):
    """The settings of one run. The preset decides the world."""

    world: Suppress[Fixed[str]] = "mountain-cars"


@dataclass(frozen=True)
class SharedSettings(RunSettings):
    """The settings of all compared runs. Level, selector and seed vary from run to run."""

    level: Suppress[Fixed[str]] = "medium"
    selector: Suppress[Fixed[str]] = "fedpohcs"
    seed: Suppress[Fixed[int]] = 0


@dataclass(frozen=True)
class TrainOptions:
    """`fedpohcs train`."""

    config: Annotated[RunSettings, arg(name="")]
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    out: Path | None = None
    """Run folder to write. None: runs/PRESET/LEVEL/SELECTOR/seed-SEED."""
    overwrite: bool = False
    """Replace the run that is in the folder."""


@dataclass(frozen=True)
class CompareOptions:
    """`fedpohcs compare`."""

    config: Annotated[SharedSettings, arg(name="")]
    out: Path
    """Folder for the runs, the table, the figures and the report."""
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    selectors: str = "fedavg,power-of-choice,gradient-norm,fedpohcs"
    """Names, joined by commas; see `fedpohcs list`."""
    seeds: str = "0,1,2"
    """Whole numbers, joined by commas."""
    levels: str | None = None
    """Levels of heterogeneity, joined by commas. None: the preset's own."""
    overwrite: bool = False
    """Run everything anew. Without it, runs that are complete are kept."""


@dataclass(frozen=True)
class PlotOptions:
    """`fedpohcs plot`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some."""
    output: Annotated[Path, arg(aliases=("-o",))] = Path("curves.png")
    """File to write; the ending names the format: png, svg or pdf."""
    kind: Literal["curves", "participation"] = "curves"
    """Return by round, or who was selected and what each client reached."""


@dataclass(frozen=True)
class TableOptions:
    """`fedpohcs table`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some."""
    reference: str | None = None
    """Differences are taken to this selector. None: fedavg, or else the first."""
    format: Literal["text", "markdown", "csv"] = "text"


@dataclass(frozen=True)
class ReportOptions:
    """`fedpohcs report`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some."""
    output: Annotated[Path, arg(aliases=("-o",))] = Path("report.html")
    """File to write."""
    title: str = "Client selection compared"


@dataclass(frozen=True)
class ListOptions:
    """`fedpohcs list` has no options."""
