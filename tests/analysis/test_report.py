"""What the page is given, and that it is one file. How it looks in a browser: test_report_in_browser.py."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeRun
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.report import render_page, render_report, report_data, write_report
from fedpohcs.core.errors import UserError


def decode(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.fixture
def runs(make_run: MakeRun) -> Path:
    for selector in ("fedavg", "fedpohcs"):
        for seed in range(3):
            path = make_run(f"runs/{selector}-{seed}", selector=selector, seed=seed, rounds=12)
    return path.parent


def test_report_is_one_file_that_loads_nothing(runs: Path, tmp_path: Path) -> None:
    write_report(load_groups([runs]), tmp_path / "deep" / "report.html", "A <title> & more")
    text = (tmp_path / "deep" / "report.html").read_text()
    assert "<h1>A &lt;title&gt; &amp; more</h1>" in text
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,"]
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "{{" not in text.partition('id="data">')[0]


def test_names_from_runs_cannot_end_the_script_or_be_taken_for_a_placeholder() -> None:
    text = render_page({"panels": [], "note": "</script><script>alert(1)</script>{{style}}"}, "{{data}}")
    assert text.count("</script>") == 2
    assert "<title>{{data}}</title>" in text
    assert "{{style}}" in text


def test_curves_carry_mean_and_limits(runs: Path) -> None:
    (panel,) = report_data(load_groups([runs]))["panels"]
    group = panel["groups"][0]
    np.testing.assert_allclose(decode(group["mean"], "<f4"), np.arange(13) + 1 - 5.5)
    np.testing.assert_allclose(decode(group["low"], "<f4"), np.arange(13) - 5.5, atol=1e-4)
    np.testing.assert_allclose(decode(group["high"], "<f4"), np.arange(13) + 2 - 5.5, atol=1e-4)
    np.testing.assert_allclose(decode(group["clocks"]["minutes"], "<f4"), np.arange(13) * 0.75 / 60, rtol=1e-5)


def test_runs_carry_returns_selections_and_scores(runs: Path) -> None:
    run = report_data(load_groups([runs]))["panels"][0]["groups"][1]["runs"][2]
    assert (run["seed"], run["rounds"], run["totalRounds"], run["numClients"]) == (2, 12, 12, 12)
    steps, low, high = decode(run["returns"]["steps"], "<u2"), run["returns"]["low"], run["returns"]["high"]
    returns = low + (high - low) * steps.reshape(13, 12) / 65534
    np.testing.assert_allclose(returns, np.arange(13)[:, None] + 2 - np.arange(12), atol=(high - low) / 65534)
    assert decode(run["counts"], "<u2").tolist() == [0] + [6] * 12
    assert decode(run["candidates"], "<u2").tolist() == [0, 1, 2, 3, 4, 5] * 12
    assert decode(run["selected"], "u1").tolist() == [1, 1, 1, 0, 0, 0] * 12
    np.testing.assert_allclose(decode(run["scores"]["loss"], "<f4"), np.tile(np.arange(6) / 3, 12), rtol=1e-6)


def test_report_has_statistics_times_settings_and_origin(runs: Path) -> None:
    (panel,) = report_data(load_groups([runs]))["panels"]
    assert panel["intervals"]["fedavg"]["mean return, last 10 rounds"][0] == pytest.approx(3.0)  # 7.5 + 1 - 5.5
    assert panel["tables"][0]["title"] == "tabular, medium heterogeneity, 3 seeds"
    assert panel["groups"][0]["seconds"] == {
        "measure": 0.25,
        "select": 0,
        "train": 0.5,
        "aggregate": 0,
        "evaluate": 0.125,
    }
    assert panel["groups"][0]["config"]["federation"]["num_candidates"] == 6
    assert "packages" in panel["groups"][0]["origin"]


def test_what_is_not_a_number_is_null(make_run: MakeRun) -> None:
    data = report_data(load_groups([make_run(rounds=5, stop_after=0)]))
    assert data["panels"][0]["intervals"]["fedpohcs"]["mean return, last 10 rounds"] == [None, None, None]
    json.dumps(data, allow_nan=False)


def test_thresholds_of_the_report_can_be_chosen(runs: Path) -> None:
    assert report_data(load_groups([runs]), thresholds=(3.5,))["panels"][0]["thresholds"] == (3.5,)


def test_a_place_that_cannot_be_written_is_an_error_of_the_user(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_report(load_groups([runs]), tmp_path / "file" / "report.html")


def test_a_run_of_one_evaluation_alone_can_be_reported(make_run: MakeRun) -> None:
    assert "tabular" in render_report(load_groups([make_run(rounds=5, stop_after=0)]), "title")
