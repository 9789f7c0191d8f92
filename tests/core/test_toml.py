import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
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
        ("[learner]\nalgorithm = 'os:system'", "learner.key (='algorithm') is not known"),  # a class variable
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


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)


def test_a_file_builds_on_a_preset_and_on_other_files(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    write(tmp_path / "shared", base='extends = "mountain-cars"\nrounds = 9\n[learner]\nmomentum = 0.5\nepochs = 2\n')
    write(tmp_path, mine='extends = "shared/base.toml"\nseed = 4\n[learner]\nepochs = 3\n')
    cars = preset("mountain-cars")
    expected = replace(cars, rounds=9, seed=4, learner=replace(cars.learner, momentum=0.5, epochs=3))
    assert read_toml(tmp_path / "mine.toml") == expected


def test_a_preset_that_is_extended_adapts_to_the_level_and_the_selector(tmp_path: Path) -> None:
    write(tmp_path, high='extends = "mountain-cars-paper"\nlevel = "high"\n', plain='extends = "mountain-cars-paper"\n')
    assert read_toml(tmp_path / "high.toml") == preset("mountain-cars-paper", "high")
    assert read_toml(tmp_path / "plain.toml", "low", "fedavg") == preset("mountain-cars-paper", "low", "fedavg")
    assert read_toml(tmp_path / "high.toml", "low") == preset("mountain-cars-paper", "low")


def test_another_learner_or_world_leaves_settings_of_the_old_one_behind(tmp_path: Path) -> None:
    write(tmp_path, dqn='extends = "tabular"\n[learner]\nkind = "dqn"\nreplay_size = 99\n')
    learner = read_toml(tmp_path / "dqn.toml").learner
    assert (learner.kind, learner.replay_size, learner.hidden_sizes) == ("dqn", 99, ())  # type: ignore[attr-defined]
    write(tmp_path, cars='extends = "hongkong"\nworld = "mountain-cars"\nlevel = "low"\n')
    with pytest.raises(UserError, match="level"):  # the preset has no such level
        read_toml(tmp_path / "cars.toml")
    write(
        tmp_path,
        traffic='world = "hongkong"\n[scenario]\nhorizon = 7\n',
        cars='extends = "traffic.toml"\nworld = "tabular"\n',
    )
    assert read_toml(tmp_path / "cars.toml").world == "tabular"


def test_files_that_extend_each_other_or_too_many_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a='extends = "b.toml"', b='extends = "./a.toml"', own='extends = "own.toml"')
    for name in ("a", "own"):
        with pytest.raises(UserError, match="leads back to a file that extends it"):
            read_toml(tmp_path / f"{name}.toml")
    write(tmp_path, **{f"n{i}": f'extends = "n{i + 1}.toml"' for i in range(9)}, n9="rounds = 3")
    with pytest.raises(UserError, match="at most 8 may be chained"):
        read_toml(tmp_path / "n0.toml")
    assert read_toml(tmp_path / "n2.toml").rounds == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "nowhere.toml"', "nowhere.toml') cannot be read: No such file"),
        ('extends = "mountain-car"', "Did you mean 'mountain-cars'"),
        ("extends = 3", "must be the name of a file or of a preset"),
        ('extends = "tabular"\nroundz = 3', "Did you mean 'rounds'"),
        ('extends = "tabular"\n[learner]\nkind = "ppp"', "Did you mean 'ppo'"),
        ('extends = "tabular"\nlearner = 3', "learner (=3) must be a table"),
    ],
)
def test_a_bad_base_is_refused_in_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, exp=text)
    assert main(["config", "--config", str(tmp_path / "exp.toml")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_set_changes_any_setting_and_options_come_after_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["learner.hidden_sizes=[32, 16]", "selector=fedavg", "level=low", "modelling.episodes=5", "rounds=7"]
    given += ["federation.client-weights=None", "learner.loss=clip"]
    arguments = [word for one in given for word in ("--set", one)]
    assert main(["config", "mountain-cars-paper", *arguments, "--rounds", "8"]) == 0
    (tmp_path / "exp.toml").write_text(capsys.readouterr().out)
    config, paper = read_toml(tmp_path / "exp.toml"), preset("mountain-cars-paper", "low", "fedavg")
    assert config.learner == replace(paper.learner, hidden_sizes=(32, 16), loss="clip")
    assert (config.selector, config.level, config.modelling.episodes, config.rounds) == ("fedavg", "low", 5, 8)


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        ("train", "rounds", "must be KEY=VALUE"),
        ("train", "=3", "must be KEY=VALUE"),
        ("train", "learner.momentum.x=3", "must be KEY=VALUE"),
        ("train", "learner.momentun=0.5", "Did you mean 'momentum'"),
        ("train", "learner.momentum=2", "learner.momentum (=2) must be at least 0 and below 1"),
        ("train", "learner.momentum=fast", "learner.momentum (='fast') must be of type float"),
        ("compare", "seed=3", "is what compare varies. Use --seeds."),
    ],
)
def test_a_bad_assignment_is_refused_in_one_line(
    command: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "tabular", "--set", text, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
