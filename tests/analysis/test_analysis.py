import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import MakeRun, made_up_records
from fedpohcs.analysis import rendering, tables
from fedpohcs.analysis.figures import gains as gains_figure
from fedpohcs.analysis.figures import participation, return_by_round, save_figure
from fedpohcs.analysis.gains import gain_figures, gains_over_local
from fedpohcs.analysis.groups import Group, by_level, group_runs, load_groups
from fedpohcs.analysis.report import report_data
from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.learning import PPOConfig
from fedpohcs.core.presets import preset
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import Run, load_run
from fedpohcs.worlds.gym import GymConfig

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
    paths = [make_run(str(rate), rounds=1, learner=PPOConfig(learning_rate=rate)) for rate in (0.1, 0.2)]
    paths.append(make_run("fedavg", rounds=1, selector="fedavg"))
    assert [group.label for group in load_groups(paths)] == [
        "fedpohcs learner.learning_rate=0.1",
        "fedpohcs learner.learning_rate=0.2",
        "fedavg",
    ]


def test_environments_are_worlds_and_not_schemes_of_one_world(tmp_path: Path) -> None:
    for env in ("CartPole-v1", "Acrobot-v1"):
        for selector in ("fedavg", "fedpohcs"):
            config = replace(preset("gym", selector=selector), scenario=GymConfig(env=env), rounds=2)
            folder = RunFolder.create(tmp_path / f"{env}-{selector}", config)
            for record in made_up_records(config):
                folder.append(record)
    groups = load_groups([tmp_path])
    assert {group.label for group in groups} == {"fedavg", "fedpohcs"}
    assert list(by_level(groups)) == [("gym (Acrobot-v1)", "own"), ("gym (CartPole-v1)", "own")]
    assert len(return_by_round(groups).axes) == 2
    assert tables.statistics_tables(groups)[0].title == "gym (Acrobot-v1), own heterogeneity, 1 seed"


def test_settings_of_a_world_that_all_runs_share_are_not_part_of_its_name(make_run: MakeRun, tmp_path: Path) -> None:
    traffic = preset("hongkong")
    for number, horizon in enumerate((100, 100, 200)):
        config = replace(traffic, scenario=replace(traffic.scenario, horizon=horizon), seed=number, rounds=1)
        folder = RunFolder.create(tmp_path / str(number), config)
        for record in made_up_records(config):
            folder.append(record)
    assert [group.place for group in load_groups([tmp_path / "0", tmp_path / "1"])] == ["hongkong"]
    places = {group.place: len(group.runs) for group in load_groups([tmp_path])}
    assert places == {"hongkong (horizon=100)": 2, "hongkong (horizon=200)": 1}


def test_the_same_experiment_given_twice_is_refused(make_run: MakeRun) -> None:
    runs = [load_run(make_run(name, rounds=1)) for name in ("one", "other")]
    with pytest.raises(UserError, match="repeats"):
        group_runs(runs)


def test_group_of_unequal_lengths_ends_with_the_shortest(make_run: MakeRun) -> None:
    runs = [load_run(make_run("one", rounds=5)), load_run(make_run("other", rounds=5, seed=1, stop_after=2))]
    assert group_runs(runs)[0].mean_returns.shape == (2, 3)


def scope_of(*runs: Run, thresholds: tuple[float, ...] = (0, 25), windows: tuple = ()) -> tables.Scope:
    return tables.make_scope(group_runs(list(runs)), thresholds, windows)


def test_the_share_of_a_group_of_one_client_names_the_client(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=20))
    shares = [name for name in tables.run_statistics(run, scope_of(run)) if name.startswith("selection share")]
    assert shares[0] == "selection share of clients 0-2"
    assert [f"client {a}" for a, b in tables.id_groups(3) if a == b] == ["client 0", "client 1", "client 2"]


def test_statistics_of_a_straight_line(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=100))
    statistics = tables.run_statistics(run, scope_of(run, windows=((0, 50), (91, 100))))
    assert statistics["mean return, rounds 0-100 (area under the curve)"] == pytest.approx(50 + RETURN_AT_0)
    assert statistics["mean return, rounds 0-50"] == pytest.approx(25 + RETURN_AT_0)
    assert statistics["mean return, rounds 91-100"] == pytest.approx(95.5 + RETURN_AT_0)
    assert statistics["mean return, last 10 rounds"] == pytest.approx(95.5 + RETURN_AT_0)
    assert statistics["sd of round-to-round change after round 20"] == pytest.approx(0)
    assert statistics["selection share of clients 0-2"] == 1  # of five groups: 3, 3, 2, 2, 2
    assert statistics["selection share of clients 3-5"] == 0


