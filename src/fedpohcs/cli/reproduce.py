"""The paper's figures and tables by their LaTeX labels: what each needs, and how it is drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require_known
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import PRESETS

FOUR = ("fedavg", "power-of-choice", "gradient-norm", "fedpohcs")
LEVELS = ("low", "medium", "high")
QUICK_ROUNDS = 5


@dataclass(frozen=True)
class FigureOfRuns:
    """A figure of the results of runs of a preset."""

    title: str
    preset: str
    draw: str  # function of `analysis.figures`
    selectors: tuple[str, ...] = FOUR
    levels: tuple[str, ...] = ("medium",)
    rounds: int = 500
    seeds: int = 3

    def runs(self, out: Path, quick: bool) -> dict[Path, ExperimentConfig]:
        """The runs it needs. Figures of one preset share them."""
        found = {}
        for level in self.levels:
            for selector in self.selectors:
                config = replace(preset(self.preset, level, selector), rounds=QUICK_ROUNDS if quick else self.rounds)
                for seed in range(1 if quick else self.seeds):
                    folder = out / ("quick" if quick else "runs") / self.preset / level / selector / f"seed-{seed}"
                    found[folder] = replace(config, seed=seed)
        return found

    def missing(self) -> str:
        """Why the figure cannot be drawn here; empty if it can."""
        if self.preset not in PRESETS:
            return f"the world of {self.preset} is not built yet"
        from fedpohcs.worlds import world_class

        try:
            world_class(PRESETS[self.preset]().world)
        except (UserError, ImportError) as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class TableOfSettings:
    """A table of hyperparameters, read from the presets that runs use."""

    title: str
    presets: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]  # heading, key in the config
    by_selector: bool  # columns are selectors; else rows are presets

    def missing(self) -> str:
        """The presets that are not built yet; empty if all are."""
        return ", ".join(f"{name} is not built yet" for name in self.presets if name not in PRESETS)


@dataclass(frozen=True)
class FigureOfTheory:
    """A figure computed from tabular federations, without training."""

    title: str
    name: str  # in `theory.figures`

    def missing(self) -> str:
        """Always empty: the figure can be drawn everywhere."""
        return ""


LEARNER_ROWS = (
    ("Learning Rate", "learner.learning_rate"),
    ("Learning Rate Decay", "learner.learning_rate_decay"),
    ("Batch Size", "learner.batch_size"),
    ("Timestep per Iteration", "learner.steps_per_iteration"),
    ("Number of Epochs (E)", "learner.epochs"),
    ("Discount Factor (gamma)", "learner.discount"),
    ("Discount Factor for GAE", "learner.gae_discount"),
    ("KL Target", "learner.kl_target"),
)
FEDERATION_ROWS = (
    ("#Client (N)", "federation.num_clients"),
    ("#Candidate (d)", "federation.num_candidates"),
    ("#Participant (K)", "federation.num_selected"),
    ("#Local Iteration (I)", "learner.local_iterations"),
)
_CARS = "mountain-cars-paper"

EXHIBITS: dict[str, FigureOfRuns | FigureOfTheory | TableOfSettings] = {
    "errorbound": FigureOfTheory("The error bound of FAPI, from a computed instance", "error-bound"),
    "mcc": FigureOfRuns(
        "Mountain Cars, medium heterogeneity, with the one-phase variant",
        _CARS,
        "return_by_round",
        (*FOUR, "fedpohcs-one-phase"),
    ),
    "hoppers": FigureOfRuns("Hoppers, medium heterogeneity", "hoppers", "return_by_round", rounds=100),
    "osm": FigureOfRuns("HongKongOSMs", "hongkong", "return_by_round", levels=("areas",), rounds=100),
    "client_participant_ratio": FigureOfRuns(
        "Mountain Cars: how often each client is selected, and the return it gets in the end",
        _CARS,
        "participation",
        ("fedpohcs", "fedavg", "power-of-choice"),
    ),
    "mcc_level_hete": FigureOfRuns(
        "Mountain Cars, low, medium and high heterogeneity", _CARS, "return_by_round", levels=LEVELS
    ),
    "hopper_level_hete": FigureOfRuns(
        "Hoppers, low, medium and high heterogeneity", "hoppers", "return_by_round", levels=LEVELS, rounds=100
    ),
    "table:1": TableOfSettings("Hyperparameters on Mountain Cars", (_CARS,), LEARNER_ROWS, by_selector=True),
    "table:2": TableOfSettings("Hyperparameters on Hoppers", ("hoppers",), LEARNER_ROWS, by_selector=True),
    "table:3": TableOfSettings("Hyperparameters on HongKongOSMs", ("hongkong",), LEARNER_ROWS, by_selector=True),
    "table:4": TableOfSettings(
        "General setting", ("mountain-cars", "hoppers", "hongkong"), FEDERATION_ROWS, by_selector=False
    ),
}
ALIASES = {"client_partitipant_ratio": "client_participant_ratio"}
"""The paper's own spelling."""


