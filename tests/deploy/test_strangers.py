"""Real processes: `fedpohcs flower server`, two nodes, and a stranger who has the authority's certificate."""

import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.deploy import flower_internals as flower
from fedpohcs.deploy.app_folder import run_settings, write_app
from fedpohcs.deploy.flower_internals import FLEET_CALLS
from fedpohcs.deploy.keys import Keys, make_authority, make_identity, make_keys
from fedpohcs.deploy.members import MemberKeys, add_member, read_members, read_public, remove_member, write_members
from fedpohcs.deploy.programs import LOOPBACK, end_child, find_program, free_port, quiet_environment
from fedpohcs.runs.loading import load_run

PATIENCE = 300.0
PROTOBUF = {"content-type": "application/protobuf"}
TWO = FederationConfig(num_clients=2, num_candidates=2, num_selected=1, evaluation_episodes=8)
CONFIG = replace(preset("tabular"), rounds=2, federation=TWO)


class Server(NamedTuple):
    """A running `fedpohcs flower server`."""

    keys: Keys
    port: int
    folder: Path


@contextmanager
def running(log: Path, *command: str, home: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    environment = quiet_environment(telemetry=False) | ({"FLWR_HOME": str(home)} if home else {})
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).with_name("quick")), *sys.path])
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, cwd=log.parent, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        end_child(process)


def call(log: Path, home: Path, *arguments: str) -> int:
    with running(log, find_program("flwr"), *arguments, home=home) as process:
        return process.wait(PATIENCE)


def fedpohcs(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedpohcs", "flower", *arguments]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    keys, port = make_authority(tmp_path / "keys", ["localhost", LOOPBACK], days=1), free_port()
    command = fedpohcs("server", "--certificate", str(keys.certificate), "--key", str(keys.server_key))
    command += ["--host", LOOPBACK, "--port", str(port), "--state-dir", str(tmp_path / "server")]
    with running(tmp_path / "server.log", *command) as process:
        deadline = time.monotonic() + PATIENCE
        while b"devices reach this server" not in (tmp_path / "server.log").read_bytes():
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
        yield Server(keys, port, tmp_path)


@contextmanager
def honest_run(server: Server, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The operator registers two nodes and starts a run; the process ends with it."""
    folder, home = server.folder, server.folder / "server" / "flwr"
    nodes = []
    for client in (0, 1):
        public = make_identity(folder / f"device-{client}")
        add_member(folder / "members", client, read_public(public), server.folder / "server")
        node = fedpohcs("node", "--superlink", f"{LOOPBACK}:{server.port}", "--client-id", str(client))
        node += ["--root-certificates", str(server.keys.authority), "--key", str(public.with_name("key"))]
        nodes.append([*node, "--state-dir", str(folder / "states")])
    app = write_app(folder / "app", run_settings(CONFIG, out, members=str(folder / "members")))
    run = [find_program("flwr"), "run", str(app), "--stream"]
    with (
        running(folder / "node-0.log", *nodes[0]),
        running(folder / "node-1.log", *nodes[1]),
        running(folder / "run.log", *run, home=home) as process,
    ):
        yield process


def port_of_runtime(log: Path) -> int:
    """The port on loopback where a SuperNode waits for its client app, from its log."""
    deadline = time.monotonic() + PATIENCE
    while not (found := re.search(r"running on http://127.0.0.1:(\d+)", log.read_text())):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return int(found[1])


def take_task(port: int) -> int:
    """Ask a SuperNode for a message as another user of its machine could; the status of the answer."""
    version = flower.RuntimeVersionHttpInterceptor(component_name="SuperExec")
    client = flower.RuntimeHttpClient.from_server_address(f"{LOOPBACK}:{port}", True, None, [version])
    try:
        client.AcquireTask(flower.AcquireTaskRequest(supported_task_types=[flower.TaskType.CLIENT_APP]))
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    finally:
        client.close()
    return 200


def listed_again(path: Path, client: int, keys: MemberKeys) -> Path:
    write_members(path, read_members(path) | {client: keys})
    return path


def strangers_home(server: Server) -> Path:
    home = server.folder / "stranger" / "flwr"
    home.mkdir(parents=True)
    address = f'address = "{LOOPBACK}:{server.port}"\nroot-certificates = "{server.keys.authority}"\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\n{address}')
    return home


def test_a_stranger_with_the_certificate_is_refused_and_the_run_goes_on(server: Server) -> None:
    """Registers a node, starts an app, lists runs, pulls tasks: each time refused, and the honest run is complete."""
    out, folder = server.folder / "run", server.folder
    home = strangers_home(server)
    own = make_keys(folder / "stranger" / "keys", 1, ["localhost"])  # of the right kind, but not registered
    trap = folder / "stranger" / "run"
    app = write_app(folder / "stranger" / "app", run_settings(CONFIG, trap))
    attempts = {
        "register": ("supernode", "register", str(own.node_public_key(0))),
        "list-nodes": ("supernode", "list"),
        "start": ("run", str(app)),
        "list-runs": ("list",),
    }
    with honest_run(server, out) as run:
        taken = [take_task(port_of_runtime(folder / f"node-{client}.log")) for client in (0, 1)]
        removed = read_members(folder / "members")[1]
        codes = {name: call(folder / f"stranger-{name}.log", home, *words) for name, words in attempts.items()}
        trust = ssl.create_default_context(cafile=server.keys.authority)
        with httpx.Client(verify=trust, base_url=f"https://{LOOPBACK}:{server.port}") as stranger:
            answers = {path: stranger.post(path, headers=PROTOBUF).status_code for _, path in PROTOBUF_REQUEST_TYPES}
        assert run.wait(PATIENCE) == 0, (folder / "run.log").read_text()
    assert taken == [401, 401]
    assert all(codes.values()), codes
    assert {path for path, code in answers.items() if code != 403} == FLEET_CALLS
    assert {answers[path] for path in FLEET_CALLS} == {401}  # the SuperLink refuses who has no registered key
    assert not trap.exists()
    assert load_run(out).complete
    assert "refused" in (folder / "server.log").read_text()
    remove_member(folder / "members", 1, folder / "server")
    with pytest.raises(UserError, match="refused to unregister nodes"):
        remove_member(listed_again(folder / "members", 1, removed), 1, folder / "server")
