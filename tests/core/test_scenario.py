"""Settings that belong to a world: found by its name, kept where the world is unknown, read from old files."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeRun
from fedpohcs.analysis.groups import load_groups
from fedpohcs.cli import main
from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import PRESETS, WORLDS
from fedpohcs.core.scenario import WorldConfig
from fedpohcs.core.toml import read_toml, to_toml
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import load_run, read_config
from fedpohcs.worlds import make_world
from fedpohcs.worlds.gym import GymConfig
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.tabular import TabularWorlds

OLD_TRAFFIC = {"horizon": 60, "reward": "ego", "safety": "none", "networks": ""}


@dataclass(frozen=True)
class WindConfig(WorldConfig):
    """Settings of a world of somebody else's."""

    wind: float = 0.5
    """Metres per second."""
    gusts: tuple[float, ...] = ()


class WindyWorld(TabularWorlds):
    """A world of somebody else's."""

    Config = WindConfig
    held_out = False

    def __init__(self, level: str, num_clients: int, *, settings: WindConfig) -> None:
        super().__init__(level, num_clients)
        self.settings = settings


def windy(level: str = "medium", selector: str = "fedpohcs") -> ExperimentConfig:
    """A preset of somebody else's."""
    return replace(preset("tabular", level, selector), world="windy")


@pytest.fixture
def windy_world() -> Iterator[None]:
    WORLDS["windy"], PRESETS["windy"] = WindyWorld, windy
    yield
    del WORLDS["windy"], PRESETS["windy"]


def stored(config: ExperimentConfig) -> dict[str, Any]:
    return json.loads(json.dumps(to_dict(config)))


def stored_by_the_first_release(config: ExperimentConfig, **old: Any) -> dict[str, Any]:
    """What `config.json` held before worlds had settings of their own."""
    values = stored(config)
    del values["scenario"]
    return values | {"env": None, "traffic": to_dict(TrafficConfig())} | old


def test_every_world_gets_settings_of_its_own_class() -> None:
    for name in WORLDS:
        assert type(ExperimentConfig(world=name).scenario) is WORLDS[name].Config
    assert ExperimentConfig(world="hongkong").scenario == TrafficConfig()
    assert type(preset("tabular").scenario) is WorldConfig


def test_the_settings_of_another_world_are_refused() -> None:
    with pytest.raises(UserError, match=r"scenario .* must be of type GymConfig, the settings of the world 'gym'"):
        replace(preset("gym"), scenario=TrafficConfig())
    with pytest.raises(
        UserError, match=r"scenario\.key \(='horizon'\) is not known: the world 'tabular' has no settin"
    ):
        from_dict({"world": "tabular", "scenario": {"horizon": 5}})


def test_a_stored_config_of_the_first_release_still_loads() -> None:
    traffic = from_dict(stored_by_the_first_release(preset("hongkong"), traffic=OLD_TRAFFIC))
    assert traffic == replace(preset("hongkong"), scenario=TrafficConfig(60, "ego", "none"))
    gym = from_dict(stored_by_the_first_release(preset("gym"), env="CartPole-v1"))
    assert gym == replace(preset("gym"), scenario=GymConfig("CartPole-v1"))
    assert from_dict(stored_by_the_first_release(preset("tabular"), traffic=OLD_TRAFFIC)) == preset("tabular")


def test_old_keys_are_refused_where_they_mean_nothing_or_come_twice() -> None:
    with pytest.raises(UserError, match=r"env \(='CartPole-v1'\) is for the world 'gym', not for 'mountain-cars'"):
        from_dict({"env": "CartPole-v1"})
    with pytest.raises(UserError, match=r"env \(='CartPole-v1'\) is part of scenario now"):
        from_dict({"world": "gym", "env": "CartPole-v1", "scenario": {"env": "Pendulum-v1"}})
    with pytest.raises(UserError, match=r"traffic .* is part of scenario now"):
        from_dict({"world": "hongkong", "traffic": OLD_TRAFFIC, "scenario": {}})


