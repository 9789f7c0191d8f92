"""Run folders, configs and checkpoints that somebody made on purpose: one clear line, or no harm."""

import csv
import hashlib
import io
import json
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MakeRun
from fedpohcs.analysis.figures import return_by_round, save_figure
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.rendering import to_markdown
from fedpohcs.analysis.report import render_report, report_data
from fedpohcs.analysis.tables import to_csv
from fedpohcs.cli import main
from fedpohcs.cli.display import ProgressDisplay
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.toml import read_toml, to_toml
from fedpohcs.runs.experiment import resume_experiment
from fedpohcs.runs.loading import load_run
from fedpohcs.runs.policy import load_policy, read_arrays

STORED = Path(__file__).parent / "runs" / "stored"
DEEP_LIST = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A real run that stopped, with a checkpoint and a policy."""
    return shutil.copytree(STORED / "resumed-one-phase" / "stopped", tmp_path / "run")


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a refused command prints."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith("fedpohcs: ") and text.count("\n") == 1
    return text


def change_config(run: Path, **changes: Any) -> None:
    path = run / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# What a file expands to


def write_bomb(path: Path, mebibytes: int, shape: tuple[int, ...]) -> None:
    """An archive of one array of zeros, whose header announces `shape`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("policy/log_std.npy", header.getvalue() + bytes(mebibytes * 2**20))


@pytest.mark.parametrize("command", ["report", "export", "table"])
def test_a_policy_that_expands_is_refused_before_it_is_read(
    command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bomb(run / "policy.npz", 64, (2**24,))
    output = {"report": ["-o", tmp_path / "report.html"], "export": [tmp_path / "policy.onnx"], "table": []}[command]
    text = complaint(capsys, command, run, *output)
    assert "policy.npz" in text and "67108992 bytes, more than the" in text


def test_an_array_that_announces_more_than_it_holds_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    write_bomb(tmp_path / "policy.npz", 0, (2**50,))
    with pytest.raises(ValueError, match="announces 4503599627370496 bytes and has 0"):
        read_arrays(tmp_path / "policy.npz")


def test_a_policy_of_python_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "policy.npz", about=np.array([{}], object))
    with pytest.raises(ValueError, match="is of type object"):
        load_policy(tmp_path / "policy.npz")


BAD_POLICIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no layers": (lambda arrays: {"policy/log_std": arrays["policy/log_std"]}, "lacks every layer"),
    "a layer without bias": (
        lambda arrays: arrays | {"policy/layers/1/kernel": np.ones((3, 3), "f4")},
        "lacks policy/l",
    ),
    "layers that do not fit": (lambda arrays: arrays | {"policy/layers/0/bias": np.ones(9, "f4")}, "does not fit"),
    "text for numbers": (lambda arrays: arrays | {"policy/layers/0/bias": np.array(["a"])}, "floating-point"),
}


@pytest.mark.parametrize("kind", BAD_POLICIES)
def test_a_policy_of_another_form_is_refused_with_what_is_wrong(
    kind: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, rule = BAD_POLICIES[kind]
    np.savez(run / "policy.npz", **change(read_arrays(run / "policy.npz")))
    assert rule in complaint(capsys, "export", run, tmp_path / "policy.onnx", "--client", 1)


def test_a_policy_that_is_no_archive_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "policy.npz").write_bytes(b"PK\x03\x04 no archive")
    assert "not a sound .npz file" in complaint(capsys, "table", run)


# JSON and TOML


@pytest.mark.parametrize("name", ["config.json", "origin.json"])
@pytest.mark.parametrize("text", [DEEP_LIST, '{"a":' * 100_000, "[]", "3", '"text"', "9" * 5000])
def test_json_that_is_deep_or_no_object_is_refused(
    name: str, text: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_text(text)
    assert f"cannot be read: {name}: " in complaint(capsys, "table", run)


def test_json_of_40_levels_is_refused_though_python_can_read_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "origin.json").write_text('{"a":' * 40 + "1" + "}" * 40)
    assert "more than 32 levels" in complaint(capsys, "table", run)