def test_statistics_tell_how_evenly_clients_are_served(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=10))  # client n ends with 5.5 - n, n = 0..11
    statistics = tables.run_statistics(run, scope_of(run))
    assert statistics["worst client, last 10 rounds"] == pytest.approx(-5.5)
    assert statistics["worst tenth of the clients, last 10 rounds"] == pytest.approx(-5)  # the lowest two of twelve
    assert statistics["sd over clients, last 10 rounds"] == pytest.approx(np.std(np.arange(12)))
    assert statistics["interquartile mean over clients, last 10 rounds"] == pytest.approx(0)
    assert statistics["number of clients below 0, last 10 rounds"] == 6


def test_windows_beyond_a_short_run_are_not_numbers(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=5, slope=0.0))
    statistics = tables.run_statistics(run, scope_of(run, windows=((0, 50),)))
    unknown = {name for name, value in statistics.items() if np.isnan(value)}
    assert "mean return, rounds 0-50" in unknown
    assert {name for name in statistics if "last 10" in name} <= unknown
    assert "sd of round-to-round change after round 20" in unknown
    assert "mean return, rounds 0-5 (area under the curve)" not in unknown


def test_area_is_taken_over_the_rounds_that_all_runs_of_a_level_have(make_run: MakeRun) -> None:
    runs = [load_run(make_run("a", rounds=30)), load_run(make_run("b", rounds=30, selector="fedavg", stop_after=12))]
    assert scope_of(*runs).last_round == 12
    assert "The runs have 12 to 30 rounds." in tables.statistics_tables(group_runs(runs))[0].note


def test_thresholds_are_given_or_the_worlds_or_found_in_the_runs(groups: list[Group], make_run: MakeRun) -> None:
    assert tables.make_scope(groups, (7.0,)).thresholds == (7,)
    assert tables.make_scope(groups).thresholds == (31, 49, 59)  # of the way from -4.5 to 66.5
    cars = load_groups([make_run("cars", rounds=1, world="mountain-cars")])
    assert tables.make_scope(cars).thresholds == (0, 25, 50, 60)


def test_runs_that_do_not_improve_have_no_thresholds(make_run: MakeRun) -> None:
    groups = load_groups([make_run(rounds=20, slope=-1.0)])
    assert tables.make_scope(groups).thresholds == ()
    assert len(tables.statistics_tables(groups)) == 1


def test_time_to_a_threshold_is_told_in_rounds_steps_minutes_and_megabytes(groups: list[Group]) -> None:
    scope = tables.make_scope(groups, (50,))
    never, fast = (tables.summarise_thresholds(group, scope) for group in groups)
    assert fast["rounds to mean return >= 50"].times == (28, 28, 27)
    assert fast["rounds to mean return >= 50"].estimate == 28
    assert fast["million training steps to mean return >= 50"].estimate == pytest.approx(28 * 3 * 256 / 1e6)
    assert fast["minutes to mean return >= 50"].estimate == pytest.approx(28 * 0.75 / 60)
    assert never["rounds to mean return >= 50"].estimate == np.inf
    assert never["rounds to mean return >= 50"].times == (40, 40, 40)


def test_sixty_clients_are_grouped_as_in_the_paper() -> None:
    assert tables.id_groups(60) == [(0, 9), (10, 19), (20, 38), (39, 49), (50, 59)]
    assert tables.id_groups(3) == [(0, 0), (1, 1), (2, 2)]


def test_selection_shares_count_ids_from_0(make_run: MakeRun) -> None:
    federation = FederationConfig(num_clients=60, num_candidates=18, num_selected=12)
    run = load_run(make_run(rounds=2, federation=federation))
    statistics = tables.run_statistics(run, scope_of(run))
    assert statistics["selection share of clients 0-9"] == pytest.approx(10 / 12)
    assert statistics["selection share of clients 10-19"] == pytest.approx(2 / 12)


