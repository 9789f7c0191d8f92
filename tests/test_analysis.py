import base64
import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeRun
from fedpohcs.analysis import tables
from fedpohcs.analysis.figures import participation, return_by_round, save_figure, to_svg
from fedpohcs.analysis.groups import Group, group_runs, load_groups
from fedpohcs.analysis.report import render_report, write_report
from fedpohcs.config import FederationConfig, LearnerConfig
from fedpohcs.errors import UserError
from fedpohcs.storage import load_run

RETURN_AT_0 = -5.5  # minus the mean of the ids 0..11


@pytest.fixture
def groups(make_run: MakeRun) -> list[Group]:
    """Two selectors, three seeds, forty rounds; the second learns twice as fast."""
    for slope, selector in ((1.0, "fedavg"), (2.0, "fedpohcs")):
        for seed in range(3):
            path = make_run(f"{selector}/{seed}", slope, selector=selector, seed=seed, rounds=40)
    return load_groups([path.parent.parent])


def test_runs_that_differ_in_the_seed_alone_are_one_group(groups: list[Group]) -> None:
    assert [(group.label, len(group.runs)) for group in groups] == [("fedavg", 3), ("fedpohcs", 3)]
    assert groups[0].mean_returns.shape == (3, 41)


def test_groups_of_one_selector_are_named_by_the_settings_in_which_they_differ(make_run: MakeRun) -> None:
    paths = [make_run(str(rate), rounds=1, learner=LearnerConfig(learning_rate=rate)) for rate in (0.1, 0.2)]
    paths.append(make_run("fedavg", rounds=1, selector="fedavg"))
    assert [group.label for group in load_groups(paths)] == [
        "fedpohcs learner.learning_rate=0.1",
        "fedpohcs learner.learning_rate=0.2",
        "fedavg",
    ]


def test_the_same_experiment_given_twice_is_refused(make_run: MakeRun) -> None:
    runs = [load_run(make_run(name, rounds=1)) for name in ("one", "other")]
    with pytest.raises(UserError, match="repeats"):
        group_runs(runs)


def test_group_of_unequal_lengths_ends_with_the_shortest(make_run: MakeRun) -> None:
    runs = [load_run(make_run("one", rounds=5)), load_run(make_run("other", rounds=5, seed=1, stop_after=2))]
    assert group_runs(runs)[0].mean_returns.shape == (2, 3)


def test_statistics_of_a_straight_line(make_run: MakeRun) -> None:
    statistics = tables.run_statistics(load_run(make_run(rounds=100)))
    assert statistics["mean return, rounds 0-50"] == pytest.approx(25 + RETURN_AT_0)
    assert statistics["mean return, rounds 0-100"] == pytest.approx(50 + RETURN_AT_0)
    assert statistics["mean return, rounds 91-100"] == pytest.approx(95.5 + RETURN_AT_0)
    assert statistics["mean return, last 10 rounds"] == pytest.approx(95.5 + RETURN_AT_0)
    assert statistics["first round with mean return >= 0"] == 6
    assert statistics["first round with mean return >= 25"] == 31
    assert statistics["sd of round-to-round change after round 20"] == pytest.approx(0)
    assert statistics["clients below 0, last 10 rounds"] == 0
    assert statistics["selection share of clients 1-3"] == 1  # of five groups: 3, 3, 2, 2, 2
    assert statistics["selection share of clients 4-6"] == 0


def test_windows_beyond_a_short_run_are_not_numbers(make_run: MakeRun) -> None:
    statistics = tables.run_statistics(load_run(make_run(rounds=5, slope=0.0)))
    for name in ("rounds 0-50", "rounds 0-100", "rounds 91-100", "last 10 rounds"):
        assert np.isnan(statistics[f"mean return, {name}"])
    assert np.isnan(statistics["clients below 0, last 10 rounds"])
    assert np.isnan(statistics["sd of round-to-round change after round 20"])
    assert statistics["first round with mean return >= 0"] == np.inf


