"""Sweeps of tabular federations with the real Optuna."""

import csv
import sys
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.toml import read_toml
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.loading import find_runs, load_run
from fedpohcs.runs.sweeping import Choice, Range, Sweep, Watcher, parse_values

SEARCH = ["--search", "learner.learning_rate=1e-3..1:log", "--search", "learner.epochs=1..2"]
SWEEP = ["sweep", "tabular", "--selector", "fedavg", "--rounds", "6", *SEARCH, "--trials", "8", "--warmup", "1"]


def trials(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "trials.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("optuna")
    out = tmp_path_factory.mktemp("sweep") / "sweep"
    assert main([*SWEEP, "--out", str(out)]) == 0
    return out


def test_every_trial_is_a_run_with_the_settings_that_the_table_names(sweep: Path) -> None:
    rows = trials(sweep)
    assert len(rows) == 8 == len(list(find_runs([sweep])))
    for row in rows:
        run = load_run(sweep / f"trial-{int(row['trial']):03d}")
        assert run.config.learner.learning_rate == float(row["learner.learning_rate"])
        assert run.config.learner.epochs == int(row["learner.epochs"])
        assert run.config.selector == "fedavg"
        assert int(row["rounds"]) == run.rounds["round"][-1]
        assert float(row["score"]) == pytest.approx(run.rounds["mean_return"][-5:].mean())


def test_weak_trials_are_stopped_early_and_the_best_complete_one_becomes_a_file(sweep: Path) -> None:
    rows = trials(sweep)
    pruned = [row for row in rows if row["state"] == "pruned"]
    assert pruned and all(1 <= int(row["rounds"]) < 6 for row in pruned)
    assert all(int(row["rounds"]) == 6 for row in rows if row["state"] == "complete")
    best = max((row for row in rows if row["state"] == "complete"), key=lambda row: float(row["score"]))
    assert read_toml(sweep / "best.toml") == load_run(sweep / f"trial-{int(best['trial']):03d}").config


def test_a_sweep_goes_on_in_its_folder_with_more_trials_and_refuses_other_settings(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trials(sweep)
    assert main([*SWEEP, "--trials", "9", "--out", str(sweep)]) == 0
    assert trials(sweep)[:8] == before
    assert "trial 8: " in capsys.readouterr().out
    assert main([*SWEEP, "--learner.batch-size", "64", "--out", str(sweep)]) == 2
    assert "holds a sweep with another config.learner.batch_size" in capsys.readouterr().err


def test_a_sweep_that_was_stopped_goes_on_with_the_running_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its values, its runs and its table are those of a sweep that was not stopped."""
    pytest.importorskip("optuna")
    arguments = ["sweep", "tabular", "--selector", "fedavg", "--rounds", "4", *SEARCH, "--trials", "3"]
    report = Watcher.on_round

    def interrupted(self: Watcher, record: RoundRecord) -> bool:
        if (self.trial.number, record.round) == (1, 2):
            raise KeyboardInterrupt
        return report(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "on_round", interrupted)
        assert main([*arguments, "--out", str(tmp_path / "stopped")]) == 130
    assert "stopped; to go on: fedpohcs sweep tabular" in capsys.readouterr().err
    assert [path.name for path in sorted((tmp_path / "stopped").glob("trial-*"))] == ["trial-000", "trial-001"]
    for out in ("stopped", "whole"):
        assert main([*arguments, "--quiet", "--out", str(tmp_path / out)]) == 0
    for name in ("trial-001/rounds.csv", "trial-002/rounds.csv", "trials.csv", "best.toml"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_space_in_a_file_has_lists_and_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "space.toml").write_text(
        'selector = ["fedavg", "full"]\n[learner]\nhidden_sizes = [[], [8, 8]]\ndiscount = "0.9..0.99"\n'
    )
    out = tmp_path / "out"
    assert (
        main(
            [
                "sweep",
                "tabular",
                "--rounds",
                "1",
                "--space",
                str(tmp_path / "space.toml"),
                "--trials",
                "3",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    assert "learner.hidden_sizes" in capsys.readouterr().out
    for path in find_runs([out]):
        config = load_run(path).config
        assert config.selector in ("fedavg", "full")
        assert config.learner.hidden_sizes in ((), (8, 8))
        assert 0.9 <= config.learner.discount <= 0.99


@pytest.mark.parametrize(
    ("text", "present", "values"),
    [
        ("1..10", 3, Range(1, 10, False, True)),
        ("1..10", 3.0, Range(1, 10, False, False)),
        ("1e-4..1e-1:log", 0.01, Range(1e-4, 1e-1, True, False)),
        ("-2..2", None, Range(-2, 2, False, True)),
        ("clip,kl-penalty", "clip", Choice(("clip", "kl-penalty"))),
        ("[32],[64, 64]", (), Choice(("[32]", "[64, 64]"))),
    ],
)
def test_ranges_and_choices_are_read(text: str, present: object, values: Range | Choice) -> None:
    assert parse_values("key", text, present) == values


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({}, "must name at least one setting"),
        ({"learner.learning_rat": "0.1..1"}, "Did you mean 'learner.learning_rate'"),
        ({"rounds": "1..3"}, "search"),
        ({"learner.learning_rate": "1..0.1"}, "must rise"),
        ({"learner.learning_rate": "0..1:log"}, "start above 0"),
        ({"learner.learning_rate": "-1..1"}, "learner.learning_rate (=-1.0) must be a finite number above 0"),
        ({"learner.loss": "clip"}, "joined by commas"),
        ({"learner.loss": "clip,clip"}, "joined by commas"),
        ({"learner.loss": "clip,clap"}, "Did you mean 'clip'"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(search: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        Sweep(preset("tabular"), search)
    assert message in str(refused.value)


def test_without_optuna_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main([*SWEEP, "--out", str(tmp_path / "sweep")]) == 2
    assert (
        capsys.readouterr().err == "fedpohcs: sweep needs the extra sweep. Install it: pip install 'fedpohcs[sweep]'.\n"
    )
    assert not (tmp_path / "sweep").exists()
