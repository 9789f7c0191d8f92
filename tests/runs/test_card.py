import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.core.presets import preset
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loading import load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card") / "run"
    run_experiment(replace(preset("tabular", selector="fedavg"), rounds=2), folder)
    return folder


def front_matter(text: str) -> dict:
    """The YAML in front; every value is written as JSON."""
    _, head, _ = text.split("---\n", 2)
    return {key: json.loads(value) for key, _, value in (line.partition(": ") for line in head.splitlines())}


@pytest.mark.parametrize("name", ["policy.npz", "policy.onnx"])
def test_a_card_says_where_the_policy_comes_from_what_it_reached_and_how_to_use_it(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", f"{run}@best", str(tmp_path / name), "--card"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / name), str(tmp_path / "README.md")]
    text = (tmp_path / "README.md").read_text()
    head = front_matter(text)
    rounds = load_run(run).rounds
    best = rounds["mean_return"].argmax()
    (result,) = head["model-index"][0]["results"]
    assert {one["type"]: one["value"] for one in result["metrics"]}["mean_return"] == rounds["mean_return"][best]
    assert result["dataset"]["name"] == "tabular (medium)"
    assert head["library_name"] == "fedpohcs" and "federated-learning" in head["tags"]
    assert f"| round | {rounds['round'][best]} of 2 |" in text
    assert f'"{name}"' in text and ("onnxruntime" in text) == (name == "policy.onnx")


def test_a_card_replaces_a_card_and_nothing_else(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", str(run), str(tmp_path / "policy.npz"), "--card"]
    (tmp_path / "README.md").write_text("my own words")
    assert main(arguments) == 2
    assert "exists and is no model card" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    (tmp_path / "README.md").unlink()
    assert [main(arguments), main(arguments)] == [0, 0]


def test_without_the_option_no_card_is_written(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), str(tmp_path / "policy.npz")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["policy.npz"]