def list_exhibits() -> None:
    """Print every figure and table with its cost, or why it cannot be made here."""
    for name, exhibit in EXHIBITS.items():
        reason = exhibit.missing()
        size = "a table of settings" if isinstance(exhibit, TableOfSettings) else "nothing to train"
        if isinstance(exhibit, FigureOfRuns):
            size = f"{len(exhibit.levels) * len(exhibit.selectors) * exhibit.seeds} runs of {exhibit.rounds} rounds"
        print(f"  {name:<26}{exhibit.title} ({reason or size})")


def reproduce_exhibit(name: str, out: Path, *, quick: bool, jobs: int | None) -> None:
    """Run what is missing and draw the figure, or print the table."""
    name = ALIASES.get(name, name)
    require_known("exhibit", name, EXHIBITS)
    exhibit = EXHIBITS[name]
    reason = exhibit.missing()
    if reason:
        raise UserError(f"exhibit (={name!r}) cannot be reproduced here: {reason}")
    if isinstance(exhibit, TableOfSettings):
        return print_settings(exhibit)
    from fedpohcs.analysis.figures import save_figure

    figure = (
        _draw_theory(exhibit.name) if isinstance(exhibit, FigureOfTheory) else _run_and_draw(exhibit, out, quick, jobs)
    )
    picture = out / f"{name}{'-quick' if quick else ''}.png"
    save_figure(figure, picture)
    print(picture)


def _draw_theory(name: str) -> Any:
    """A figure of the theory."""
    from fedpohcs.theory.figures import draw

    return draw(name)


def _run_and_draw(exhibit: FigureOfRuns, out: Path, quick: bool, jobs: int | None) -> Any:
    from fedpohcs.analysis import figures
    from fedpohcs.analysis.groups import load_groups
    from fedpohcs.cli.compare import run_all

    runs = exhibit.runs(out, quick)
    run_all(runs, out, jobs=jobs)
    draw: Callable[[Sequence[Any]], Any] = getattr(figures, exhibit.draw)
    return draw(load_groups(list(runs)))


def print_settings(table: TableOfSettings) -> None:
    """Print the table with the values of the presets."""
    from rich.console import Console
    from rich.table import Table

    from fedpohcs.core.config import flat_dict

    if table.by_selector:
        columns = {selector: flat_dict(preset(table.presets[0], None, selector)) for selector in reversed(FOUR)}
    else:
        columns = {name: flat_dict(preset(name)) for name in table.presets}
    drawn = Table(title=table.title)
    drawn.add_column("", no_wrap=True)
    for name in columns:
        drawn.add_column(name, justify="right", no_wrap=True)
    for heading, key in table.rows:
        drawn.add_row(heading, *(str(values[key]) for values in columns.values()))
    # As wide as the names need, also where the output is no terminal and Rich assumes 80 columns.
    Console(width=max(Console().width, Console(width=1000).measure(drawn).maximum)).print(drawn)