def test_differences_are_paired_by_seed(groups: list[Group]) -> None:
    difference = tables.paired_difference(groups[1], groups[0], tables.make_scope(groups))
    interval, p_value, above = difference["mean return, last 10 rounds"]
    assert interval.estimate == pytest.approx(35.5)  # one more a round, over rounds 31..40
    assert interval.low == pytest.approx(interval.high)  # the seed's own effect cancels
    assert p_value == 2 / 2**3
    assert above[:3] == (1, 1, 1)


def test_groups_without_a_common_seed_have_no_difference(make_run: MakeRun) -> None:
    runs = [load_run(make_run("a", rounds=1, seed=0)), load_run(make_run("b", rounds=1, seed=1, selector="fedavg"))]
    one, other = group_runs(runs)
    differences = tables.paired_difference(one, other, scope_of(*runs))
    assert np.isnan(differences["mean return, rounds 0-1 (area under the curve)"].estimate)


def test_tables_show_selectors_side_by_side_then_thresholds_then_differences(groups: list[Group]) -> None:
    statistics, reached, differences, above = tables.statistics_tables(groups, thresholds=(50,))
    assert statistics.title == "tabular, medium heterogeneity, 3 seeds"
    assert statistics.headers == ("", "fedavg", "fedpohcs")
    assert ("mean return, last 10 rounds", "31.0 [30.0, 32.0]", "66.5 [65.5, 67.5]") in statistics.rows
    assert ("rounds to mean return >= 50", "not reached (0 of 3)", "28 (3 of 3)") in reached.rows
    assert differences.title.startswith("difference to fedavg")
    assert above.title.startswith("probability to be above fedavg")
    assert ("mean return, last 10 rounds", "1.00 [1.00, 1.00]") in above.rows
    assert ("mean return, last 10 rounds", "35.5 [35.5, 35.5], p 0.250") in differences.rows
    assert "3 shared seeds it cannot be below 0.250" in differences.note


def test_answers_left_out_are_counted_where_there_were_some(make_run: MakeRun, groups: list[Group]) -> None:
    assert not any("left out" in table.title for table in tables.statistics_tables(groups))
    path = make_run("bad", selector="full", rounds=12)
    with (path / "clients.csv").open("a") as file:
        file.write("3,1,bad-reply,train/finite/params/policy/layers/0/kernel,1.0\n")
        file.write("5,1,bad-reply,train/finite/steps,1.0\n5,2,bad-reply,evaluate/error,1.0\n")
    (table,) = [one for one in tables.statistics_tables(load_groups([path])) if "left out" in one.title]
    assert [row[:2] for row in table.rows] == [("evaluate, error", "1"), ("train, finite", "2")]


def test_reference_can_be_chosen_and_must_be_known(groups: list[Group]) -> None:
    assert tables.statistics_tables(groups, "fedpohcs")[-1].headers == ("", "fedavg")
    with pytest.raises(UserError, match="Did you mean 'fedavg'"):
        tables.statistics_tables(groups, "fedagv")


def test_a_level_without_the_reference_says_so_and_the_others_are_compared(make_run: MakeRun) -> None:
    for level, selectors in {"low": ("fedavg", "full"), "high": ("full", "fedpohcs")}.items():
        for selector in selectors:
            for seed in (0, 1):
                path = make_run(f"runs/{level}-{selector}-{seed}", level=level, selector=selector, seed=seed, rounds=3)
    groups = load_groups([path.parent])
    shown = tables.statistics_tables(groups, "fedavg")
    assert [table.title for table in shown if "difference" in table.title] == [
        "difference to fedavg, paired by seed (tabular, low heterogeneity)"
    ]
    assert any("high heterogeneity has no runs of fedavg" in table.note for table in shown)
    assert "fedavg" in tables.to_csv(groups, "fedavg")


def test_markdown_has_a_row_for_every_statistic(groups: list[Group]) -> None:
    text = rendering.to_markdown(tables.statistics_tables(groups))
    assert "### tabular, medium heterogeneity, 3 seeds" in text
    assert "| mean return, last 10 rounds | 31.0 [30.0, 32.0] | 66.5 [65.5, 67.5] |" in text