@pytest.mark.parametrize("text", ["{}", '{"started": NaN, "x": 1e999}', '{"started": 3}', '{"started": ["a"]}'])
def test_an_origin_without_facts_is_reported_all_the_same(text: str, run: Path, tmp_path: Path) -> None:
    (run / "origin.json").write_text(text)
    assert main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 0
    assert report_data(load_groups([run]))["started"] is None


BAD_TOML = {
    "a key of 50,000 parts": (".".join("a" * 50_000) + " = 1", "a key of more than 8 parts"),
    "the same in quotes": (" . ".join(['"a b"'] * 50_000) + " = 1", "a key of more than 8 parts"),
    "the same in a table": ("[" + ".".join("a" * 50_000) + "]", "a key of more than 8 parts"),
    "the same after a quote in a comment": ('# "\n' + ".".join("a" * 50_000) + ' = 1\n# "', "a key of more than 8"),
    "quotes that never end": ('x = """' + '\\"' * 50_000, "Unterminated string"),
    "lists within lists": (f"rounds = {DEEP_LIST}", "more than 32 levels"),
    "5000 digits": ("rounds = " + "9" * 5000, "integer string conversion"),
    "5000 hexadecimal digits": ("rounds = 0x" + "f" * 5000, "must lie between"),
    "a rate of 400 digits": ("[learner]\nlearning_rate = 1" + "0" * 400, "must lie between"),
    "2**40 clients": ("[federation]\nnum_clients = 1099511627776", "must not exceed 10000000"),
    "5 MB": ("#" * (5 * 2**20), "more than 4194304"),
}


