"""End to end on loopback: real SuperLinks and nodes with TLS and node authentication, private selection, and kills."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedpohcs.cli.grid import read_progress
from fedpohcs.core.config import ExperimentConfig, FederationConfig, ProtectionConfig
from fedpohcs.core.presets import preset
from fedpohcs.deploy.app_folder import run_settings
from fedpohcs.deploy.guardian import marked_processes
from fedpohcs.deploy.keys import make_keys
from fedpohcs.deploy.local import LocalFleet, find_program, free_port
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.storage import load_run

SMALL = FederationConfig(num_clients=3, num_candidates=3, num_selected=2, evaluation_episodes=8)
PLAIN = replace(preset("tabular"), rounds=2, federation=SMALL)
MASKED = replace(PLAIN, privacy="masked", protection=ProtectionConfig(sketch_size=1024, min_cohort=3))
PATIENCE = 300.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {PATIENCE} s"
        time.sleep(0.1)


def rows(folder: Path, table: str, rounds: range) -> list[str]:
    lines = (folder / f"{table}.csv").read_text().splitlines()[1:]
    return [line for line in lines if int(line.partition(",")[0]) in rounds]


def assert_equal_tables(one: Path, other: Path, rounds: range) -> None:
    for table in ("rounds", "clients"):
        assert rows(one, table, rounds) == rows(other, table, rounds)


def run_in_process(config: ExperimentConfig, folder: Path) -> Path:
    run_experiment(replace(config, executor="one-by-one"), folder)
    return folder


def settings_for(config: ExperimentConfig, out: Path, **changes: object) -> dict[str, object]:
    return run_settings(config, out, **{"state-dir": str(out.with_name("states")), "phase-timeout": 180.0, **changes})


def process_of(fleet: LocalFleet, client: int, word: bytes) -> int:
    """The process of a client's node whose command line has a word."""
    parent = fleet.processes[f"client-{client}"].pid
    for pid in marked_processes(fleet.id):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status and word in words:
            return pid
    raise AssertionError(f"client {client} has no such process")


def evaluated(folder: Path, number: int) -> set[int]:
    table = load_run(folder).clients
    there = (table["round"] == number) & (table["role"] == "evaluated") & (table["metric"] == "mean_return")
    return set(table["client"][there].tolist())


def test_a_private_fleet_survives_strangers_a_straggler_and_a_killed_node(tmp_path: Path) -> None:
    """Two runs on three nodes. In the second, one is stopped beyond the end of a phase, and one is killed with -9."""
    whole, faulty, logs = tmp_path / "whole", tmp_path / "faulty", tmp_path / "logs"
    short = replace(MASKED, rounds=1)
    with LocalFleet(3, logs, runtime="deployment", private=True) as fleet:
        run = fleet.submit(settings_for(short, whole))
        refused = start_strangers(fleet, tmp_path / "others")
        expected = run_in_process(short, tmp_path / "in-process")
        assert run.wait(PATIENCE) == 0
        for stranger in refused:
            assert stranger.wait(PATIENCE) != 0

        run = fleet.submit(settings_for(replace(MASKED, rounds=3), faulty, **{"phase-timeout": 20.0}))
        wait_for(lambda: read_progress(faulty).round >= 1, "round 1")
        straggler = process_of(fleet, 2, b"fedpohcs.deploy.resident")
        os.kill(straggler, signal.SIGSTOP)
        wait_for(lambda: read_progress(faulty).round >= 2, "round 2, without client 2")
        os.kill(straggler, signal.SIGCONT)
        os.kill(fleet.processes["client-3"].pid, signal.SIGKILL)
        assert run.wait(PATIENCE) == 0
        identity = fleet.id
    assert not marked_processes(identity)
    assert_equal_tables(whole, expected, range(2))
    assert "Failed to activate SuperNode" in (logs / "unregistered.log").read_text()
    assert "certificate verify failed" in (logs / "misled.log").read_text().lower()
    assert_equal_tables(faulty, expected, range(2))
    assert [evaluated(faulty, number) for number in range(4)] == [{0, 1, 2}, {0, 1, 2}, {0, 2}, {0, 1}]
    result = load_run(faulty)
    assert result.complete
    assert (result.rounds["train_steps"][1:] > 0).all()


def start_strangers(fleet: LocalFleet, folder: Path) -> list[subprocess.Popen[bytes]]:
    """A SuperNode whose key is not registered, and one that trusts another authority."""
    others = make_keys(folder, 1, ["localhost", "127.0.0.1"])
    assert fleet.keys is not None
    program = [find_program("flower-supernode"), "--superlink", f"127.0.0.1:{fleet.port}", "--host", "127.0.0.1"]
    program += ["--node-config", "client-id=2", "--auth-supernode-private-key", str(others.node_key(1))]
    authorities = {"unregistered": fleet.keys.authority, "misled": others.authority}
    return [
        fleet.spawn(name, *program, "--port", str(free_port()), "--root-certificates", str(authority))
        for name, authority in authorities.items()
    ]


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


