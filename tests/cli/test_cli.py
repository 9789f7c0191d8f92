import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import MakeRun, made_up_records
from fedpohcs.cli import main
from fedpohcs.cli.program import COMMANDS
from fedpohcs.cli.signals import TerminationInterrupt, stopped_by_signals
from fedpohcs.core.algorithms import Algorithm
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import ALGORITHMS
from fedpohcs.runs import experiment
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import load_run, read_config


@pytest.fixture
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> list[ExperimentConfig]:
    """Training replaced by made-up records; the list says what was asked for."""
    asked: list[ExperimentConfig] = []

    def run(config: ExperimentConfig, out: Path, *, overwrite: bool = False, observers: Sequence, **rest: int) -> None:
        asked.append(config)
        folder = RunFolder.create(out, config, overwrite)
        for observer in observers:
            observer.on_start(config)
        for record in made_up_records(config):
            folder.append(record)
            for observer in observers:
                observer.on_round(record)
        folder.save_policy({}, 0)

    def resume(out: Path, *, rounds: int, observers: Sequence, **rest: int) -> None:
        run(replace(read_config(out), rounds=rounds), out, overwrite=True, observers=observers)

    monkeypatch.setattr(experiment, "run_experiment", run)
    monkeypatch.setattr(experiment, "resume_experiment", resume)
    return asked


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_and_its_command_line_loads_nothing_heavy() -> None:
    heavy = ("jax", "numba", "scipy", "matplotlib")
    code = f"import sys, fedpohcs.cli.program; print([m for m in {heavy} if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_importing_the_package_alone_loads_not_even_numpy() -> None:
    assert python("import sys, fedpohcs; print('numpy' in sys.modules)").strip() == "False"


def test_public_names_are_found_on_the_package() -> None:
    code = "import fedpohcs; print([n for n in fedpohcs.__all__ if getattr(fedpohcs, n) is None])"
    assert python(code).strip() == "[]"


def test_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import fedpohcs

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedpohcs.nothing


def test_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "fedpohcs", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fedpohcs ")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"usage: fedpohcs {command}" in capsys.readouterr().out


def test_help_of_a_preset_shows_its_values_and_hides_what_compare_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "tabular", "--help"]) == 0
    text = capsys.readouterr().out
    assert "(default: 12)" in text
    for hidden in ("--world", "--selector ", "--seed ", "--level "):
        assert hidden not in text