@pytest.mark.parametrize("kind", BAD_TOML)
def test_a_hostile_config_file_is_refused_within_seconds(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, rule = BAD_TOML[kind]
    (tmp_path / "exp.toml").write_text(text)
    before = time.process_time()
    told = complaint(capsys, "train", "--config", tmp_path / "exp.toml", "--out", tmp_path / "out")
    assert rule in told and len(told) < 1000
    assert time.process_time() - before < 5


def test_dots_in_numbers_texts_and_comments_are_no_keys(tmp_path: Path) -> None:
    weights = ", ".join(["1.5"] * 60)
    dots = "a." * 50
    (tmp_path / "exp.toml").write_text(f'# {dots}\nlevel = "{dots}"\n[federation]\nclient_weights = [{weights}]\n')
    assert read_toml(tmp_path / "exp.toml").level == dots


# Tables


def spoil(run: Path, name: str, old: str, new: str) -> None:
    text = (run / name).read_text()
    assert old in text
    (run / name).write_text(text.replace(old, new, 1))


BAD_ROWS = {
    "a client that is not there": ("clients.csv", "\n1,0,", "\n1,999999,", "names client 999999"),
    "a client below 0": ("clients.csv", "\n1,0,", "\n1,-1,", "names client -1"),
    "a round below 0": ("clients.csv", "\n1,0,", "\n-1,0,", "no round below 0"),
    "a client of 30 digits": ("clients.csv", "\n1,0,", f"\n1,{'9' * 30},", "too large"),
    "a round that is skipped": ("rounds.csv", "\n1,", "\n7,", "the rounds 0, 1, 2"),
}


@pytest.mark.parametrize("command", ["table", "report", "plot"])
@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_row_that_the_config_does_not_allow_is_refused(
    kind: str, command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, old, new, rule = BAD_ROWS[kind]
    spoil(run, name, old, new)
    output = {"table": [], "report": ["-o", tmp_path / "r.html"], "plot": ["-o", tmp_path / "p.png"]}[command]
    assert rule in complaint(capsys, command, run, *output)


@pytest.mark.parametrize(("column", "cell"), [("candidates", "999999"), ("selected", "-1"), ("selected", "0 x")])
def test_an_id_in_rounds_csv_that_is_none_is_refused(column: str, cell: str, run: Path) -> None:
    rows = [line.split(",") for line in (run / "rounds.csv").read_text().splitlines()]
    rows[-1][rows[0].index(column)] = cell
    (run / "rounds.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="cannot be read"):
        load_run(run)


@pytest.mark.parametrize("cell", ["inf", "-1e300"])
def test_a_mean_return_beyond_all_bounds_is_refused(cell: str, run: Path) -> None:
    rows = [line.split(",") for line in (run / "rounds.csv").read_text().splitlines()]
    rows[-1][1] = cell
    (run / "rounds.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="no mean_return beyond"):
        load_run(run)


@pytest.mark.parametrize("number", [2**40, 10**400])
def test_a_run_of_more_clients_than_can_be_is_refused(
    number: int, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_config(run, federation={"num_clients": number})
    assert "federation.num_clients (=1" in complaint(capsys, "table", run)


def test_a_small_folder_cannot_announce_returns_that_fill_the_memory(make_run: MakeRun) -> None:
    run = make_run(rounds=3)
    change_config(run, federation={"num_clients": 20_000})
    load_run(run)
    header, *_ = (run / "rounds.csv").read_text().splitlines()
    rows = [f"{number},0.0,0.0,0.0,0.0,0,0,0,,,0.0,12" for number in range(2000)]
    (run / "rounds.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(UserError, match="40000000 rounds times clients, more than"):
        load_run(run)


def test_rounds_without_a_row_in_timings_csv_have_no_times(run: Path) -> None:
    lines = (run / "timings.csv").read_text().splitlines()
    (run / "timings.csv").write_text("\n".join([lines[0], lines[-1]]) + "\n")
    timings = load_run(run).timings
    assert np.isnan(timings["total"]).tolist() == [True, True, False]
    report_data(load_groups([run]))


def test_a_run_whose_table_is_missing_cannot_go_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "timings.csv").unlink()
    assert "timings.csv cannot be read: No such file" in complaint(capsys, "resume", run)


def test_runs_of_an_unknown_world_with_different_settings_are_told_apart(make_run: MakeRun) -> None:
    for name, scenario in (("a", {"wind": 1}), ("b", {"rain": 2})):
        change_config(make_run(name, rounds=1), world="elsewhere", scenario=scenario)
    places = [group.place for group in load_groups([make_run("c", rounds=1).parent])]
    assert "elsewhere (rain=None, wind=1)" in places


def test_settings_of_an_unknown_world_cannot_take_the_place_of_attributes(run: Path) -> None:
    change_config(run, world="elsewhere", scenario={"__class__": 1})
    with pytest.raises(UserError, match="must be a plain name"):
        load_run(run)


# Checkpoints


def rewrite_checkpoint(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the head of the checkpoint and make its checksum fit."""
    (path,) = (run / "checkpoints").glob("*.ckpt")
    head, _, arrays = path.read_bytes().partition(b"\n")[2].partition(b"\n")
    body = json.dumps(change(json.loads(head))).encode() + b"\n" + arrays
    path.write_bytes(f"fedpohcs-checkpoint-1 {hashlib.sha256(body).hexdigest()} {len(body)}\n".encode() + body)


def nested(depth: int) -> Any:
    tree: Any = None
    for _ in range(depth):
        tree = {"type": "list", "fields": [tree]}
    return tree


MALFORMED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda head: [head],
    "no state": lambda head: {key: value for key, value in head.items() if key != "state"},
    "a state of another type": lambda head: head | {"state": {"type": "list", "fields": []}},
    "a server without its fields": lambda head: head | {"state": {"type": "server-state", "fields": [1]}},
    "an array that is not there": lambda head: head | {"state": {"type": "array", "fields": 10**6}},
    "a key that is a list": lambda head: (
        head | {"state": {"type": "dict", "fields": [[{"type": "list", "fields": []}, 1]]}}
    ),
    "Python objects": lambda head: head | {"arrays": [["|O", [1]], *head["arrays"][1:]]},
    "a negative shape": lambda head: head | {"arrays": [["<f4", [-1]], *head["arrays"][1:]]},
    "an array of 2**60 bytes": lambda head: head | {"arrays": [["<f4", [2**58]], *head["arrays"][1:]]},
    "a round in words": lambda head: head | {"round": "one"},
    "no config": lambda head: head | {"config": []},
    "a config of another form": lambda head: head | {"config": {"learner": 3}},
    "a policy of another shape": lambda head: (
        head | {"arrays": [[kind, [*shape, 1]] for kind, shape in head["arrays"]]}
    ),
    "300 levels": lambda head: head | {"state": nested(300)},
}


@pytest.mark.filterwarnings("ignore:checkpoint")
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_checkpoint_of_another_form_is_refused_and_the_run_left_as_it_was(kind: str, run: Path) -> None:
    rewrite_checkpoint(run, MALFORMED[kind])
    before = files_of(run)
    with pytest.raises(UserError, match="checkpoint"):
        resume_experiment(run)
    assert files_of(run) == before


def files_of(run: Path) -> dict[Path, bytes]:
    """The files of a run by their paths, except for the lock."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


# Names from run folders, shown elsewhere


def named(make_run: MakeRun, name: str, **changes: Any) -> Path:
    run = make_run(rounds=1)
    change_config(run, **{"world": name, "level": name, **changes})
    return run


def test_no_text_of_a_run_can_begin_markup_in_the_report(make_run: MakeRun) -> None:
    run = named(make_run, "<!--<script>")
    (run / "origin.json").write_text(json.dumps({"started": "<!--<script>"}))
    text = render_report(load_groups([run]), "title")
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["started"] == "<!--<script>"


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)"])
def test_no_name_of_a_run_is_a_formula_in_a_spreadsheet(name: str, make_run: MakeRun) -> None:
    first, *_ = csv.DictReader(io.StringIO(to_csv(load_groups([named(make_run, name, selector=name)]))))
    assert {first[column] for column in ("world", "level", "group")} == {f"'{name}"}
    assert not first["estimate"].startswith("'")


def test_no_name_of_a_run_is_html_or_a_column_or_a_link_in_markdown(make_run: MakeRun) -> None:
    from fedpohcs.analysis.tables import statistics_tables

    name = "<img src=x>|![a](https://example.org)`b`\\"
    text = to_markdown(statistics_tables(load_groups([named(make_run, name, selector=name)])))
    assert not {"<", "`", "\\"} & set(text)
    assert "](" not in text and "![" not in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {3}


def test_no_name_of_a_run_moves_the_cursor_or_is_markup_on_the_terminal(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[2J\x9b[/bold]\u202e\ud800"
    run = named(make_run, name, selector=name)
    assert main(["table", str(run)]) == 0
    told = capsys.readouterr().out
    assert "\\x1b[2J\\x9b[/bold]\\u202e\\ud800" in told.replace("\n", "")
    change_config(run, federation={name: 1})
    told += complaint(capsys, "table", run)
    ProgressDisplay().on_start(replace(preset("tabular"), level=name))
    told += capsys.readouterr().out
    assert all(one.isprintable() or one == "\n" for one in told)


def test_a_printed_config_holds_no_control_characters_and_reads_back(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text('level = "a\\u001b[2J\\u009b\\u007f\\"\\\\"\n')
    config = read_toml(tmp_path / "exp.toml")
    text = to_toml(config)
    assert all(one.isprintable() or one == "\n" for one in text)
    (tmp_path / "again.toml").write_text(text)
    assert read_toml(tmp_path / "again.toml") == config


def test_a_dollar_in_a_name_is_no_formula_in_a_figure(make_run: MakeRun, tmp_path: Path) -> None:
    groups = load_groups([named(make_run, r"$\nonsense$", selector=r"$\frac$")])
    save_figure(return_by_round(groups), tmp_path / "curves.svg")
