"""What each command reads, as dataclasses: tyro makes the parser and the help texts of them."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Fixed, Positional, Suppress, UseAppendAction, arg

from fedpohcs.core.config import ExperimentConfig, Placement
from fedpohcs.core.errors import UserError, require
from fedpohcs.execution.cluster import ClusterSettings


@dataclass(frozen=True)
class RunSettings(ExperimentConfig):
    """The settings of one run. The preset decides the world."""

    world: Suppress[Fixed[str]] = "mountain-cars"


@dataclass(frozen=True)
class SharedSettings(RunSettings):
    """The settings of all compared runs. Level, algorithm, selector and seed vary from run to run."""

    level: Suppress[Fixed[str]] = "medium"
    selector: Suppress[Fixed[str]] = "fedpohcs"
    algorithm: Suppress[Fixed[str | None]] = None
    seed: Suppress[Fixed[int]] = 0


@dataclass(frozen=True)
class TrainOptions:
    """`fedpohcs train`."""

    config: Annotated[RunSettings, arg(name="")]
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    out: Path | None = None
    """Run folder to write. None: runs/PRESET/LEVEL/NAME/seed-SEED; the algorithm or else the selector is the name."""
    config_file: Annotated[Path | None, arg(name="config")] = None
    """TOML file with the settings, in place of a preset; see `fedpohcs config`."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Any setting by its name in a file: learner.learning_rate=0.01. May be repeated; options override it."""
    log: str | None = None
    """Further loggers, joined by commas: tensorboard, wandb, mlflow."""
    ray: ClusterSettings = field(default_factory=ClusterSettings)
    overwrite: bool = False
    """Replace the run that is in the folder."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints, from which `fedpohcs resume` goes on. 0: none."""
    json: bool = False
    """Print one JSON object per round, and nothing else, to the standard output."""
    quiet: bool = False
    """Print nothing but errors."""
    keep: str = "best"
    """Policies to keep besides the last, joined by commas: best, by mean return; best:worst_tenth or another column of
    rounds.csv; every:20, those of every 20th round."""


@dataclass(frozen=True)
class ResumeOptions:
    """`fedpohcs resume`."""

    run: Positional[Path]
    """Run folder."""
    rounds: int | None = None
    """Total number of rounds. None: the number in the config of the run."""
    executor: Literal["sharded", "ray"] | None = None
    """Where the clients of a run with one of these executors go on: here, or on a cluster. None: as in its config."""
    ray: ClusterSettings = field(default_factory=ClusterSettings)
    log: str | None = None
    """Further loggers, joined by commas: tensorboard, wandb, mlflow."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints. 0: none."""
    json: bool = False
    """Print one JSON object per round, and nothing else, to the standard output."""
    quiet: bool = False
    """Print nothing but errors."""
    keep: str = "best"
    """Policies to keep besides the last, as for train."""


@dataclass(frozen=True)
class CompareOptions:
    """`fedpohcs compare`."""

    config: Annotated[SharedSettings, arg(name="")]
    out: Path
    """Folder for the runs, the table, the figures and the report."""
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    selectors: str = "fedavg,power-of-choice,gradient-norm,fedpohcs"
    """Names, joined by commas; see `fedpohcs list`. `fedavg+momentum` is a selector with a server optimiser."""
    algorithms: str | None = None
    """Algorithms, joined by commas, in place of selectors: fedavg,fedprox. `fedprox+fedpohcs` is one with another
    selector. The name of a selector stands for the selector alone."""
    seeds: str = "0,1,2"
    """Whole numbers and ranges such as 10-12, joined by commas."""
    levels: str | None = None
    """Levels of heterogeneity, joined by commas. None: the preset's own."""
    config_file: Annotated[Path | None, arg(name="config")] = None
    """TOML file with the settings, in place of a preset; see `fedpohcs config`."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Any setting by its name in a file: learner.learning_rate=0.01. May be repeated; options override it."""
    overwrite: bool = False
    """Run everything anew. Without it, runs that are complete are kept and others go on where they stopped."""
    jobs: int | None = None
    """Runs at the same time, each in a process with its own cores. 1: one after the other, in this process. None: as
    many as there are cores."""
    log: str | None = None
    """Further loggers of every run, joined by commas: tensorboard, wandb, mlflow."""
    json: bool = False
    """Print one JSON object per round with the name of its run, and nothing else, to the standard output."""
    quiet: bool = False
    """Print nothing but errors; the results are in the folder."""
    backend: Literal["local", "ray"] = "local"
    """Where they run: in processes of this machine, or on a Ray cluster that shares its disk."""


