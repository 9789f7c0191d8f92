import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loggers import make_loggers

SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=4)
CONFIG = replace(preset("tabular"), rounds=2, federation=SMALL)


def test_tensorboard_files_hold_the_returns_of_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401 - the format that is read below

    history = run_experiment(CONFIG, tmp_path / "run", observers=make_loggers(["tensorboard"], tmp_path / "run"))
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    data, values = file.read_bytes(), {}
    while data:
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        for value in event.summary.value:
            values[value.tag, event.step] = value.simple_value
        data = data[16 + length :]
    assert [values["return/mean", n] for n in range(3)] == pytest.approx(history.mean_returns)
    assert ("training/entropy", 2) in values or any(tag.startswith("training/") for tag, _ in values)


def test_hooks_of_other_tools_are_told_of_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for services that need an account: what is checked is what they are told."""
    told: list[tuple[str, Any]] = []
    run = SimpleNamespace(log=lambda values, step: told.append(("wandb", step)), finish=lambda: told.append(("end", 0)))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: run))
    mlflow = SimpleNamespace(
        set_experiment=lambda name: None,
        start_run=lambda run_name: None,
        log_params=lambda values: told.append(("params", values["learner.momentum"])),
        log_metrics=lambda values, step: told.append(("mlflow", step)),
        end_run=lambda: told.append(("end", 1)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    run_experiment(CONFIG, tmp_path / "run", observers=make_loggers(["wandb", "mlflow"], tmp_path / "run"))
    assert [step for tool, step in told if tool == "wandb"] == [0, 1, 2]
    assert [step for tool, step in told if tool == "mlflow"] == [0, 1, 2]
    assert ("params", 0.9) in told
    assert told[-2:] == [("end", 0), ("end", 1)]


def test_a_missing_or_unknown_tool_is_refused_before_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = str(tmp_path / "run")
    assert main(["train", "tabular", "--out", out, "--log", "wandb"]) == 2
    assert "pip install 'fedpohcs[wandb]'" in capsys.readouterr().err
    assert main(["train", "tabular", "--out", out, "--log", "tensorbord"]) == 2
    assert "Did you mean 'tensorboard'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
