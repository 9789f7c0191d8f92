"""Comparisons as a whole: several processes, what they survive, and where else they can run."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.cli.compare import run_all
from fedpohcs.cli.display import GridDisplay
from fedpohcs.cli.grid import local_launcher, read_progress, run_grid
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loading import load_run

SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=4)
CONFIG = replace(preset("tabular"), rounds=3, federation=SMALL)


def grid(out: Path, rounds: int = 3) -> dict[Path, ExperimentConfig]:
    return {out / f"seed-{seed}": replace(CONFIG, seed=seed, rounds=rounds) for seed in (0, 1)}


def assert_same_tables(one: Path, other: Path) -> None:
    for name in ("rounds.csv", "clients.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_runs_side_by_side_are_the_runs_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run_all(grid(tmp_path / "together"), tmp_path / "together", jobs=2)
    assert "done" in capsys.readouterr().out
    run_all(grid(tmp_path / "alone"), tmp_path / "alone", jobs=1)
    for seed in (0, 1):
        assert_same_tables(tmp_path / "together" / f"seed-{seed}", tmp_path / "alone" / f"seed-{seed}")


def test_a_comparison_goes_on_with_what_stopped_and_lengthens_what_is_too_short(tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, rounds=5), tmp_path / "whole")
    out = tmp_path / "grid"
    run_all(grid(out), out, jobs=1)
    run_all(grid(out, rounds=5), out, jobs=1)
    assert_same_tables(out / "seed-0", tmp_path / "whole")


def test_a_run_that_fails_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    runs = grid(tmp_path)
    broken = tmp_path / "seed-0"
    broken.write_text("in the way")
    seen: list[Mapping[Path, str]] = []
    with pytest.raises(UserError, match=r"1 of 2 runs failed\. .*seed-0"):
        run_grid(runs, local_launcher(2), 2, lambda status: seen.append(dict(status)))
    assert seen[-1] == {broken: "failed", tmp_path / "seed-1": "done"}
    assert load_run(tmp_path / "seed-1").complete


def test_progress_of_a_folder_without_rounds_is_none(tmp_path: Path) -> None:
    assert read_progress(tmp_path).round == -1
    (tmp_path / "rounds.csv").write_text("round,mean_return,min_return\n0,1.5,-2.0,half a l")
    assert read_progress(tmp_path).round == -1
    (tmp_path / "rounds.csv").write_text("round,mean_return,min_return\n0,1.5,-2.0\n1,2.5,-1.0\n2,3")
    assert read_progress(tmp_path) == (1, 2.5, -1.0)


def test_the_first_round_of_a_run_is_shown_at_once_and_later_ones_now_and_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    display = GridDisplay({folder: preset("tabular")}, tmp_path)
    printed = []
    for rounds in ("", "0,1.5,-2.0\n", "0,1.5,-2.0\n1,2.5,-1.0\n"):
        (folder / "rounds.csv").write_text("round,mean_return,min_return\n" + rounds)
        display.show({folder: "running"})
        printed.append(capsys.readouterr().out.split())
    assert printed == [["run", "compiling"], ["run", "running", "0/40", "1.5", "-2.0"], []]
    display.show({folder: "done"})
    assert capsys.readouterr().out.split()[1:3] == ["done", "1/40"]


def test_runs_that_are_there_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_all(grid(tmp_path / "runs"), tmp_path / "runs", jobs=1)
    assert main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "report.html").exists()
    assert "mean return" in capsys.readouterr().out


def test_a_ray_cluster_makes_the_same_runs(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    compare = ["compare", "tabular", "--selectors", "fedavg", "--seeds", "0,1", "--rounds", "2", "--out", "ray"]
    subprocess.run(
        [sys.executable, "-m", "fedpohcs", *compare, "--backend", "ray"], cwd=tmp_path, check=True, stdout=-3
    )
    for seed in (0, 1):
        config = replace(preset("tabular", selector="fedavg"), rounds=2, seed=seed)
        run_experiment(config, tmp_path / f"seed-{seed}")
        assert_same_tables(tmp_path / "ray" / "medium" / "fedavg" / f"seed-{seed}", tmp_path / f"seed-{seed}")


def test_without_ray_the_backend_is_refused_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'fedpohcs\[ray\]'"):
        run_all(grid(tmp_path), tmp_path, backend="ray")
    assert not list(tmp_path.iterdir())
