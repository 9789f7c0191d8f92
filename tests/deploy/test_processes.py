"""End to end on loopback: real SuperLinks and SuperNodes with TLS and node authentication, and kills."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedpohcs.config import ExperimentConfig, FederationConfig
from fedpohcs.deploy.app_folder import run_settings
from fedpohcs.deploy.keys import make_keys
from fedpohcs.deploy.local import LocalFleet, marked_processes
from fedpohcs.experiment import run_experiment
from fedpohcs.grid import read_progress
from fedpohcs.presets import preset
from fedpohcs.storage import load_run

pytestmark = pytest.mark.slow
SMALL = FederationConfig(num_clients=3, num_candidates=3, num_selected=2, evaluation_episodes=8)
CONFIG = replace(preset("tabular"), rounds=3, federation=SMALL)
PATIENCE = 300.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE} s"
        time.sleep(0.2)


def rows(folder: Path, table: str, rounds: range) -> list[str]:
    lines = (folder / f"{table}.csv").read_text().splitlines()[1:]
    return [line for line in lines if int(line.partition(",")[0]) in rounds]


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in-process") / "run"
    run_experiment(replace(CONFIG, executor="one-by-one"), folder)
    return folder


def settings_for(config: ExperimentConfig, out: Path) -> dict[str, object]:
    return run_settings(config, out, **{"state-dir": str(out.with_name("states")), "phase-timeout": 180.0})


def test_a_run_survives_a_killed_node_and_refuses_a_stranger(in_process: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with LocalFleet(3, tmp_path / "logs", runtime="deployment") as fleet:
        run = fleet.submit(settings_for(CONFIG, out))
        stranger = make_keys(tmp_path / "stranger", 1, ["localhost"]).node_key(1)
        known = fleet.processes["client-2"]
        refused = fleet.start_node(2, key=stranger)
        fleet.processes["client-2-known"] = known
        wait_for(lambda: read_progress(out).round >= 1, "round 1")
        assert refused.wait(PATIENCE) != 0
        assert "Failed to activate SuperNode" in (tmp_path / "logs" / "client-2.log").read_text()
        os.kill(fleet.processes["client-3"].pid, signal.SIGKILL)
        assert run.wait(PATIENCE) == 0
        fleet_id = fleet.id
    assert not marked_processes(fleet_id)
    for table in ("rounds", "clients"):
        assert rows(out, table, range(2)) == rows(in_process, table, range(2))
    result = load_run(out)
    assert result.complete
    last = (result.clients["round"] == 3) & (result.clients["role"] == "evaluated")
    assert set(result.clients["client"][last].tolist()) == {0, 1}
    assert (result.rounds["train_steps"][1:] > 0).all()


def superlink_of(fleet_logs: Path) -> int:
    """The id of the SuperLink that a command started, from its log."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            here = (path.parent / "fd" / "1").readlink()
        except OSError:
            continue
        if here == fleet_logs / "superlink.log" and any(word.endswith(b"flower-superlink") for word in words):
            return int(path.parent.name)
    raise AssertionError("no SuperLink runs")


def test_a_run_goes_on_after_its_superlink_was_killed(in_process: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    program = [sys.executable, "-m", "fedpohcs", "flower", "run"]
    begin = [
        *program,
        "tabular",
        "--clients",
        "3",
        "--federation.num-selected",
        "2",
        "--rounds",
        "3",
        "--out",
        str(out),
    ]
    command = subprocess.Popen(begin, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: read_progress(out).round >= 1 or command.poll() is not None, "round 1")
    os.kill(superlink_of(tmp_path / "run-logs"), signal.SIGKILL)
    _, complaint = command.communicate(timeout=PATIENCE)
    assert command.returncode == 2
    assert "the superlink ended with code -9" in complaint
    subprocess.run([*program, "--resume", str(out)], check=True, timeout=2 * PATIENCE)
    for table in ("rounds", "clients"):
        assert (out / f"{table}.csv").read_text() == (in_process / f"{table}.csv").read_text()


def test_flowers_simulation_gives_the_same_bytes(in_process: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "run"
    with LocalFleet(3, tmp_path / "logs", runtime="simulation") as fleet:
        assert fleet.submit(settings_for(CONFIG, out)).wait(PATIENCE) == 0
        fleet_id = fleet.id
    assert not marked_processes(fleet_id)
    for table in ("rounds", "clients"):
        assert (out / f"{table}.csv").read_text() == (in_process / f"{table}.csv").read_text()
