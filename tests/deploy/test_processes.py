"""End to end on loopback: real SuperLinks and nodes with TLS and node authentication, private selection, and kills."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedpohcs.cli.grid import read_progress
from fedpohcs.core.config import ExperimentConfig, FederationConfig, ProtectionConfig
from fedpohcs.core.presets import preset
from fedpohcs.deploy.app_folder import run_settings
from fedpohcs.deploy.guardian import MARK, marked_processes
from fedpohcs.deploy.keys import make_keys
from fedpohcs.deploy.local import LocalFleet, Runtime, find_program, free_port
from fedpohcs.deploy.programs import end_child
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loading import load_run

SMALL = FederationConfig(num_clients=3, num_candidates=3, num_selected=2, evaluation_episodes=8)
COHORT = ProtectionConfig(sketch_size=1024, min_cohort=3)
MASKED = replace(preset("tabular"), rounds=2, federation=SMALL, privacy="masked", protection=COHORT)
MASKED_OPTIONS = [
    *("--clients", "3", "--federation.num-selected", "2", "--federation.evaluation-episodes", "8"),
    *("--privacy", "masked", "--protection.sketch-size", "1024", "--protection.min-cohort", "3"),
]
BUFFER_OPTIONS = [
    *("--clients", "2", "--selector", "full", "--federation.evaluation-episodes", "2"),
    *("--learner.hidden-sizes", "8", "--learner.local-iterations", "2", "--learner.steps-per-iteration", "20"),
    *("--learner.updates-per-iteration", "4", "--learner.batch-size", "8", "--learner.replay-size", "300"),
]
PATIENCE = 300.0
SECONDS_DOWN = 2.0
SECONDS_TO_RETURN = 120.0  # a SuperLink keeps a node that was lost in its list for a minute, and refuses it
FAULTY_ROUNDS = range(3, 5)  # of the story: in each of them a client fails
SHORTEST_TIMEOUT = 6.0  # seconds of a phase, while clients fail: each phase that lacks a reply takes as long


@pytest.fixture(scope="module", autouse=True)
def quick_supernodes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("quick")), prepend=os.pathsep)
        yield


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


def evaluated(folder: Path, number: int) -> set[int]:
    table = load_run(folder).clients
    there = (table["round"] == number) & (table["role"] == "evaluated") & (table["metric"] == "mean_return")
    return set(table["client"][there].tolist())


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


def superlink_of(fleet_logs: Path) -> int:
    """The id of the SuperLink that a command started, from its log."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            here = (path.parent / "fd" / "1").readlink()
        except OSError:
            continue
        if here == fleet_logs / "superlink.log" and b"fedpohcs.deploy.superlink_process" in words:
            return int(path.parent.name)
    raise AssertionError("no SuperLink runs")