def test_clients_below_zero_are_counted_over_the_last_ten_rounds(make_run: MakeRun) -> None:
    statistics = tables.run_statistics(load_run(make_run(rounds=10, slope=1.0)))
    assert statistics["clients below 0, last 10 rounds"] == 6  # mean of rounds 1..10 is 5.5; ids 6..11 are below


def test_sixty_clients_are_grouped_as_in_the_paper() -> None:
    assert tables.id_groups(60) == [(1, 10), (11, 20), (21, 39), (40, 50), (51, 60)]
    assert tables.id_groups(3) == [(1, 1), (2, 2), (3, 3)]


def test_selection_shares_count_ids_from_one(make_run: MakeRun) -> None:
    federation = FederationConfig(num_clients=60, num_candidates=18, num_selected=12)
    statistics = tables.run_statistics(load_run(make_run(rounds=2, federation=federation)))
    assert statistics["selection share of clients 1-10"] == pytest.approx(10 / 12)
    assert statistics["selection share of clients 11-20"] == pytest.approx(2 / 12)


def test_confidence_interval_is_students() -> None:
    mean, half_width, _ = tables.confidence_interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half_width == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)  # t of 2 degrees of freedom, sd 1


def test_one_value_has_no_interval_and_never_is_infinite() -> None:
    assert np.isnan(tables.confidence_interval([1.0]).half_width)
    assert tables.confidence_interval([1.0, np.inf]).mean == np.inf
    assert np.isnan(tables.confidence_interval([np.nan, np.inf]).mean)
    assert np.isnan(tables.confidence_interval([]).mean)


def test_differences_are_paired_by_seed(groups: list[Group]) -> None:
    difference = tables.paired_difference(groups[1], groups[0])["mean return, last 10 rounds"]
    assert difference.mean == pytest.approx(35.5)  # one more a round, over rounds 31..40
    assert difference.half_width == pytest.approx(0, abs=1e-9)  # the seed's own effect cancels


def test_groups_without_a_common_seed_have_no_difference(make_run: MakeRun) -> None:
    runs = [load_run(make_run("a", rounds=1, seed=0)), load_run(make_run("b", rounds=1, seed=1, selector="fedavg"))]
    one, other = group_runs(runs)
    assert np.isnan(tables.paired_difference(one, other)["first round with mean return >= 0"].mean)


def test_tables_show_selectors_side_by_side_and_then_their_differences(groups: list[Group]) -> None:
    statistics, differences = tables.statistics_tables(groups)
    assert statistics.title == "tabular, medium heterogeneity, 3 seeds"
    assert statistics.headers == ("", "fedavg", "fedpohcs")
    rows = {name: cells for name, *cells in statistics.rows}
    assert rows["mean return, last 10 rounds"] == ["31.0 ± 2.5", "66.5 ± 2.5"]
    assert rows["mean return, rounds 0-50"] == ["-", "-"]
    assert rows["first round with mean return >= 50"] == ["never", "27.7 ± 1.4"]  # 28, 28, 27
    assert differences.title.startswith("difference to fedavg")
    assert differences.headers == ("", "fedpohcs")


def test_reference_can_be_chosen_and_must_be_known(groups: list[Group]) -> None:
    assert tables.statistics_tables(groups, "fedpohcs")[1].headers == ("", "fedavg")
    with pytest.raises(UserError, match="Did you mean 'fedavg'"):
        tables.statistics_tables(groups, "fedagv")


def test_markdown_has_a_row_for_every_statistic(groups: list[Group]) -> None:
    text = tables.to_markdown(tables.statistics_tables(groups))
    assert "### tabular, medium heterogeneity, 3 seeds" in text
    assert "| mean return, last 10 rounds | 31.0 ± 2.5 | 66.5 ± 2.5 |" in text