@dataclass(frozen=True)
class CompareFoldersOptions:
    """`fedpohcs compare` of existing runs."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some."""
    out: Path
    """Folder for the table, the figures and the report."""


@dataclass(frozen=True)
class ReproduceOptions:
    """`fedpohcs reproduce`."""

    exhibit: Positional[str | None] = None
    """LaTeX label of a figure or table of the paper. None: list them."""
    out: Path = Path("runs/paper")
    """Folder for the runs, which several figures share, and the figures."""
    quick: bool = False
    """Few rounds and one seed: tests the procedure, not the result."""
    jobs: int | None = None
    """Runs at the same time. None: as many as there are cores."""


@dataclass(frozen=True)
class ConfigOptions:
    """`fedpohcs config`."""

    config: Annotated[RunSettings, arg(name="")]
    config_file: Annotated[Path | None, arg(name="config")] = None
    """TOML file to start from, in place of a preset."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Any setting by its name in a file: learner.learning_rate=0.01. May be repeated; options override it."""


@dataclass(frozen=True)
class PlotOptions:
    """`fedpohcs plot`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some."""
    output: Annotated[Path, arg(aliases=("-o",))] = Path("curves.png")
    """File to write; the ending names the format: png, svg or pdf."""
    kind: Literal["curves", "participation", "gains"] = "curves"
    """Return by round, or selections and final return of each client, or what each client gains over training alone."""
    against: str = "rounds"
    """Of curves: rounds, million training steps, minutes, megabytes or, where time is simulated, simulated hours."""


@dataclass(frozen=True)
class TableOptions:
    """`fedpohcs table`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some."""
    reference: str | None = None
    """Differences are taken to this selector. None: fedavg, or else the first."""
    thresholds: str | None = None
    """Mean returns worth reaching, joined by commas: 0,25,50. None: the world's own, or else from the runs."""
    windows: str | None = None
    """More ranges of rounds to average over, joined by commas: 0-50,91-100."""
    format: Literal["text", "markdown", "latex", "csv"] = "text"
    rows: tuple[str, ...] = ()
    """Show only rows whose name holds one of these texts: "last 10 rounds" "worst tenth". Not for csv. None: all."""
    names: tuple[str, ...] = ()
    """Names to show in place of those of selectors: fedpohcs=FedPOHCS."""
    bold: bool = False
    """Set the best estimate of each row in bold, in latex. It says nothing about how sure the difference is."""
    label: str = "tab"
    """Prefix of the labels of latex tables: tab:WORLD-LEVEL-means."""


@dataclass(frozen=True)
class ReportOptions:
    """`fedpohcs report`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some."""
    output: Annotated[Path, arg(aliases=("-o",))] = Path("report.html")
    """File to write."""
    title: str = "Client selection compared"
    thresholds: str | None = None
    """Mean returns worth reaching, joined by commas: 0,25,50. None: the world's own, or else from the runs."""


@dataclass(frozen=True)
class WatchOptions:
    """`fedpohcs watch`."""

    runs: Positional[tuple[Path, ...]]
    """Run folders, or folders that hold some; they may still be training."""
    port: int = 0
    """Port on this machine. 0: any that is free."""
    title: str = "Client selection, live"
    thresholds: str | None = None
    """Mean returns worth reaching, joined by commas: 0,25,50. None: the world's own, or else from the runs."""