def test_a_run_goes_on_after_its_superlink_was_killed(tmp_path: Path) -> None:
    """And it wrote nothing into the folder where it was started, nor into the home folder."""
    out, home, here = tmp_path / "runs" / "one", tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": cache}
    program = [sys.executable, "-m", "fedpohcs", "flower", "run"]
    sizes = ["--clients", "3", "--federation.num-selected", "2", "--federation.evaluation-episodes", "8"]
    begin = [*program, "tabular", *sizes, "--rounds", "2", "--out", str(out)]
    command = subprocess.Popen(begin, stderr=subprocess.PIPE, text=True, cwd=here, env=environment)
    wait_for(lambda: read_progress(out).round >= 1 or command.poll() is not None, "round 1")
    os.kill(superlink_of(tmp_path / "runs" / "one-logs"), signal.SIGKILL)
    _, complaint = command.communicate(timeout=PATIENCE)
    assert command.returncode == 2, complaint
    assert "the superlink ended with code -9" in complaint
    resume = [*program, "--resume", str(out)]
    subprocess.run(resume, check=True, timeout=2 * PATIENCE, cwd=here, env=environment)
    assert_equal_tables(out, run_in_process(PLAIN, tmp_path / "in-process"), range(3))
    assert not list(here.iterdir())
    assert not list(home.iterdir())


def test_nothing_is_left_of_a_fleet_whose_parent_was_killed(tmp_path: Path) -> None:
    start = """
import sys, time
from pathlib import Path
from fedpohcs.deploy.local import LocalFleet
with LocalFleet(1, Path(sys.argv[1]), runtime="deployment", insecure=True) as fleet:
    print(fleet.id, fleet.scratch, flush=True)
    time.sleep(600)
"""
    program = [sys.executable, "-c", start, str(tmp_path / "logs")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        identity, scratch = parent.stdout.readline().split()
        assert marked_processes(identity)
        parent.kill()
    wait_for(lambda: not Path(scratch).exists(), "the end of the fleet")
    assert not marked_processes(identity)


def test_flowers_simulation_gives_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "run"
    with LocalFleet(3, tmp_path / "logs", runtime="simulation", private=True) as fleet:
        assert fleet.submit(settings_for(MASKED, out)).wait(PATIENCE) == 0
        identity = fleet.id
    assert not marked_processes(identity)
    assert_equal_tables(out, run_in_process(MASKED, tmp_path / "in-process"), range(3))


@pytest.mark.slow
def test_mountain_cars_over_a_fleet_equal_those_in_process(tmp_path: Path) -> None:
    cars = preset("mountain-cars")
    learner = replace(cars.learner, filter_warmup_steps=10_000, local_iterations=2)
    config = replace(cars, rounds=2, federation=SMALL, learner=learner)
    out = tmp_path / "run"
    with LocalFleet(3, tmp_path / "logs", runtime="deployment") as fleet:
        assert fleet.submit(settings_for(config, out)).wait(2 * PATIENCE) == 0
    assert_equal_tables(out, run_in_process(config, tmp_path / "in-process"), range(3))


def test_an_occupied_port_is_named(tmp_path: Path) -> None:
    import socket

    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        program = [sys.executable, "-m", "fedpohcs", "flower", "run", "tabular", "--port", str(port)]
        done = subprocess.run([*program, "--out", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedpohcs: port (={port}) cannot be used: Address already in use.")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
def test_a_node_whose_clock_is_wrong_ends_and_says_why(tmp_path: Path) -> None:
    """After the certificate's end TLS fails; an hour ahead the server refuses its signature."""
    words = {"+400d": "certificate has expired", "+1h": "or the clocks of the two machines differ"}
    faketime = shutil.which("faketime")
    assert faketime is not None
    with LocalFleet(2, tmp_path / "logs", runtime="deployment") as fleet:
        assert fleet.keys is not None
        program = [sys.executable, "-m", "fedpohcs", "flower", "node", "--superlink", f"127.0.0.1:{fleet.port}"]
        program += ["--root-certificates", str(fleet.keys.authority)]
        nodes = []
        for client, offset in enumerate(words, start=1):
            own = ["--client-id", str(client), "--key", str(fleet.keys.node_key(client))]
            nodes.append(fleet.spawn(offset, faketime, "-f", offset, *program, *own))
        assert [node.wait(PATIENCE) for node in nodes] == [2, 2]
    for offset, expected in words.items():
        assert expected in (tmp_path / "logs" / f"{offset}.log").read_text()
