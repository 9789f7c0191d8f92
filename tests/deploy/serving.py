"""A running `fedpohcs flower server` with two nodes, all as real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.deploy.app_folder import run_settings, write_app
from fedpohcs.deploy.keys import Keys, make_authority, make_identity
from fedpohcs.deploy.members import add_member, read_public
from fedpohcs.deploy.programs import LOOPBACK, end_child, find_program, free_port, quiet_environment

PATIENCE = 300.0
TWO = FederationConfig(num_clients=2, num_candidates=2, num_selected=1, evaluation_episodes=8)
CONFIG = replace(preset("tabular"), rounds=2, federation=TWO)


class Server(NamedTuple):
    """A running `fedpohcs flower server`."""

    keys: Keys
    port: int
    folder: Path


@contextmanager
def running(log: Path, *command: str, home: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends; its output goes to `log`."""
    environment = quiet_environment(telemetry=False) | ({"FLWR_HOME": str(home)} if home else {})
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).with_name("quick")), *sys.path])
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, cwd=log.parent, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        end_child(process)


def fedpohcs(*arguments: str) -> list[str]:
    """A command line of `fedpohcs flower`."""
    return [sys.executable, "-m", "fedpohcs", "flower", *arguments]


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """Start a server with its files in `folder`, and wait until devices reach it."""
    keys, port = make_authority(folder / "keys", ["localhost", LOOPBACK], days=1), free_port()
    command = fedpohcs("server", "--certificate", str(keys.certificate), "--key", str(keys.server_key))
    command += ["--host", LOOPBACK, "--port", str(port), "--state-dir", str(folder / "server")]
    with running(folder / "server.log", *command) as process:
        deadline = time.monotonic() + PATIENCE
        while b"devices reach this server" not in (folder / "server.log").read_bytes():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()
            time.sleep(0.1)
        yield Server(keys, port, folder)


@contextmanager
def honest_run(server: Server, out: Path, config: ExperimentConfig = CONFIG) -> Iterator[subprocess.Popen[bytes]]:
    """The operator registers two nodes and starts a run; the process ends with it."""
    folder, home = server.folder, server.folder / "server" / "flwr"
    nodes = []
    for client in (0, 1):
        public = make_identity(folder / f"device-{client}")
        add_member(folder / "members", client, read_public(public), server.folder / "server")
        node = fedpohcs("node", "--superlink", f"{LOOPBACK}:{server.port}", "--client-id", str(client))
        node += ["--root-certificates", str(server.keys.authority), "--key", str(public.with_name("key"))]
        nodes.append([*node, "--state-dir", str(folder / "states")])
    app = write_app(folder / "app", run_settings(config, out, members=str(folder / "members")))
    run = [find_program("flwr"), "run", str(app), "--stream"]
    with (
        running(folder / "node-0.log", *nodes[0]),
        running(folder / "node-1.log", *nodes[1]),
        running(folder / "run.log", *run, home=home) as process,
    ):
        yield process
