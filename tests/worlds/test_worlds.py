"""What every registered world must do."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conftest import MakeRun
from fedpohcs.analysis.figures import return_by_round
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.tables import make_scope, statistics_tables
from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import WORLDS
from fedpohcs.core.trajectory import Episode
from fedpohcs.core.types import Reference
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.worlds import make_world, world_class, world_levels
from fedpohcs.worlds.base import ContinuousActions, TracedWorld
from fedpohcs.worlds.pictures import Painter, find_painter
from fedpohcs.worlds.tabular import TabularWorlds

NEEDS_A_PACKAGE = {"gymnax"}  # tests/worlds/test_gymnax.py tests it where the package is installed
TRACED = [name for name in WORLDS if issubclass(world_class(name), TracedWorld) and name not in NEEDS_A_PACKAGE]


def config(name: str, level: str, num_clients: int) -> ExperimentConfig:
    federation = FederationConfig(num_clients=num_clients, num_candidates=1, num_selected=1)
    return ExperimentConfig(world=name, level=level, federation=federation)


@pytest.mark.parametrize(("name", "level"), [(name, level) for name in TRACED for level in world_levels(name)])
def test_a_world_resets_and_steps_for_all_clients_at_once(name: str, level: str) -> None:
    world = make_world(config(name, level, 7))
    noise = jnp.full((7, world.reset_noise), 0.3)
    state, observation = jax.vmap(world.reset)(noise, world.population)
    continuous = isinstance(world.actions, ContinuousActions)
    action = jnp.zeros((7, world.actions.size)) if continuous else jnp.zeros(7, int)
    moved = jax.vmap(world.step)(state, action, jnp.full((7, world.step_noise), 0.3), world.population)
    assert observation.shape == moved.observation.shape == (7, world.observation_size)
    assert moved.reward.shape == moved.terminated.shape == (7,)
    assert np.isfinite(moved.observation).all()
    assert moved.terminated.dtype == bool


@pytest.mark.parametrize("name", TRACED)
def test_worlds_of_a_class_compare_equal_so_that_programs_are_shared(name: str) -> None:
    one, *_, other = (make_world(config(name, level, 3)) for level in world_levels(name))
    assert one == other
    assert hash(one) == hash(other)


def test_an_unknown_level_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"level \(='medum'\) is not known. Did you mean 'medium'\?"):
        make_world(config("mountain-cars", "medum", 3))


def test_identical_clients_at_level_none_and_independent_ones_at_high() -> None:
    same = make_world(config("tabular", "none", 3)).transitions
    apart = make_world(config("tabular", "high", 3)).transitions
    assert (same[0] == same[1]).all()
    assert np.abs(apart[0] - apart[1]).sum(axis=-1).max() > 0.5
    np.testing.assert_allclose(apart.sum(axis=-1), 1)


class KnownWorld(TabularWorlds):
    """A world of somebody else's that knows thresholds, a painter and a reference."""

    thresholds = (3.0, 7.0)
    painter = f"{__name__}:PAINTER"

    @classmethod
    def reference(cls, config: ExperimentConfig) -> Reference:
        clients = config.federation.num_clients
        return Reference("a coin", tuple(f"place {n}" for n in range(clients)), np.full(clients, 4.0))


def write_states(config: ExperimentConfig, client: int, episode: Episode, path: Path, caption: str) -> None:
    path.write_text(f"{config.world}, {caption}: {episode.scenes}")


PAINTER = Painter(write_states, lambda simulator: int(simulator._state))


@pytest.fixture
def known_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORLDS.entries, "known", KnownWorld)


def test_every_painter_that_a_world_names_is_one() -> None:
    drawn = {name for name in WORLDS if find_painter(name) is not None}
    assert drawn == {"mountain-cars", "hoppers", "half-cheetahs", "walkers", "hongkong", "gym"}
    assert all(isinstance(find_painter(name), Painter) for name in drawn)


def test_a_world_of_another_package_is_drawn_by_its_painter(
    known_world: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(preset("tabular"), rounds=1)
    run_experiment(replace(config, world="known"), tmp_path / "run")
    assert main(["play", str(tmp_path / "run"), "--client", "2", "--episodes", "1"]) == 0
    text = (tmp_path / "run" / "client-2.gif").read_text()
    assert text.startswith("known, client 2: [")
    assert text.count(",") == 1 + 50  # a scene per observation, the one after the last step included
    run_experiment(config, tmp_path / "plain")
    capsys.readouterr()
    assert main(["play", str(tmp_path / "plain"), "--client", "2", "--episodes", "1", "-o", "here.gif"]) == 2
    assert "output (='here.gif') cannot be drawn: there is no picture of the world tabular." in capsys.readouterr().err


def test_the_thresholds_and_the_reference_of_a_world_are_in_tables_and_figures(
    known_world: None, make_run: MakeRun
) -> None:
    path = make_run("known", rounds=2, world="known")
    groups = load_groups([path])
    assert make_scope(groups).thresholds == (3, 7)
    (table,) = (table for table in statistics_tables(groups) if table.headers[-1] == "a coin")
    assert [row[-1] for row in table.rows] == ["4.0"] * 13
    (axis,) = return_by_round(groups).axes
    assert "a coin" in [line.get_label() for line in axis.get_lines()]


def test_a_run_of_an_unknown_world_has_neither_thresholds_nor_a_reference(make_run: MakeRun) -> None:
    groups = load_groups([make_run("unknown", rounds=20, world="somebodys-own")])
    assert make_scope(groups).thresholds  # derived from the run
    assert not any("each client" in table.title for table in statistics_tables(groups))
    (axis,) = return_by_round(groups).axes
    assert [line.get_label() for line in axis.get_lines()] == ["fedpohcs"]
