"""`fedpohcs sweep`: a search for good settings."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from fedpohcs.cli.options import RunSettings
from fedpohcs.cli.settings import parse_experiment
from fedpohcs.cli.signals import stopped_by_signals
from fedpohcs.core.errors import printable

if TYPE_CHECKING:
    from fedpohcs.runs.sweeping import Outcome, Sweep


@dataclass(frozen=True)
class SweepOptions:
    """`fedpohcs sweep`."""

    config: Annotated[RunSettings, arg(name="")]
    search: UseAppendAction[tuple[str, ...]] = ()
    """A setting and its values: learner.learning_rate=1e-4..1e-1:log, learner.epochs=1..10, or values joined by commas.
    May be repeated."""
    space: Path | None = None
    """TOML file with settings and their values, each a list or a text as for --search."""
    trials: int = 20
    """Number of trials in all. Those that the folder has already count."""
    metric: Literal["mean_return", "weighted_return", "worst_tenth", "min_return", "max_return"] = "mean_return"
    """Column of rounds.csv to maximise."""
    window: int = 5
    """Number of latest evaluations whose mean is the score of a trial."""
    pruner: Literal["median", "halving", "none"] = "median"
    """Which trials are stopped early: those below the median of the others in the same round, those that successive
    halving drops, or none."""
    warmup: int | None = None
    """Rounds before a trial may be stopped. None: a fifth of its rounds."""
    sampler_seed: int = 0
    """Seed of what is proposed. The seed of every run is --seed."""
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    out: Path | None = None
    """Folder of the sweep; a sweep that stopped goes on there. None: runs/sweeps/PRESET."""
    config_file: Annotated[Path | None, arg(name="config")] = None
    """TOML file with the settings, in place of a preset; see `fedpohcs config`."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Any setting by its name in a file: learner.learning_rate=0.01. May be repeated; other options come after it."""
    quiet: bool = False
    """Print nothing but errors; the results are in the folder."""


def sweep(arguments: list[str]) -> None:
    """Search for good settings: many runs, each with settings that Optuna proposes; weak ones are stopped early."""
    given, config, folder = parse_experiment(SweepOptions, "sweep", sweep.__doc__, arguments)
    from fedpohcs.runs.sweeping import BEST, Sweep, find_optuna, parse_search, read_space, run_sweep

    find_optuna()
    search = (read_space(given.space) if given.space else {}) | parse_search(given.search)
    warmup = config.rounds // 5 if given.warmup is None else given.warmup
    chosen = Sweep(config, search, given.metric, given.window, given.pruner, warmup, given.sampler_seed)
    out = given.out or Path("runs") / "sweeps" / folder.parts[1]
    with stopped_by_signals(f"stopped; to go on: fedpohcs sweep {' '.join(arguments)}"):
        outcomes = run_sweep(
            chosen, out, given.trials, lambda one: None if given.quiet else print(_line(one), flush=True)
        )
    (out / "trials.csv").write_text(_csv(chosen, outcomes), encoding="utf-8", newline="\n")
    if not given.quiet:
        _print_table(chosen, outcomes)
        print(*(out / name for name in ("trials.csv", BEST) if (out / name).exists()), sep="\n")


def _line(one: "Outcome") -> str:
    values = "  ".join(f"{key} {_short(value)}" for key, value in one.values.items())
    return printable(
        f"trial {one.number}: {one.state} in round {one.rounds}, score {_short(one.score)}  {values}  {one.error}"
    )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_table(chosen: "Sweep", outcomes: "list[Outcome]") -> None:
    from fedpohcs.analysis.rendering import print_tables
    from fedpohcs.analysis.tables import Table

    ranked = sorted(
        outcomes, key=lambda one: (one.state != "complete", -one.score if math.isfinite(one.score) else math.inf)
    )
    rows = [
        (
            str(one.number),
            one.state,
            str(one.rounds),
            _short(one.score),
            *(_short(one.values.get(key)) for key in chosen.search),
        )
        for one in ranked
    ]
    config = chosen.config
    title = f"{config.world} ({config.level}), {config.method}: {len(outcomes)} trials, best first"
    note = (
        f"Score: {chosen.metric} of seed {config.seed}, mean of the latest {chosen.window} evaluations. The best of "
        "many trials is lucky too: train it with other seeds before you report it."
    )
    print_tables([Table(title, ("trial", "state", "rounds", "score", *chosen.search), tuple(rows), note)])


def _csv(chosen: "Sweep", outcomes: "list[Outcome]") -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("trial", "state", "rounds", "score", *chosen.search))
    for one in outcomes:
        writer.writerow((one.number, one.state, one.rounds, one.score, *(one.values.get(key) for key in chosen.search)))
    return text.getvalue()