def start_strangers(fleet: LocalFleet, folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """A SuperNode whose key is not registered, and one that trusts another authority."""
    others = make_keys(folder, 1, ["localhost", "127.0.0.1"])
    assert fleet.keys is not None
    program = [find_program("flower-supernode"), "--superlink", f"127.0.0.1:{fleet.port}", "--host", "127.0.0.1"]
    program += ["--isolation", "process"]
    program += ["--node-config", "client-id=1", "--auth-supernode-private-key", str(others.node_key(0))]
    authorities = {"unregistered": fleet.keys.authority, "misled": others.authority}
    return {
        name: fleet.spawn(name, *program, "--port", str(free_port()), "--root-certificates", str(authority))
        for name, authority in authorities.items()
    }


def mark_of(pid: int) -> str:
    """The mark of the fleet that a process belongs to."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next(one.removeprefix(f"{MARK}=") for one in variables if one.startswith(f"{MARK}="))


@contextmanager
def front_stopped(fleet: LocalFleet) -> Iterator[None]:
    end_child(fleet.processes["front"])
    yield
    fleet.start_front()


class Story(NamedTuple):
    """What became of a private run whose parts were killed or stopped one after the other."""

    run: Path
    refused: dict[str, int]  # exit codes of SuperNodes that must not take part
    fleet: str  # mark of the processes
    logs: Path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """One run on one fleet with a process per node, which takes long to start: the tests of what befell it share it.

    The fleet runs one round, while strangers try to join. Then its front is stopped for some seconds. Then it resumes
    the run with a short timeout. After a round the client app of client 1 is stopped; after the next it goes on, and
    the node of client 2 is killed.
    """
    base = tmp_path_factory.mktemp("story")
    out, logs = base / "run", base / "logs"
    with LocalFleet(3, logs, runtime="deployment", private=True) as fleet:
        strangers = start_strangers(fleet, base / "others")
        run = fleet.submit(settings_for(replace(MASKED, rounds=1), out))
        assert run.wait(PATIENCE) == 0
        with front_stopped(fleet):
            time.sleep(SECONDS_DOWN)

        seconds = float(load_run(out).timings["train"][-1])
        timeout = max(SHORTEST_TIMEOUT, 1.5 * seconds)  # a busy machine needs more time
        config = replace(MASKED, rounds=FAULTY_ROUNDS.stop - 1)
        run = fleet.submit(settings_for(config, out, **{"resume": True, "phase-timeout": timeout}))
        wait_for(lambda: read_progress(out).round >= 2, "a round of all clients")
        straggler = process_of(fleet, 1, b"fedpohcs.deploy.resident")
        os.kill(straggler, signal.SIGSTOP)
        wait_for(lambda: read_progress(out).round >= 3, "a round without client 1")
        os.kill(straggler, signal.SIGCONT)
        os.kill(fleet.processes["client-2"].pid, signal.SIGKILL)
        assert run.wait(PATIENCE) == 0
        refused = {name: process.wait(PATIENCE) for name, process in strangers.items()}
    return Story(out, refused, fleet.id, logs)


def test_a_run_equals_one_in_process_until_clients_fail(story: Story, tmp_path: Path) -> None:
    healthy = FAULTY_ROUNDS.start - 1
    expected = run_in_process(replace(MASKED, rounds=healthy), tmp_path / "in-process")
    assert_equal_tables(story.run, expected, range(healthy + 1))


def test_a_private_fleet_survives_strangers_a_straggler_and_a_killed_node(story: Story) -> None:
    there = [evaluated(story.run, number) for number in range(FAULTY_ROUNDS.stop)]
    assert there == [{0, 1, 2}] * FAULTY_ROUNDS.start + [{0, 2}, {0, 1}]
    run = load_run(story.run)
    assert run.complete
    assert (run.rounds["train_steps"][1:] > 0).all()
    assert all(story.refused.values())
    assert "Failed to activate SuperNode" in (story.logs / "unregistered.log").read_text()
    assert "certificate verify failed" in (story.logs / "misled.log").read_text().lower()


def test_nodes_say_that_the_server_is_away_and_come_back(story: Story) -> None:
    for client in (0, 1, 2):
        said = (story.logs / f"client-{client}.log").read_text()
        assert "Connection attempt failed, retrying in" in said
        assert "Connection successful after" in said


@pytest.mark.slow
def test_nodes_come_back_from_a_server_that_answered_with_errors(tmp_path: Path) -> None:
    """Flower's SuperNodes never ask again after a 500, so they are started anew."""
    out, two = tmp_path / "run", replace(SMALL, num_clients=2, num_candidates=2, num_selected=1)
    config = replace(preset("tabular"), rounds=4, federation=two)
    with LocalFleet(2, tmp_path / "logs", runtime="deployment") as fleet:
        run = fleet.submit(settings_for(config, out, **{"phase-timeout": 100.0}))
        wait_for(lambda: read_progress(out).round >= 1, "round 1")
        with front_stopped(fleet), answering_with_errors(fleet):
            time.sleep(SECONDS_DOWN)
        start, logs = time.monotonic(), [tmp_path / "logs" / f"client-{client}.log" for client in (0, 1)]
        wait_for(lambda: all(log.read_text().count("SuperNode ID:") == 2 for log in logs), "both nodes")
        assert time.monotonic() - start < SECONDS_TO_RETURN
        assert run.wait(PATIENCE) == 0
    assert load_run(out).complete
    assert all("the server was lost; the next try is in" in log.read_text() for log in logs)


@contextmanager
def answering_with_errors(fleet: LocalFleet) -> Iterator[None]:
    """A server with the right certificate on the port of the front, which answers everything with 500."""
    import uvicorn
    from starlette.responses import PlainTextResponse

    assert fleet.keys is not None
    config = uvicorn.Config(
        PlainTextResponse("database is locked", 500),
        port=fleet.port,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="critical",
        ssl_certfile=fleet.keys.certificate,
        ssl_keyfile=fleet.keys.server_key,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started, "a server that answers with errors")
    yield
    server.should_exit = True
    thread.join()


def test_nothing_is_left_of_a_fleet_that_ended(story: Story) -> None:
    assert not marked_processes(story.fleet)


def kill_superlink(out: Path, base: Path, runtime: Runtime, now: Callable[[], bool]) -> None:
    """Run the command, kill its SuperLink once `now` holds; then it says so and leaves nothing outside its folders."""
    home, folder = base / "home", base / "here"
    home.mkdir()
    folder.mkdir()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": cache}
    program = [sys.executable, "-m", "fedpohcs", "flower", "run", "tabular", *MASKED_OPTIONS, "--rounds", "100"]
    program += ["--runtime", runtime, "--out", str(out)]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment) as command:
        try:
            wait_for(lambda: now() or command.poll() is not None, "the moment to kill the SuperLink")
            superlink = superlink_of(out.with_name(f"{out.name}-logs"))
            fleet = mark_of(superlink)
            os.kill(superlink, signal.SIGKILL)
            _, complaint = command.communicate(timeout=PATIENCE)
        finally:
            command.terminate()  # then it ends its fleet
    assert command.returncode == 2, complaint
    assert "the superlink ended with code -9" in complaint
    assert not marked_processes(fleet)
    assert not list(folder.iterdir())
    assert not list(home.iterdir())


