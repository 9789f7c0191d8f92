"""Clients that are evaluated and never train: they change nothing for the others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.report import report_data
from fedpohcs.analysis.tables import statistics_tables
from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import WORLDS
from fedpohcs.execution import make_executor
from fedpohcs.execution.devices import configure_jax
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import load_run
from fedpohcs.worlds import make_world
from fedpohcs.worlds.base import with_held_out
from fedpohcs.worlds.tabular import TabularWorlds

NUM_CLIENTS = 5
HELD_OUT_RETURN = "mean return of held-out clients, last 10 rounds"


def small(world: str, held_out: int = 0, **changes: object) -> ExperimentConfig:
    """A few clients with filters of both kinds, two rounds of little training."""
    config = preset(world)
    federation = FederationConfig(
        NUM_CLIENTS, num_candidates=4, num_selected=2, evaluation_episodes=3, held_out_clients=held_out
    )
    learner = replace(
        config.learner,
        local_iterations=1,
        steps_per_iteration=300,
        filter_observations=True,
        filter_warmup_steps=400,
        filter_evaluation_episodes=None,
    )
    return replace(config, rounds=2, federation=federation, learner=learner, **changes)


def lines_of(path: Path, *, held_out: bool) -> list[str]:
    lines = (path / "clients.csv").read_text().splitlines()
    return [line for line in lines if (",held-out," in line) == held_out]


@pytest.mark.parametrize("world", ["tabular", "mountain-cars", "hoppers"])
def test_everything_about_the_other_clients_stays_the_same_to_the_byte(world: str, tmp_path: Path) -> None:
    if world == "hoppers":
        pytest.importorskip("mujoco")
    for name, number in (("without", 0), ("with", 3)):
        run_experiment(small(world, number), tmp_path / name)
    without, together = tmp_path / "without", tmp_path / "with"
    assert (without / "rounds.csv").read_bytes() == (together / "rounds.csv").read_bytes()
    assert lines_of(without, held_out=False) == lines_of(together, held_out=False)
    assert not lines_of(without, held_out=True)
    with np.load(without / "policy.npz") as few, np.load(together / "policy.npz") as more:
        for array in few.files:
            own = more[array][:NUM_CLIENTS] if array.startswith("filters/") else more[array]
            np.testing.assert_array_equal(few[array], own)


def test_held_out_clients_are_evaluated_whenever_the_others_are_and_never_asked(tmp_path: Path) -> None:
    config = small("tabular", 3, selector="power-of-choice")
    config = replace(config, rounds=4, federation=replace(config.federation, evaluation_every=2))
    run_experiment(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.held_out_returns.shape == (5, 3)
    assert np.isfinite(run.held_out_returns).all(axis=1).tolist() == [True, False, True, False, True]
    assert (np.isnan(run.held_out_returns).all(axis=1) == np.isnan(run.client_returns).all(axis=1)).all()
    for role in ("asked", "candidate", "selected", "evaluated"):
        assert run.clients["client"][run.clients["role"] == role].max() < NUM_CLIENTS
    assert len(np.unique(run.held_out_returns[0])) == 3  # three clients, not one


@pytest.mark.parametrize("world", ["tabular", "hoppers"])
def test_a_run_with_held_out_clients_goes_on_to_the_byte(world: str, tmp_path: Path) -> None:
    if world == "hoppers":
        pytest.importorskip("mujoco")
    run_experiment(small(world, 2), tmp_path / "whole")
    run_experiment(replace(small(world, 2), rounds=1), tmp_path / "stopped")
    resume_experiment(tmp_path / "stopped", rounds=2)
    for file in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()


@pytest.mark.parametrize("world", ["tabular", "hoppers"])
def test_their_filters_are_warmed_up_and_updated_by_their_evaluations_alone(world: str) -> None:
    if world == "hoppers":
        pytest.importorskip("mujoco")
    config = small(world, 2)
    configure_jax(config.groups)
    executor = make_executor(config)
    try:
        params, held_out = executor.initial_params(), NUM_CLIENTS + np.arange(2)
        warm = executor.state.filters.observation.seen.copy()
        assert warm.shape == (NUM_CLIENTS + 2,)
        assert (warm > 0).all()
        executor.evaluate(params, 0, np.arange(NUM_CLIENTS))
        executor.train(params, 0, np.arange(2))
        np.testing.assert_array_equal(executor.state.filters.observation.seen[held_out], warm[held_out])
        played = executor.evaluate(params, 0, held_out)
        seen = executor.state.filters.observation.seen[held_out]
        np.testing.assert_allclose(seen - warm[held_out], played.steps)
        assert played.client.tolist() == held_out.tolist()
        assert not set(held_out.tolist()) & set(executor.history)  # nobody measures held-out clients
    finally:
        executor.close()


def test_held_out_values_are_midpoints_chosen_evenly_over_the_range() -> None:
    values = np.array([0.0, 1, 3, 7, 15])
    assert with_held_out(values, 0).tolist() == values.tolist()
    assert with_held_out(values, 4)[5:].tolist() == [0.5, 2, 5, 11]
    assert with_held_out(values, 2)[5:].tolist() == [2, 11]
    assert with_held_out(values, 1)[5:].tolist() == [5]
    assert with_held_out(values, 8)[5:].tolist() == [0.25, 0.75, 1.5, 2.5, 4, 6, 9, 13]  # two per gap
    assert with_held_out(values[:1], 2).tolist() == [0, 0, 0]


def test_mountain_cars_and_mujoco_families_hold_out_values_between_those_that_train() -> None:
    shifts = np.asarray(make_world(small("mountain-cars", 3)).population.action_shift)
    alone = np.asarray(make_world(small("mountain-cars")).population.action_shift)
    np.testing.assert_array_equal(shifts[:5], alone)
    assert not np.isin(shifts[5:], alone).any()
    assert (alone[0] < shifts[5:]).all() and (shifts[5:] < alone[-1]).all()
    pytest.importorskip("mujoco")
    for world in ("hoppers", "walkers", "half-cheetahs"):
        values = make_world(small(world, 4)).values
        np.testing.assert_allclose(values[5:], (values[:4] + values[1:5]) / 2)


def test_values_beyond_the_range_are_spread_over_a_quarter_of_it_on_either_side() -> None:
    values = np.array([-2.0, 1, 2])
    assert with_held_out(values, 0, "beyond").tolist() == values.tolist()
    assert with_held_out(values, 4, "beyond").tolist() == [-2, 1, 2, -2.75, -2.25, 2.25, 2.75]
    assert with_held_out(values, 1, "beyond")[3:].tolist() == [2]  # in the middle of both sides
    assert with_held_out(values[:1], 2, "beyond").tolist() == [-2, -2, -2]


@pytest.mark.parametrize("sign", [-1, 1])
def test_values_beyond_the_range_go_no_farther_than_half_the_way_to_zero(sign: int) -> None:
    values = np.sort(sign * np.array([1.0, 9.0]))  # a quarter of the range is 2, half the way to 0 is 0.5
    held_out = np.sort(sign * with_held_out(values, 5, "beyond")[2:])
    assert held_out.tolist() == [0.75, 9.25, 9.75, 10.25, 10.75]


def placed(world: str, placement: str, number: int = 4) -> ExperimentConfig:
    config = small(world, number)
    return replace(config, federation=replace(config.federation, held_out_placement=placement))


def test_mountain_cars_and_mujoco_families_hold_out_values_beyond_those_that_train() -> None:
    shifts = np.asarray(make_world(placed("mountain-cars", "beyond")).population.action_shift)
    np.testing.assert_allclose(shifts, [-0.9, -0.3, 0.3, 0.9, 1.5, -1.35, -1.05, 1.65, 1.95], rtol=1e-6)
    pytest.importorskip("mujoco")
    radii = make_world(placed("hoppers", "beyond")).values
    np.testing.assert_allclose(radii[5:], [0.0084375, 0.1053125, 0.1121875, 0.1190625])
    assert make_world(placed("half-cheetahs", "beyond")).values.max() < 0


@pytest.mark.parametrize("world", ["mountain-cars", "hoppers"])
def test_a_run_with_clients_beyond_the_range_is_the_same_for_those_that_train(world: str, tmp_path: Path) -> None:
    if world == "hoppers":
        pytest.importorskip("mujoco")
    for placement in ("between", "beyond"):
        run_experiment(replace(placed(world, placement, 2), rounds=1), tmp_path / placement)
    between, beyond = tmp_path / "between", tmp_path / "beyond"
    assert (between / "rounds.csv").read_bytes() == (beyond / "rounds.csv").read_bytes()
    assert lines_of(between, held_out=False) == lines_of(beyond, held_out=False)
    assert lines_of(between, held_out=True) != lines_of(beyond, held_out=True)


def test_a_world_without_a_range_refuses_clients_beyond_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--federation.held-out-clients", "2", "--federation.held-out-placement", "beyond"]
    assert main(["train", "tabular", *options, "--out", "nowhere"]) == 2
    rule = "must be 'between': the world 'tabular' has no range that they could lie beyond."
    assert f"federation.held_out_placement (='beyond') {rule}" in capsys.readouterr().err
    assert not Path("nowhere").exists()


def test_further_tabular_clients_leave_the_first_ones_as_they_are() -> None:
    few, more = (make_world(small("tabular", number)).transitions for number in (0, 3))
    np.testing.assert_array_equal(few, more[:5])
    assert np.abs(more[5:, None] - few).max(axis=(2, 3, 4)).min() > 0.1


def test_held_out_areas_of_hong_kong_follow_those_that_train() -> None:
    pytest.importorskip("libsumo")
    names = [network.name for network in make_world(small("hongkong", 2, level="areas")).networks]
    assert names == ["causeway", "central", "chai-wan", "clear-water-bay", "kennedy-town", "kai-tak", "north-point"]
    with pytest.raises(UserError, match=r"held_out_clients \(=6\) must not exceed .* \(=5\)"):
        make_world(small("hongkong", 6, level="areas"))


class Rigid(TabularWorlds):
    """A world whose clients are given."""

    held_out = False

    def __init__(self, level: str, num_clients: int) -> None:
        super().__init__(level, num_clients)


def test_a_world_without_held_out_clients_refuses_them_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WORLDS.entries, "rigid", Rigid)
    with pytest.raises(UserError) as refusal:
        run_experiment(replace(small("tabular", 2), world="rigid"), tmp_path / "run")
    rule = "must be 0: the world 'rigid' has no held-out clients."
    assert str(refusal.value) == f"federation.held_out_clients (=2) {rule}"
    assert not (tmp_path / "run").exists()
    run_experiment(replace(small("tabular"), world="rigid", rounds=1))
    with pytest.raises(UserError, match=r"federation.held_out_clients \(=-1\)"):
        FederationConfig(held_out_clients=-1)


def test_flower_refuses_held_out_clients_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr")
    assert main(["flower", "run", "tabular", "--federation.held-out-clients", "2", "--out", "nowhere"]) == 2
    error = capsys.readouterr().err
    assert "federation.held_out_clients (=2) must be 0 on Flower" in error
    assert error.count("\n") == 1


def test_private_runs_and_runs_with_byzantine_clients_evaluate_held_out_clients_too(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    config = small("tabular", 2, privacy="masked")
    config = replace(config, protection=replace(config.protection, min_cohort=3, sketch_size=64))
    config = replace(config, attack=replace(config.attack, kind="zero-update", clients="one-selected"))
    history = run_experiment(config)
    assert [record.held_out.client.tolist() for record in history.records] == [[5, 6]] * 3


def test_a_held_out_client_can_be_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_experiment(replace(small("tabular", 1), rounds=1), tmp_path / "run")
    assert main(["play", str(tmp_path / "run"), "--client", "5", "--episodes", "1"]) == 0
    assert main(["play", str(tmp_path / "run"), "--client", "6"]) == 2
    rule = "client (=6) must be at least 0 and below num_clients (=5) plus held_out_clients (=1)."
    assert rule in capsys.readouterr().err


def test_tables_and_reports_show_what_held_out_clients_return(make_run, tmp_path: Path) -> None:
    from conftest import made_up_records

    config = replace(preset("tabular", selector="fedavg"), rounds=12)
    config = replace(config, federation=replace(config.federation, held_out_clients=2))
    folder = RunFolder.create(tmp_path / "held-out", config)
    for record in made_up_records(config):
        clients, returns = np.array([12, 13]), record.round + np.array([10.0, 20.0])
        folder.append(record._replace(held_out=record.evaluation._replace(client=clients, mean_return=returns)))
    folder.close()
    assert load_run(folder.path).final_held_out_returns.tolist() == [17.5, 27.5]  # of rounds 3 to 12
    groups = load_groups([folder.path, make_run("plain", rounds=12)])
    rows = {row[0]: row[1:] for row in statistics_tables(groups)[0].rows}
    assert rows[HELD_OUT_RETURN] == ("22.5", "-")
    (panel,) = report_data(groups)["panels"]
    assert [one[HELD_OUT_RETURN] for one in panel["intervals"].values()] == [[22.5, None, None], [None] * 3]
    plain = statistics_tables(load_groups([tmp_path / "plain"]))
    assert HELD_OUT_RETURN not in [row[0] for row in plain[0].rows]