def test_latex_has_rules_and_escapes_what_is_special() -> None:
    table = tables.Table(
        "a & b_c", ("", "x%"), (("rounds to >= 5", "-1.5 [-2.0, 1.0]"), ("one-phase 1-10", "3")), "50 %"
    )
    text = rendering.to_latex([table])
    assert r"\caption{a \& b\_c}" in text
    assert "{lr}" in text
    assert all(f"\\{rule}" in text for rule in ("toprule", "midrule", "bottomrule"))
    assert r"rounds to $\ge$ 5 & $-$1.5 [$-$2.0, 1.0] \\" in text
    assert r"one-phase 1-10 & 3 \\" in text


def latex_row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.strip().startswith(name))
    return [cell.strip() for cell in line.removesuffix(r"\\").split("&")[1:]]


def test_latex_marks_the_best_of_a_row_and_has_labels(groups: list[Group]) -> None:
    found = tables.statistics_tables(groups, thresholds=(30, 50))
    text = rendering.to_latex(found, bold=True, prefix="tab:mine")
    assert latex_row(text, "mean return, last 10 rounds") == ["31.0 [30.0, 32.0]", r"\textbf{66.5 [65.5, 67.5]}"]
    assert latex_row(text, r"rounds to mean return $\ge$ 30") == ["35 (3 of 3)", r"\textbf{18 (3 of 3)}"]  # sooner
    assert latex_row(text, r"rounds to mean return $\ge$ 50") == ["not reached (0 of 3)", r"\textbf{28 (3 of 3)}"]
    assert latex_row(text, "sd over clients") == latex_row(rendering.to_latex(found), "sd over clients")  # equal
    assert not any("textbf" in line for line in text.splitlines() if "selection share" in line)
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert labels[:2] == ["tab:mine:tabular-medium-means", "tab:mine:tabular-medium-times"]
    assert len(set(labels)) == len(found)
    assert "textbf" not in rendering.to_latex(found)


def test_rows_are_chosen_by_what_their_names_hold(groups: list[Group]) -> None:
    chosen = tables.choose_rows(tables.statistics_tables(groups), ["worst tenth", "mean return, last 10"])
    names = [[row[0] for row in table.rows] for table in chosen]
    kept = ["mean return, last 10 rounds", "worst tenth of the clients, last 10 rounds"]
    assert names == [kept, kept, kept]  # means, differences, probabilities; no times
    assert [len(best) for best in chosen[0].best] == [1, 1]
    with pytest.raises(UserError, match=r"rows .* is not known. Did you mean 'worst tenth"):
        tables.choose_rows(tables.statistics_tables(groups), ["worst ten of the clients"])


def test_notes_speak_of_intervals_only_where_there_are_several_seeds(groups: list[Group], make_run: MakeRun) -> None:
    single = tables.statistics_tables(load_groups([make_run("single", rounds=20)]))
    assert all("interval" not in table.note and "median" not in table.note for table in single)
    assert single[0].note.startswith("One seed; ")
    assert tables.statistics_tables(groups)[0].note.startswith("Mean over seeds [95 % bootstrap interval]")