def test_a_command_whose_superlink_is_killed_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "one"
    kill_superlink(out, tmp_path, "simulation", (tmp_path / "runs" / "one-logs" / "run.log").exists)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["deployment", "simulation"])
def test_the_command_resumes_a_run_after_its_superlink_was_killed(runtime: Runtime, tmp_path: Path) -> None:
    if runtime == "simulation":
        pytest.importorskip("ray")
    out = tmp_path / "runs" / "one"
    kill_superlink(out, tmp_path, runtime, lambda: read_progress(out).round >= 1)
    rounds = read_progress(out).round + 1
    program = [sys.executable, "-m", "fedpohcs", "flower", "run", "--resume", str(out), "--rounds", str(rounds)]
    subprocess.run(program, check=True, timeout=2 * PATIENCE)
    expected = run_in_process(replace(MASKED, rounds=rounds), tmp_path / "in-process")
    assert_equal_tables(out, expected, range(rounds + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("world", "kind"), [("cartpoles", "dqn"), ("pendulums", "sac")])
def test_the_command_trains_and_resumes_with_buffers_as_one_process_does(world: str, kind: str, tmp_path: Path) -> None:
    """The second round is one of new nodes, which go on with the buffers that the first ones stored.

    Filters of observations stay on the nodes, so the server's file of the policy lacks them.
    """
    settings = [world, "--learner.kind", kind, *BUFFER_OPTIONS, "--out"]
    there, here = tmp_path / "runs" / "there", tmp_path / "here"
    for command in (
        ["flower", "run", *settings, str(there), "--rounds", "1"],
        ["flower", "run", "--resume", str(there), "--rounds", "2"],
        ["train", *settings, str(here), "--rounds", "2", "--executor", "one-by-one"],
    ):
        subprocess.run([sys.executable, "-m", "fedpohcs", *command], check=True, timeout=2 * PATIENCE)
    assert_equal_tables(there, here, range(3))
    mine, theirs = (np.load(folder / "policy.npz") for folder in (there, here))
    assert mine.files == [name for name in theirs.files if not name.startswith("filters/")]
    for name in mine.files:
        np.testing.assert_array_equal(mine[name], theirs[name])


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


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["deployment", "simulation"])
def test_a_private_run_without_faults_ends_and_equals_one_in_process(runtime: Runtime, tmp_path: Path) -> None:
    if runtime == "simulation":
        pytest.importorskip("ray")
    out = tmp_path / "run"
    with LocalFleet(3, tmp_path / "logs", runtime=runtime, private=True) as fleet:
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
        for client, offset in enumerate(words):
            own = ["--client-id", str(client), "--key", str(fleet.keys.node_key(client))]
            nodes.append(fleet.spawn(offset, faketime, "-f", offset, *program, *own))
        assert [node.wait(PATIENCE) for node in nodes] == [2, 2]
    for offset, expected in words.items():
        assert expected in (tmp_path / "logs" / f"{offset}.log").read_text()
