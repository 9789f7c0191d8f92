import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import PRESETS
from fedpohcs.core.toml import read_toml, to_toml
from fedpohcs.runs.loading import load_run


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(to_toml(preset(name)))
    assert read_toml(tmp_path / "exp.toml") == preset(name)


def test_optional_values_and_tuples_come_back(tmp_path: Path) -> None:
    config = replace(preset("tabular"), federation=FederationConfig(3, 2, 1, client_weights=(1.0, 2.0, 1e-9)))
    (tmp_path / "exp.toml").write_text(to_toml(config))
    assert read_toml(tmp_path / "exp.toml") == config


def test_the_file_explains_its_keys() -> None:
    text = to_toml(preset("mountain-cars"))
    assert "# K, the candidates that train.\nnum_selected = 6\n" in text
    assert tomllib.loads(text)["learner"]["momentum"] == 0.9


def test_a_file_trains_what_it_says_and_options_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config", "tabular", "--rounds", "2", "--federation.evaluation-episodes", "4"]) == 0
    Path("small.toml").write_text(capsys.readouterr().out)
    assert main(["train", "--config", "small.toml", "--seed", "3", "--selector", "fedavg"]) == 0
    config = load_run(Path("runs/small/medium/fedavg/seed-3")).config
    assert (config.rounds, config.seed, config.federation.evaluation_episodes) == (2, 3, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1\nrounds = ten\n", "line 2"),
        ("rounds = 0", "rounds (=0) must be at least 1"),
        ("roundz = 3", "Did you mean 'rounds'"),
        ("[learner]\nmomentun = 0.9", "learner.key (='momentun') is not known. Did you mean 'momentum'"),
        ("[learner]\nmomentum = 2.0", "learner.momentum (=2.0) must be at least 0 and below 1"),
        ("learner = 3", "learner (=3) must be a table of settings"),
        ('rounds = "ten"', "rounds (='ten') must be of type int"),
        ("[federation]\nnum_selected = 20", "must not exceed num_candidates"),
    ],
)
def test_a_bad_file_is_refused_with_key_value_and_rule(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exp.toml").write_text(text)
    assert main(["train", "--config", str(tmp_path / "exp.toml"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_missing_file_and_a_preset_beside_a_file_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "nowhere.toml"]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["train", "tabular", "--config", "nowhere.toml"]) == 2
    assert "takes the place of the preset" in capsys.readouterr().err