def test_csv_has_full_precision_and_the_value_of_every_seed(groups: list[Group]) -> None:
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(groups))))
    row = next(row for row in rows if row["statistic"] == "mean return, last 10 rounds" and row["group"] == "fedavg")
    assert float(row["mean"]) == tables.summarise(groups[0])["mean return, last 10 rounds"].mean
    assert [float(value) for value in row["values"].split()] == [30.0, 31.0, 32.0]


def test_timings_table_takes_the_median_without_round_0(groups: list[Group]) -> None:
    table = tables.timings_table(groups)
    assert table.rows[0] == ("fedavg (medium)", "0.250", "0.000", "0.500", "0.000", "0.125", "0.875")


def test_return_by_round_has_a_line_and_a_band_for_every_selector(groups: list[Group]) -> None:
    (axis,) = return_by_round(groups).axes
    assert [line.get_label() for line in axis.get_lines()] == ["fedavg", "fedpohcs"]
    assert len(axis.collections) == 2
    np.testing.assert_allclose(axis.get_lines()[0].get_ydata(), np.arange(41) + 1 + RETURN_AT_0)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("round", "mean return over all clients")


def test_return_by_round_has_a_panel_for_every_level(make_run: MakeRun) -> None:
    groups = load_groups([make_run(level, rounds=2, level=level) for level in ("low", "high")])
    titles = [axis.get_title() for axis in return_by_round(groups).axes]
    assert titles == ["tabular, low heterogeneity", "tabular, high heterogeneity"]


def test_participation_shows_selections_a_round_and_final_returns(groups: list[Group]) -> None:
    axes = participation(groups).axes
    bars = [patch.get_height() for patch in axes[0].patches]
    assert bars == [1, 1, 1] + [0] * 9
    points = next(axis for axis in axes[2:] if axis.collections).collections[0].get_offsets()
    np.testing.assert_allclose(points, np.column_stack([np.arange(1, 13), 35.5 + 1 - np.arange(12)]))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_figures_are_written_in_the_format_of_the_ending(groups: list[Group], tmp_path: Path, ending: str) -> None:
    path = tmp_path / "deep" / f"figure.{ending}"
    save_figure(return_by_round(groups), path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_unknown_figure_format_is_refused(groups: list[Group], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in one of .*\.png"):
        save_figure(return_by_round(groups), tmp_path / "figure.docx")


def test_the_same_runs_give_the_same_drawing(groups: list[Group]) -> None:
    assert to_svg(participation(groups)) == to_svg(participation(groups))


def test_report_is_one_file_that_loads_nothing(groups: list[Group], tmp_path: Path) -> None:
    write_report(groups, tmp_path / "report.html", "A <title> & more")
    text = (tmp_path / "report.html").read_text()
    assert "<h1>A &lt;title&gt; &amp; more</h1>" in text
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert len(sources) == 2
    for source in sources:
        head, _, data = source.partition(",")
        assert head == "data:image/svg+xml;base64"
        assert base64.b64decode(data).startswith(b"<?xml")
    assert "@import" not in text and "<script" not in text


def test_report_tells_results_times_settings_and_origin(groups: list[Group]) -> None:
    text = render_report(groups, "title")
    for part in ("31.0 ± 2.5", "median seconds a round", "&quot;num_candidates&quot;: 6", "&quot;packages&quot;"):
        assert part in text
    assert "stopped early" not in text


def test_report_says_when_a_run_stopped_early(make_run: MakeRun) -> None:
    text = render_report(load_groups([make_run(rounds=5, stop_after=2)]), "title")
    assert "1 run on tabular (medium)" in text
    assert "1 of them stopped early" in text


def test_runs_of_one_evaluation_alone_can_be_reported(make_run: MakeRun) -> None:
    assert "median seconds" in render_report(load_groups([make_run(rounds=5, stop_after=0)]), "title")


def test_of_a_short_and_a_long_run_of_one_seed_the_long_one_counts(make_run: MakeRun) -> None:
    groups = load_groups([make_run("short", rounds=3), make_run("long", rounds=5), make_run("other", rounds=3, seed=1)])
    assert [[run.path.name for run in group.runs] for group in groups] == [["long", "other"]]