def test_an_old_file_and_an_old_option_still_work_and_the_option_says_its_new_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "old.toml"
    file.write_text('world = "hongkong"\nlevel = "areas"\n[federation]\nnum_clients = 10\nnum_candidates = 9\n'
                    "[traffic]\nhorizon = 60\n")  # fmt: skip
    assert read_toml(file).scenario == TrafficConfig(horizon=60)
    assert main(["config", "hongkong", "--traffic.horizon", "70", "--scenario.reward", "ego"]) == 0
    captured = capsys.readouterr()
    assert "horizon = 70" in captured.out
    assert captured.err.count("\n") == 1
    assert "--traffic.* is called --scenario.* now" in captured.err


def test_a_world_of_another_package_has_settings_in_code_files_and_options(
    windy_world: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(windy(), scenario=WindConfig(wind=2.0, gusts=(1.0, 3.0)))
    assert from_dict(stored(config)) == config
    (tmp_path / "exp.toml").write_text(to_toml(config))
    assert "[scenario]\n# Settings of a world of somebody else's.\n# Metres per second.\nwind = 2.0\n" in to_toml(
        config
    )
    assert read_toml(tmp_path / "exp.toml") == config
    assert make_world(config).settings.wind == 2.0
    assert main(["train", "windy", "--help"]) == 0
    assert "--scenario.wind FLOAT" in capsys.readouterr().out
    out = tmp_path / "run"
    assert main(["train", "windy", "--scenario.wind", "7", "--rounds", "1", "--out", str(out)]) == 0
    assert read_config(out).scenario == WindConfig(wind=7.0)
    assert main(["train", "windy", "--scenario.wind", "strong", "--out", str(tmp_path / "other")]) == 2


def test_a_bad_value_of_another_packages_setting_is_refused_by_name(windy_world: None) -> None:
    with pytest.raises(UserError, match=r"scenario\.wind \(='strong'\) must be of type float"):
        from_dict({"world": "windy", "scenario": {"wind": "strong"}})
    with pytest.raises(UserError, match=r"scenario\.key \(='wnid'\) is not known. Did you mean 'wind'"):
        from_dict({"world": "windy", "scenario": {"wnid": 1.0}})


def test_runs_of_an_unknown_world_are_read_with_their_settings(make_run: MakeRun, windy_world: None) -> None:
    paths = [
        make_run(str(wind), rounds=2, world="windy", scenario=WindConfig(wind, gusts=(1.0,))) for wind in (1.0, 2.0)
    ]
    known = stored(load_run(paths[0]).config)
    del WORLDS["windy"]
    try:
        config = load_run(paths[0]).config
        assert stored(config) == known
        assert config == from_dict(known)
        assert [group.place for group in load_groups(paths)] == ["windy (wind=1.0)", "windy (wind=2.0)"]
    finally:
        WORLDS["windy"] = WindyWorld
    assert load_run(paths[0]).config.scenario == WindConfig(1.0, (1.0,))


def test_an_unknown_world_is_refused_before_anything_is_written(tmp_path: Path, capsys) -> None:
    (tmp_path / "exp.toml").write_text('world = "mars"\n[scenario]\ngravity = 3.7\n')
    assert main(["train", "--config", str(tmp_path / "exp.toml"), "--out", str(tmp_path / "run")]) == 2
    assert "world (='mars') is not known" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_with_old_keys_belongs_to_the_same_config(tmp_path: Path) -> None:
    from fedpohcs.runs.checkpoints import Checkpoint, latest_checkpoint, write_checkpoint

    config = replace(preset("hongkong"), scenario=TrafficConfig(60, "ego", "none"))
    folder = RunFolder.create(tmp_path / "run", config)
    write_checkpoint(folder.path, Checkpoint(0, stored_by_the_first_release(config, traffic=OLD_TRAFFIC), None))
    assert latest_checkpoint(folder.path, config, 0) is not None
    with pytest.raises(UserError, match=r"another config: scenario\.horizon \(60 there, 61 here\)"):
        latest_checkpoint(folder.path, replace(config, scenario=TrafficConfig(61, "ego", "none")), 0)


def test_importing_world_classes_loads_neither_jax_nor_compilers_nor_simulators() -> None:
    heavy = ("jax", "numba", "scipy", "matplotlib", "mujoco", "gymnasium", "libsumo")
    code = f"""
import sys
from fedpohcs.core.registries import WORLDS
for name in WORLDS:
    WORLDS[name]
print([module for module in {heavy} if module in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
