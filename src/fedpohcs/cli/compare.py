"""Many runs in one folder: finds and trains the missing ones, and writes the results."""

import dataclasses
import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from fedpohcs.analysis import rendering, tables
from fedpohcs.analysis.figures import participation, return_by_round, save_figure
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.report import write_report
from fedpohcs.analysis.summary import summary_lines
from fedpohcs.cli.display import GridDisplay, ProgressDisplay
from fedpohcs.cli.grid import complete_run, local_launcher, read_progress, run_grid
from fedpohcs.cli.json_lines import GridJsonLines, JsonLines
from fedpohcs.cli.ray import ray_cluster
from fedpohcs.core.config import MOST_LISTED, ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.processes import available_cores, refuse_while_importing
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.folder import check_free
from fedpohcs.runs.layout import is_run
from fedpohcs.runs.loading import read_config
from fedpohcs.runs.loggers import make_loggers

Output = Literal["progress", "json", "nothing"]
"""What is printed while runs are trained."""


def run_all(
    wanted: Mapping[Path, ExperimentConfig],
    out: Path,
    *,
    overwrite: bool = False,
    jobs: int | None = None,
    backend: str = "local",
    output: Output = "progress",
    log: Sequence[str] = (),
) -> None:
    """Train the wanted runs that are missing or incomplete, several at a time.

    Args:
        wanted: the config of the run in each folder.
        out: folder that holds them all.
        overwrite: run everything anew.
        jobs: runs at the same time. None: one per core.
        backend: "local", or "ray".
        output: one live table for all runs, one JSON object per round, or nothing.
        log: names of further loggers of every run.
    """
    refuse_while_importing()
    require(jobs is None or jobs > 0, "jobs", jobs, "must be at least 1")
    for config in wanted.values():
        check_config(config)
        rule = "starts tasks on the cluster, and executor ray actors: they would wait for each other's cores"
        require(backend != "ray" or config.executor != "ray", "backend", backend, rule, "Use executor vectorised.")
    make_loggers(log, out)  # refuses what is not installed
    runs = plan_runs(wanted, out, overwrite)
    kept = len(wanted) - len(runs)
    if kept and output == "progress":
        print(f"{kept} of {len(wanted)} runs are complete already, kept", flush=True)
    if not runs:
        return
    for folder in runs:
        if overwrite and is_run(folder):
            shutil.rmtree(folder)
    if backend == "ray":
        with ray_cluster(log) as (launch, cores), _grid_display(runs, out, output) as display:
            return run_grid(runs, launch, min(jobs or cores, len(runs)), display.show)
    clustered = any(config.executor == "ray" for config in runs.values())  # each run takes all of its cores
    slots = min(jobs or (1 if clustered else len(available_cores())), len(runs))
    if slots == 1:
        return _run_here(runs, out, output, log)
    with _grid_display(runs, out, output) as display:
        run_grid(runs, local_launcher(slots, log), slots, display.show)


def _grid_display(runs: Mapping[Path, ExperimentConfig], out: Path, output: Output) -> GridDisplay | GridJsonLines:
    """What shows many runs at once."""
    if output == "json":
        return GridJsonLines(runs, out)
    return GridDisplay(runs, out, Console(file=io.StringIO()) if output == "nothing" else None)


def _run_here(runs: Mapping[Path, ExperimentConfig], out: Path, output: Output, log: Sequence[str]) -> None:
    """Train one run after the other in this process, on all of its cores."""
    for number, (folder, config) in enumerate(runs.items(), start=1):
        if output != "progress":
            observers = [JsonLines(folder.relative_to(out).as_posix())] if output == "json" else []
            complete_run(folder, config, observers, log)
            continue
        print(f"run {number} of {len(runs)}: {folder}", flush=True)
        with ProgressDisplay() as display:
            complete_run(folder, config, [display], log)


def plan_runs(wanted: Mapping[Path, ExperimentConfig], out: Path, overwrite: bool) -> dict[Path, ExperimentConfig]:
    """The runs that are not complete: new runs, runs that stopped, and runs that shall have more rounds.

    Refuses, before anything is written, a folder that holds another run.
    """
    if out.exists() and (is_run(out) or not _is_empty_or_holds_runs(out)):
        raise UserError(f"out (={str(out)!r}) exists and is not a comparison. Name another folder.")
    plan: dict[Path, ExperimentConfig] = {}
    for folder, config in wanted.items():
        stored = _stored_config(folder)
        same = stored is not None and dataclasses.replace(stored, rounds=config.rounds) == config
        check_free(folder, overwrite or same)
        if overwrite or stored is None or _rounds_done(folder) < config.rounds:
            plan[folder] = config
    return plan


def write_results(folders: Sequence[Path], out: Path, *, quiet: bool = False) -> None:
    """Print the statistics; write tables, figures and the report into `out`, and say where they are.

    What draws every client is left out where there are too many.
    """
    groups = load_groups(folders)
    statistics = tables.statistics_tables(groups)
    if not quiet:
        rendering.print_tables(statistics)
    (out / "table.md").write_text(rendering.to_markdown(statistics), encoding="utf-8")
    (out / "table.csv").write_text(tables.to_csv(groups), encoding="utf-8")
    save_figure(return_by_round(groups), out / "curves.png")
    names = ["table.md", "table.csv", "curves.png"]
    if all(run.config.federation.num_clients <= MOST_LISTED for group in groups for run in group.runs):
        save_figure(participation(groups), out / "participation.png")
        write_report(groups, out / "report.html")
        names += ["participation.png", "report.html"]
    for line in () if quiet else summary_lines(groups):
        print(line)
    for name in () if quiet else names:
        print(out / name)


def _is_empty_or_holds_runs(path: Path) -> bool:
    if not path.is_dir():
        return False
    return not any(path.iterdir()) or any(is_run(file.parent) for file in path.rglob("config.json"))


def _stored_config(folder: Path) -> ExperimentConfig | None:
    try:
        return read_config(folder)
    except UserError:  # not a run, or not readable
        return None


def _rounds_done(folder: Path) -> int:
    """Number of stored rounds, if the trained policy is stored as well."""
    return read_progress(folder).round if (folder / "policy.npz").is_file() else -1
