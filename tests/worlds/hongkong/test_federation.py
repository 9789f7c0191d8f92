"""The traffic world in a federation, and what is drawn and tabled of it."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("libsumo")

from fedpohcs.analysis.figures import return_by_round
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.references import reference_of
from fedpohcs.analysis.tables import statistics_tables
from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.types import Steps
from fedpohcs.metrics.weighted_advantage import weighted_advantage_table
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.worlds import make_world
from fedpohcs.worlds.hongkong.areas import AREAS
from fedpohcs.worlds.hongkong.networks import load_network
from fedpohcs.worlds.hongkong.reference import idm_reference, idm_returns, write_reference
from fedpohcs.worlds.hongkong.settings import TrafficConfig


def small(rounds: int = 1, name: str = "hongkong", **settings: object) -> ExperimentConfig:
    config = preset(name)
    return replace(
        config,
        rounds=rounds,
        federation=replace(config.federation, num_clients=3, num_candidates=3, num_selected=2, evaluation_episodes=1),
        learner=replace(config.learner, local_iterations=2, steps_per_iteration=70, epochs=2, filter_warmup_steps=50),
        scenario=TrafficConfig(horizon=60, **settings),
    )


def test_a_run_repeats_byte_by_byte_and_is_played_as_a_gif(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run_experiment(small(), tmp_path / name)
    for file in ("rounds.csv", "clients.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()
    gif = tmp_path / "drive.gif"
    assert main(["play", "hongkong", "--run", str(tmp_path / "one"), "--steps", "20", "-o", str(gif)]) == 0
    assert gif.read_bytes().startswith(b"GIF8")
    assert main(["play", str(tmp_path / "one"), "--client", "2", "--episodes", "1"]) == 0
    assert (tmp_path / "one" / "client-2.gif").read_bytes().startswith(b"GIF8")


def test_every_episode_has_the_horizons_length_in_safe_mode(tmp_path: Path) -> None:
    history = run_experiment(small())
    assert history.records[1].evaluation.steps.tolist() == [60] * 3
    assert history.records[1].train_steps.tolist() == [2 * 120] * 2
    assert not len(history.records[1].rejected)


def test_the_preset_of_the_paper_trains_with_tables_of_all_trajectories_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = []

    def noted(steps: Steps, *rest: Any) -> Any:
        if steps.advantage is not None:  # GAE samples
            lengths.append(len(steps.reward))
        return weighted_advantage_table(steps, *rest)

    monkeypatch.setattr("fedpohcs.metrics.weighted_advantage.weighted_advantage_table", noted)
    history = run_experiment(small(rounds=2, name="hongkong-paper"))
    assert lengths == [60] * 3 + [120] * 3  # one episode of each client per evaluation, none forgotten
    for record in history.records[1:]:
        assert np.isfinite(record.selection.scores["selection_metric"]).all()
        assert not len(record.rejected)


def test_the_settings_of_the_world_reach_the_simulators() -> None:
    world = make_world(small(safety="none", reward="ego"))
    assert world.horizon == 60
    traffic = world.open(2)
    try:
        assert traffic.network.name == list(AREAS)[2]
        assert (traffic.config.safety, traffic.config.reward) == ("none", "ego")
    finally:
        traffic.close()


def test_without_libsumo_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "libsumo", None)
    assert main(["train", "hongkong", "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'fedpohcs[sumo]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_missing_folder_of_networks_is_refused_before_anything_is_written(tmp_path: Path, capsys) -> None:
    out = tmp_path / "run"
    assert main(["train", "hongkong", "--scenario.networks", str(tmp_path / "none"), "--out", str(out)]) == 2
    assert "must be a folder made by `fedpohcs osm build`" in capsys.readouterr().err
    assert not out.exists()


def test_the_stored_reference_is_what_idm_returns() -> None:
    """Of the first five episodes: within three standard deviations of the stored mean of a hundred."""
    stored = idm_reference(TrafficConfig())
    assert stored is not None
    returns = idm_returns(load_network("po-lam"), TrafficConfig(), range(5))
    own = stored[list(AREAS).index("po-lam")]
    assert abs(np.mean(returns) - own) < 3 * np.std(returns, ddof=1) / np.sqrt(5) + 5


def test_a_reference_is_measured_for_new_settings_and_kept_beside_the_old(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "reference.json"
    write_reference(TrafficConfig(horizon=3), 2, file)
    write_reference(TrafficConfig(horizon=4, reward="ego"), 2, file)
    monkeypatch.setattr("fedpohcs.worlds.hongkong.reference.FILE", file)
    for config in (TrafficConfig(horizon=3), TrafficConfig(horizon=4, reward="ego")):
        returns = idm_reference(config)
        assert returns is not None
        assert returns.shape == (10,)
    assert idm_reference(TrafficConfig(horizon=4)) is None
    assert idm_reference(TrafficConfig(horizon=3, networks="mine")) is None


def test_curves_and_tables_show_the_reference(make_run) -> None:
    config = preset("hongkong")
    path = make_run("hongkong", world="hongkong", level="areas", federation=config.federation)
    groups = load_groups([path])
    reference = reference_of(config)
    assert reference is not None
    (table,) = (table for table in statistics_tables(groups) if table.title.startswith("mean return of each client"))
    assert [row[0] for row in table.rows] == [*AREAS, "mean"]
    assert table.rows[-1][-1] == f"{reference.mean_return.mean():.1f}"
    (axis,) = return_by_round(groups).axes
    assert reference.label in [line.get_label() for line in axis.get_lines()]
    assert reference_of(preset("tabular")) is None