@pytest.mark.parametrize("group", [[], ["flower"], ["flower", "members"], ["theory"], ["osm"]])
def test_a_command_without_its_subcommand_prints_its_help_and_exits_with_2(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(group) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert main([*group, "--help"]) == 0
    assert capsys.readouterr() == (printed.err, "")
    assert printed.err.startswith(" ".join(["usage: fedpohcs", *group, "COMMAND ..."]))


@pytest.mark.parametrize("command", ["train", "compare", "config", "sweep"])
def test_help_without_a_preset_shows_no_default_preset(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"usage: fedpohcs {command} PRESET" in text
    assert "There is no default. The values below are those of mountain-cars" in text


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in ("mountain-cars", "high-authors", "power-of-choice", "mountain-cars-paper", "policy-mean"):
        assert name in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: fedpohcs COMMAND"),
        (["trian"], "Did you mean 'train'"),
        (["train"], "needs a preset"),
        (["train", "mountain-car"], "Did you mean 'mountain-cars'"),
        (["train", "tabular", "--selector", "fedpohc"], "Did you mean 'fedpohcs'"),
        (["train", "tabular", "--level", "hgih"], "Did you mean 'high'"),
        (["train", "tabular", "--rounds", "0"], "rounds (=0) must be at least 1"),
        (["train", "tabular", "--rounds", "many"], "--rounds"),
        (["train", "tabular", "--seed", "-1"], "seed"),
        (["train", "tabular", "--learner.learning-rate", "nan"], "learner.learning_rate (=nan)"),
        (["train", "tabular", "--learner.learning-rate", "-1"], "learner.learning_rate (=-1.0)"),
        (["train", "tabular", "--learner.learning-rat", "1"], "--learner.learning-rate"),
        (["train", "tabular", "--federation.num-selected", "7"], "must not exceed num_candidates"),
        (["train", "tabular", "--federation.num-candidates", "13"], "must not exceed num_clients"),
        (["train", "tabular", "--federation.aggregator", "mean"], "Did you mean 'policy-mean'"),
        (["train", "tabular", "--learner.loss", "none"], "kl-penalty"),
        (["train", "tabular", "--world", "tabular"], "--world"),
        (["train", "tabular", "--out"], "--out"),
        (["compare", "tabular"], "--out"),
        (["compare", "tabular", "--out", "x", "--selectors", "fedavg,fedprox"], "selector (='fedprox')"),
        (["compare", "tabular", "--out", "x", "--selectors", "fedavg,fedavgm"], "selector (='fedavgm')"),
        (["compare", "tabular", "--out", "x", "--algorithms", "fedavg,fedavg"], "different names"),
        (["compare", "tabular", "--out", "x", "--algorithms", "fedadm"], "Did you mean 'fedadam'"),
        (["train", "tabular", "--algorithm", "fedadm"], "Did you mean 'fedadam'"),
        (["train", "tabular", "--selector", "fedavgm"], "selector (='fedavgm')"),
        (["compare", "tabular", "--out", "x", "--selectors", "fedavg,"], "joined by commas"),
        (["compare", "tabular", "--out", "x", "--selectors", "fedavg+momntum"], "momentum"),
        (["compare", "tabular", "--out", "x", "--seeds", "3-1"], "ranges such as 10-12"),
        (["compare", "tabular", "--out", "x", "--seeds", "1,0-2"], "must be different numbers"),
        (["compare", "tabular", "--out", "x", "--selectors", "fedavg,fedavg"], "different names"),
        (["compare", "tabular", "--out", "x", "--seeds", "0,one"], "whole numbers"),
        (["compare", "tabular", "--out", "x", "--levels", "low,lower"], "level (='lower')"),
        (["compare", "tabular", "--out", "x", "--selector", "fedavg"], "--selectors"),
        (["plot", "nowhere"], "is not a run folder"),
        (["table"], "run"),
        (["table", "nowhere", "--thresholds", "0,high"], "thresholds (='0,high')"),
        (["table", "nowhere", "--thresholds", "nan"], "thresholds (='nan')"),
        (["table", "nowhere", "--windows", "0-50,9"], "windows (='0-50,9')"),
        (["table", "nowhere", "--windows", "50-0"], "windows (='50-0')"),
        (["report", "nowhere", "--thresholds", "high"], "thresholds (='high')"),
        (["report", "."], "there is none in it"),
        (["list", "everything"], "everything"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2_and_writes_nothing(
    arguments: list[str], message: str, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.replace("│", " ").split())
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert list(in_empty_folder.iterdir()) == []


def test_bad_input_on_the_real_command_line_has_no_traceback() -> None:
    command = [sys.executable, "-m", "fedpohcs", "train", "tabular", "--rounds", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "fedpohcs: rounds (=0) must be at least 1.\n"


@pytest.mark.parametrize("out", ["used", "file", "file/below"])
def test_train_refuses_a_place_it_would_damage(
    out: str, in_empty_folder: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    before = make_run("used", rounds=1).joinpath("rounds.csv").read_bytes()
    (in_empty_folder / "file").write_text("mine")
    assert main(["train", "tabular", "--out", out]) == 2
    assert "out" in capsys.readouterr().err
    assert (in_empty_folder / "used" / "rounds.csv").read_bytes() == before
    assert (in_empty_folder / "file").read_text() == "mine"


def test_train_writes_a_complete_run_of_the_asked_config(in_empty_folder: Path) -> None:
    arguments = ["--selector", "power-of-choice", "--level", "high", "--seed", "3", "--rounds", "2"]
    assert main(["train", "tabular", "--out", "run", *arguments]) == 0
    run = load_run(in_empty_folder / "run")
    assert run.complete
    assert (run.config.selector, run.config.level, run.config.seed) == ("power-of-choice", "high", 3)
    assert run.times_selected.sum() == 2 * 3
    assert (run.path / "policy.npz").exists()


def test_train_applies_the_preset_of_the_level_and_then_the_options(quick_runs: list[ExperimentConfig]) -> None:
    assert main(["train", "mountain-cars-paper", "--selector", "fedavg", "--level=low", "--rounds", "1"]) == 0
    assert (
        main(["train", "mountain-cars", "--level", "low", "--learner.entropy-decay-rounds", "7", "--rounds", "1"]) == 0
    )
    paper, ours = quick_runs
    assert paper.learner == preset("mountain-cars-paper", "low", "fedavg").learner
    assert type(paper) is ExperimentConfig
    assert ours.learner.entropy_decay_rounds == 7


def test_train_names_the_folder_itself_when_none_is_given(
    quick_runs: list[ExperimentConfig], in_empty_folder: Path
) -> None:
    assert main(["train", "tabular", "--rounds", "1"]) == 0
    assert (in_empty_folder / "runs/tabular/medium/fedpohcs/seed-0/rounds.csv").exists()


def test_train_replaces_a_run_only_with_overwrite(quick_runs: list[ExperimentConfig]) -> None:
    assert main(["train", "tabular", "--rounds", "1", "--out", "run"]) == 0
    assert main(["train", "tabular", "--rounds", "2", "--out", "run"]) == 2
    assert main(["train", "tabular", "--rounds", "2", "--out", "run", "--overwrite"]) == 0
    assert load_run(Path("run")).config.rounds == 2


def test_progress_is_plain_lines_without_a_terminal(
    quick_runs: list[ExperimentConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "tabular", "--rounds", "25"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round")]
    assert [line.split()[1] for line in lines] == ["0/25", "10/25", "20/25", "25/25"]
    assert "mean return 19.5  worst 14.0 (client 11)" in lines[-1]


COMPARE = [
    "compare",
    "tabular",
    "--selectors",
    "fedpohcs,fedavg",
    "--seeds",
    "0,1",
    "--rounds",
    "12",
    "--out",
    "cmp",
    "--jobs",
    "1",
]


def test_compare_runs_every_level_selector_and_seed(quick_runs: list[ExperimentConfig]) -> None:
    assert main([*COMPARE, "--levels", "low,high", "--learner.batch-size", "64"]) == 0
    assert [(config.level, config.selector, config.seed) for config in quick_runs] == [
        (level, selector, seed) for level in ("low", "high") for selector in ("fedpohcs", "fedavg") for seed in (0, 1)
    ]
    assert {config.learner.batch_size for config in quick_runs} == {64}
    assert load_run(Path("cmp/high/fedavg/seed-1")).config == quick_runs[-1]


def test_compare_logs_every_run(quick_runs: list[ExperimentConfig], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPARE, "--log", "tensorbord"]) == 2
    assert "Did you mean 'tensorboard'" in capsys.readouterr().err
    assert main([*COMPARE, "--log", "tensorboard"]) == 0
    assert len(list(Path("cmp").glob("medium/*/seed-*/tensorboard/events*"))) == 4


def test_compare_takes_selectors_with_a_server_optimiser_and_ranges_of_seeds(
    quick_runs: list[ExperimentConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--selectors", "fedavg,fedavg+momentum", "--seeds", "3,10-11", "--rounds", "12", "--jobs", "1"]
    assert main(["compare", "tabular", *options, "--out", "cmp"]) == 0
    assert [(c.selector, c.federation.server_optimiser, c.seed) for c in quick_runs] == [
        ("fedavg", optimiser, seed) for optimiser in (None, "momentum") for seed in (3, 10, 11)
    ]
    assert load_run(Path("cmp/medium/fedavg+momentum/seed-11")).config == quick_runs[-1]
    assert "fedavg+momentum" in capsys.readouterr().out.split("difference to fedavg")[1]  # a column of its own


def test_compare_names_runs_folders_and_groups_by_algorithm(
    quick_runs: list[ExperimentConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ALGORITHMS.entries, "mine", Algorithm("Mine.", {"learner": {"learning_rate": 0.01}}))
    options = ["--algorithms", "fedavg,fedavgm,mine+full", "--seeds", "0", "--rounds", "12", "--jobs", "1"]
    assert main(["compare", "tabular", *options, "--learner.critic-epochs", "1", "--out", "cmp"]) == 0
    assert [config.method for config in quick_runs] == ["fedavg", "fedavgm", "mine+full"]
    assert [config.algorithm for config in quick_runs] == [None, "fedavgm", "mine"]
    assert [config.learner.learning_rate for config in quick_runs] == [0.1, 0.1, 0.01]
    assert {config.learner.critic_epochs for config in quick_runs} == {1}
    assert load_run(Path("cmp/medium/mine+full/seed-0")).config == quick_runs[-1]
    assert "mine+full" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--selector", "fedavg+adam"], ["--selector=fedavg+adam"]])
def test_train_takes_a_selector_with_a_server_optimiser(quick_runs: list[ExperimentConfig], option: list[str]) -> None:
    assert main(["train", "tabular", *option, "--rounds", "1"]) == 0
    assert (quick_runs[0].selector, quick_runs[0].federation.server_optimiser) == ("fedavg", "adam")
    assert Path("runs/tabular/medium/fedavg+adam/seed-0/rounds.csv").exists()


def test_compare_ends_with_a_table_and_the_paths_of_what_it_wrote(
    quick_runs: list[ExperimentConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMPARE) == 0
    text = capsys.readouterr().out
    assert "mean return, last 10 rounds" in text
    paths = text.splitlines()[-5:]
    assert paths == [f"cmp/{n}" for n in ("table.md", "table.csv", "curves.png", "participation.png", "report.html")]
    assert all(Path(path).stat().st_size > 0 for path in paths)


def test_compare_keeps_complete_runs_and_repeats_what_was_cut_short(
    quick_runs: list[ExperimentConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMPARE) == 0
    rounds = Path("cmp/medium/fedavg/seed-1/rounds.csv")
    rounds.write_text("\n".join(rounds.read_text().splitlines()[:5]) + "\n")
    quick_runs.clear()
    assert main(COMPARE) == 0
    assert [(config.selector, config.seed) for config in quick_runs] == [("fedavg", 1)]
    assert "3 of 4 runs are complete already, kept" in capsys.readouterr().out


def test_compare_refuses_runs_of_other_settings_before_it_runs_anything(
    quick_runs: list[ExperimentConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMPARE) == 0
    quick_runs.clear()
    assert main([*COMPARE, "--learner.batch-size", "64"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert quick_runs == []
    assert main([*COMPARE, "--learner.batch-size", "64", "--overwrite"]) == 0
    assert len(quick_runs) == 4


def test_compare_refuses_a_folder_of_something_else(
    quick_runs: list[ExperimentConfig], in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_empty_folder / "cmp").mkdir()
    (in_empty_folder / "cmp" / "thesis.tex").write_text("years of work")
    assert main([*COMPARE, "--overwrite"]) == 2
    assert "not a comparison" in capsys.readouterr().err
    assert quick_runs == []


def test_plot_table_and_report_read_runs_and_parents_of_runs(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        make_run(f"runs/fedavg-{seed}", selector="fedavg", seed=seed, rounds=12)
        make_run(f"runs/full-{seed}", slope=2.0, selector="full", seed=seed, rounds=12)
    assert main(["plot", "runs", "-o", "a.svg"]) == 0
    assert main(["plot", "runs/fedavg-0", "runs/full-0", "--output", "b.png", "--kind", "participation"]) == 0
    assert main(["report", "runs", "-o", "c.html", "--title", "Mine"]) == 0
    assert [Path(line).stat().st_size > 0 for line in capsys.readouterr().out.split()] == [True] * 3
    assert main(["table", "runs", "--reference", "full"]) == 0
    assert "difference to full" in capsys.readouterr().out
    assert main(["table", "runs", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("### tabular")
    assert main(["table", "runs", "--format", "latex", "--thresholds", "5", "--windows", "2-4"]) == 0
    text = capsys.readouterr().out
    assert r"\toprule" in text and "mean return, rounds 2-4" in text and r"mean return $\ge$ 5" in text
    assert main(["table", "runs", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("world,level,group")


def test_interrupt_is_one_line_and_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "run_experiment", interrupted)
    assert main(["train", "tabular"]) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals work differently there")
def test_an_interrupted_run_keeps_its_rounds(in_empty_folder: Path) -> None:
    command = [sys.executable, "-m", "fedpohcs", "train", "tabular", "--rounds", "100000", "--out", "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        table = in_empty_folder / "run" / "rounds.csv"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (table.exists() and len(table.read_text().splitlines()) > 2):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "fedpohcs: interrupted; the rounds finished so far are kept.\n"
    assert len(load_run(in_empty_folder / "run").rounds["round"]) >= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_arrives_during_garbage_collection_is_not_lost(number: signal.Signals) -> None:
    """Python drops what a callback of the garbage collector raises, and JAX has such a callback."""

    def collected(phase: str, info: object) -> None:
        gc.callbacks.remove(collected)
        signal.raise_signal(number)

    expected = TerminationInterrupt if number == signal.SIGTERM else KeyboardInterrupt
    with pytest.raises(expected, match=r"^enough$"), stopped_by_signals("enough"):
        gc.callbacks.append(collected)
        gc.collect()
        for _ in range(1000):  # a signal just before a sleep does not shorten it
            time.sleep(0.01)


def test_a_value_after_a_flag_is_refused_with_the_way_to_switch_it_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "tabular", "--time.asynchronous", "True"]) == 2
    error = capsys.readouterr().err
    assert "--time.asynchronous takes no value; --time.no-asynchronous switches it off." in error
