"""Many runs in one folder: which are still to be made, and what is written when all are there."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpohcs.analysis import rendering, tables
from fedpohcs.analysis.figures import participation, return_by_round, save_figure
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.report import write_report
from fedpohcs.config import ExperimentConfig, to_dict
from fedpohcs.errors import UserError
from fedpohcs.storage import check_free, is_run, load_run


def plan_runs(
    wanted: Mapping[Path, ExperimentConfig], out: Path, overwrite: bool
) -> dict[Path, ExperimentConfig | None]:
    """What to run in each folder; None where the same run is complete already.

    A run that was cut short is a function of its config, so it is made again without asking.
    """
    if out.exists() and (is_run(out) or not _is_empty_or_holds_runs(out)):
        raise UserError(f"out (={str(out)!r}) exists and is not a comparison. Name another folder.")
    plan: dict[Path, ExperimentConfig | None] = {}
    for folder, config in wanted.items():
        same = is_run(folder) and _stored_config(folder) == json.loads(json.dumps(to_dict(config)))
        check_free(folder, overwrite or same)
        plan[folder] = None if same and not overwrite and _is_complete(folder) else config
    return plan


def write_results(folders: Sequence[Path], out: Path) -> None:
    """Print the statistics; write tables, figures and the report into `out`, and say where they are."""
    groups = load_groups(folders)
    statistics = tables.statistics_tables(groups)
    rendering.print_tables(statistics)
    (out / "table.md").write_text(rendering.to_markdown(statistics), encoding="utf-8")
    (out / "table.csv").write_text(tables.to_csv(groups), encoding="utf-8")
    save_figure(return_by_round(groups), out / "curves.png")
    save_figure(participation(groups), out / "participation.png")
    write_report(groups, out / "report.html")
    for name in ("table.md", "table.csv", "curves.png", "participation.png", "report.html"):
        print(out / name)


def _is_empty_or_holds_runs(path: Path) -> bool:
    if not path.is_dir():
        return False
    return not any(path.iterdir()) or any(is_run(file.parent) for file in path.rglob("config.json"))


def _stored_config(folder: Path) -> object:
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        return None


def _is_complete(folder: Path) -> bool:
    try:
        return load_run(folder).complete
    except UserError:  # no rounds yet
        return False