@dataclass(frozen=True)
class ExportOptions:
    """`fedpohcs export`."""

    run: Positional[str]
    """Run folder, running or done; after an @ which policy: RUN@best, RUN@best:worst_tenth, RUN@120. Without: the
    last."""
    output: Positional[Path]
    """File to write; the ending names the format: npz or onnx."""
    client: int | None = None
    """Client whose observation filter becomes part of an onnx file, counted from 0. None: the filter of a device that
    never trained, pooled over all clients."""
    sample: bool = False
    """Let an onnx file draw actions as in training. Without: the most likely action."""
    card: bool = False
    """Write a model card beside the file, README.md: YAML and Markdown as on the Hugging Face Hub. Nothing is sent."""


@dataclass(frozen=True)
class PlayOptions:
    """`fedpohcs play`."""

    run: Positional[str]
    """Run folder, and after an @ which policy, as for export; or `hongkong`, which has options of its own: a drive
    through any area, by a policy or by IDM."""
    client: int | None = None
    """Client in whose world the policy plays, counted from 0. None: an episode with every client."""
    beside: str | None = None
    """Without --client, another policy of the same clients to draw beside the first: RUN@0 is the one before
    training."""
    episodes: int = 5
    seed: int = 0
    """Seed of the start states and of the policy's draws."""
    greedy: bool = False
    """Take the most likely action instead of drawing one."""
    output: Annotated[Path | None, arg(aliases=("-o",))] = None
    """GIF to write. None: RUN/client-N.gif or RUN/clients.gif, where the world can be drawn."""


@dataclass(frozen=True)
class EvaluateOptions:
    """`fedpohcs evaluate`."""

    run: Positional[str]
    """Run folder, and after an @ which policy, as for export."""
    level: str | None = None
    """Level of heterogeneity. None: that of the run."""
    clients: int | None = None
    """Number of clients, spread over the level as its world does it. None: as many as in the run."""
    held_out: int | None = None
    """Further clients, whose worlds nobody trained in. None: as many as in the run."""
    placement: Placement | None = None
    """Where the worlds of the further clients lie: between those of the others, or beyond their range. None: as in the
    run."""
    episodes: int | None = None
    """Episodes per client. None: as many as in the evaluations of the run."""
    seed: int = 0
    """Seed of the episodes."""
    finetune: int = 0
    """Local iterations that every client trains alone before it plays, from the stored policy. 0: none."""
    output: Annotated[Path | None, arg(aliases=("-o",))] = None
    """CSV file to write, with a row per client. None: none."""


@dataclass(frozen=True)
class ListOptions:
    """`fedpohcs list` has no options."""


def check_table(given: TableOptions) -> None:
    """Refuse options that the format of a table does not have."""
    require(not (given.rows and given.format == "csv"), "rows", given.rows, "cannot go with csv, which has them all")
    require(not given.bold or given.format == "latex", "bold", given.bold, "is for --format latex")
    rule = "must be letters, digits, hyphens and colons"
    require(re.fullmatch(r"[\w:.-]+", given.label) is not None, "label", given.label, rule)


def display_names(texts: tuple[str, ...]) -> dict[str, str]:
    """The names to show, by the names they replace."""
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, shown) in zip(texts, pairs, strict=True):
        require(bool(name and equals and shown), "names", text, "must be NAME=SHOWN, such as fedpohcs=FedPOHCS")
    return {name: shown for name, _, shown in pairs}


def thresholds(text: str | None) -> tuple[float, ...] | None:
    """The numbers of a list joined by commas, ascending and each once."""
    if text is None:
        return None
    try:
        numbers = {float(part) for part in text.split(",")}
    except ValueError:
        raise UserError(f"thresholds (={text!r}) must be numbers joined by commas.") from None
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"thresholds (={text!r}) must be finite numbers.")
    return tuple(sorted(numbers))


def windows(text: str | None) -> tuple[tuple[int, int], ...]:
    """The ranges of a list such as 0-50,91-100."""
    found = []
    for part in text.split(",") if text is not None else []:
        matched = re.fullmatch(r"\s*(\d+)-(\d+)\s*", part)
        if matched is None or int(matched[1]) > int(matched[2]):
            raise UserError(f"windows (={text!r}) must be ranges of rounds joined by commas, such as 0-50,91-100.")
        found.append((int(matched[1]), int(matched[2])))
    return tuple(found)