def test_the_table_command_renames_chooses_and_marks(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        make_run(f"all/a{seed}", selector="fedavg", seed=seed, rounds=12)
        make_run(f"all/b{seed}", slope=2.0, seed=seed, rounds=12)
    command = ["table", str(tmp_path / "all")]
    names = ["--names", "fedpohcs=FedPOHCS", "fedavg=FedAvg"]
    assert main([*command, "--format", "latex", "--bold", "--rows", "last 10 rounds", *names]) == 0
    text = capsys.readouterr().out
    assert "& FedPOHCS" in text or "FedPOHCS &" in text
    assert "fedpohcs" not in text.replace("% needs", "") and "difference to FedAvg" in text
    assert r"\textbf" in text and "area under the curve" not in text
    for wrong in (
        ["--rows", "x", "--format", "csv"],
        ["--bold"],
        ["--names", "x"],
        ["--names", "x=y"],
        ["--label", "{"],
    ):
        assert main([*command, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_terminal_shows_intervals_with_their_brackets(groups: list[Group], capsys: pytest.CaptureFixture[str]) -> None:
    rendering.print_tables(tables.statistics_tables(groups))
    assert "31.0 [30.0, 32.0]" in capsys.readouterr().out


def test_csv_has_full_precision_and_the_value_of_every_seed(groups: list[Group]) -> None:
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(groups, thresholds=(50,)))))
    found = {
        (row["group"], row["reference"], row["statistic"]): row for row in rows if row["summary"] != "probability above"
    }
    row = found["fedavg", "", "mean return, last 10 rounds"]
    assert [float(row[name]) for name in ("estimate", "low_95", "high_95")] == pytest.approx([31, 30, 32], abs=1e-6)
    assert [float(value) for value in row["values"].split()] == [30.0, 31.0, 32.0]
    assert found["fedavg", "", "rounds to mean return >= 50"]["values"] == "40.0+ 40.0+ 40.0+"
    difference = found["fedpohcs", "fedavg", "mean return, last 10 rounds"]
    assert float(difference["estimate"]) == pytest.approx(35.5)
    assert float(difference["p_value"]) == 0.25


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
    np.testing.assert_allclose(points, np.column_stack([np.arange(12), 35.5 + 1 - np.arange(12)]))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_figures_are_written_in_the_format_of_the_ending(groups: list[Group], tmp_path: Path, ending: str) -> None:
    path = tmp_path / "deep" / f"figure.{ending}"
    save_figure(return_by_round(groups), path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_unknown_figure_format_is_refused(groups: list[Group], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in one of .*\.png"):
        save_figure(return_by_round(groups), tmp_path / "figure.docx")


def test_the_same_runs_give_the_same_drawing(groups: list[Group], tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        save_figure(participation(groups), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_of_a_short_and_a_long_run_of_one_seed_the_long_one_counts(make_run: MakeRun) -> None:
    groups = load_groups([make_run("short", rounds=3), make_run("long", rounds=5), make_run("other", rounds=3, seed=1)])
    assert [[run.path.name for run in group.runs] for group in groups] == [["long", "other"]]


def test_whom_federating_helps_is_told_by_client(make_run: MakeRun, tmp_path: Path) -> None:
    """By hand: client i returns slope times round + seed - i, so that a slope of 2 gains the round."""
    alone = preset("tabular", algorithm="local").federation
    for seed in range(2):
        path = make_run(
            f"local/{seed}", 1.0, algorithm="local", selector="full", federation=alone, seed=seed, rounds=12
        )
        make_run(f"fedavg/{seed}", 2.0, selector="fedavg", seed=seed, rounds=12)
        make_run(f"worse/{seed}", 0.5, selector="oort", seed=seed, rounds=12)
    groups = load_groups([path.parent.parent])
    gains = {gain.label: gain for gain in gains_over_local(groups)}
    assert sorted(gains) == ["fedavg", "oort"]
    np.testing.assert_allclose(gains["fedavg"].by_seed, np.full((2, 12), 7.5))  # mean of rounds 3 to 12
    np.testing.assert_allclose(gains["oort"].by_client, np.full(12, -3.75))
    (table,) = [table for table in tables.statistics_tables(groups) if table.title.startswith("whom federating helps")]
    rows = {name: cells for name, *cells in table.rows}
    assert table.headers == ("", "fedavg", "oort")
    assert rows["share of clients above training alone"] == ["1 [1, 1]", "0 [0, 0]"]
    assert [cell.split()[0] for cell in rows["gain of the client that loses most"]] == ["7.50", "-3.75"]
    assert "share of clients above training alone" in tables.to_csv(groups)
    (panel,) = report_data(groups)["panels"]
    assert [gain["label"] for gain in panel["gains"]] == ["fedavg", "oort"]
    lines = {line.get_label(): line.get_ydata() for line in gains_figure(groups).axes[0].get_lines()}
    np.testing.assert_allclose(lines["fedavg"], 7.5)
    assert main(["plot", str(tmp_path), "--kind", "gains", "-o", str(tmp_path / "gains.png")]) == 0
    assert gains_over_local([group for group in groups if group.label != "local"]) == []
    with pytest.raises(UserError, match="must hold runs of the algorithm local"):
        gains_figure([group for group in groups if group.label != "local"])


def test_gains_have_a_sign_for_every_client() -> None:
    figures = gain_figures(np.array([1.0, -2.0, 0.0, 4.0, np.nan]))
    assert list(figures.values()) == [0.5, 0.75, -2.0, 4.0]
    assert all(np.isnan(value) for value in gain_figures(np.full(3, np.nan)).values())
