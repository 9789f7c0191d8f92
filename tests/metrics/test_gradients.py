"""Metrics of the policy gradient."""

from pathlib import Path

import pytest

from fedpohcs.cli import main


@pytest.mark.parametrize("episodes", ["1", "3", "4", "42"])
def test_gradient_norms_are_measured_from_any_number_of_steps(episodes: str, tmp_path: Path) -> None:
    """Tabular episodes have 50 steps: 50, 150, 200 and 2100 steps, of which 4 minibatches of up to 512 are made."""
    options = ["--selector", "gradient-norm", "--rounds", "1", "--federation.evaluation-episodes", episodes]
    assert main(["train", "tabular", *options, "--out", str(tmp_path / "run")]) == 0
