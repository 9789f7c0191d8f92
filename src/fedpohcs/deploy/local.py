"""A Flower fleet on this machine: a SuperLink and SuperNodes as child processes, which end with this process."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Literal

from fedpohcs.core.errors import UserError, require
from fedpohcs.deploy.app_folder import write_app
from fedpohcs.deploy.flower_internals import check_internals
from fedpohcs.deploy.guardian import MARK, end_processes, marked_processes, start_guardian
from fedpohcs.deploy.keys import Keys, make_keys

LOOPBACK = "127.0.0.1"
SECONDS_TO_START = 180.0
SECONDS_PER_POLL = 0.1
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # the package is installed; nothing is downloaded
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
}

PROGRAMS = Path(sys.executable).parent  # of the environment of this Python: Flower's programs are there as well

Runtime = Literal["deployment", "simulation"]


class LocalFleet:
    """Context manager that starts a fleet and stops it. The output of its processes goes to files in `logs`."""

    def __init__(
        self,
        num_clients: int,
        logs: Path,
        *,
        runtime: Runtime,
        port: int = 0,
        insecure: bool = False,
        telemetry: bool = False,
        private: bool = False,
    ) -> None:
        self.num_clients = num_clients
        self.logs = logs
        self.runtime = runtime
        self.port = checked_port(port)
        self.insecure = insecure
        self.private = private  # nodes get identities, and then take part in private runs only
        self.id = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # An empty working directory, because Ray would import packages from a folder that has some.
        self.scratch = Path(tempfile.mkdtemp(prefix="fedpohcs-fleet-"))
        self.guardian = start_guardian(self.id, self.scratch)
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(self.scratch / "flwr"), MARK: self.id}
        self.environment["PATH"] = f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        self.environment["FLWR_TELEMETRY_ENABLED"] = str(int(telemetry))
        self.telemetry = telemetry

    def __enter__(self) -> "LocalFleet":
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start(self) -> None:
        if self.runtime == "deployment":
            check_internals()  # its nodes would end at once, and the run wait for them
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.scratch / "flwr").mkdir()
        self.keys: Keys | None = None
        if not self.insecure:
            self.keys = make_keys(self.scratch / "keys", self.num_clients, ["localhost", LOOPBACK])
        self.port = self.port or free_port()
        self._write_connection()
        self._start_superlink()
        if self.runtime == "deployment":
            if self.keys:
                self._register_nodes(self.keys)
            for client in range(1, self.num_clients + 1):
                self.start_node(client)

    def _write_connection(self) -> None:
        trust = f'root-certificates = "{self.keys.authority}"' if self.keys else "insecure = true"
        text = f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "{LOOPBACK}:{self.port}"\n{trust}\n'
        (self.scratch / "flwr" / "config.toml").write_text(text, encoding="utf-8")

    def _start_superlink(self) -> None:
        arguments = ["--host", LOOPBACK, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        if self.keys:
            arguments += ["--ssl-ca-certfile", str(self.keys.authority), "--ssl-certfile", str(self.keys.certificate)]
            arguments += ["--ssl-keyfile", str(self.keys.server_key)]
        else:
            arguments += ["--insecure"]
        if self.runtime == "simulation":
            arguments += ["--simulation"]
        elif self.keys:
            arguments += ["--enable-supernode-auth"]
        self.spawn("superlink", find_program("flower-superlink"), *arguments)
        deadline = time.monotonic() + SECONDS_TO_START
        while not _answers(self.port):
            self.check_alive("superlink")
            if time.monotonic() > deadline:
                raise UserError(f"the SuperLink did not start within {SECONDS_TO_START:g} s. See {self.logs}.")
            time.sleep(SECONDS_PER_POLL)

    def _register_nodes(self, keys: Keys) -> None:
        names = [f"register-{client}" for client in range(1, self.num_clients + 1)]
        for client, name in enumerate(names, start=1):
            public = str(keys.node_public_key(client))
            self.spawn(name, find_program("flwr"), "supernode", "register", public, "fleet")
        for name in names:
            if self.processes.pop(name).wait(SECONDS_TO_START):
                raise UserError(f"a SuperNode could not be registered. See {self.logs / name}.log.")

    def start_node(self, client: int, key: Path | None = None) -> subprocess.Popen[bytes]:
        """Start the node of client number `client`, counted from 1."""
        arguments = ["--superlink", f"{LOOPBACK}:{self.port}", "--client-id", str(client)]
        if self.keys:
            key = key or self.keys.node_key(client)
            arguments += ["--root-certificates", str(self.keys.authority), "--key", str(key)]
        else:
            arguments += ["--insecure"]
        if self.keys and self.private:
            arguments += ["--identity", str(self.keys.identity(client)), "--members", str(self.keys.members)]
        if self.telemetry:
            arguments += ["--telemetry"]
        return self.spawn(f"client-{client}", sys.executable, "-m", "fedpohcs", "flower", "node", *arguments)

    def submit(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Submit a run to the SuperLink; the returned process ends with the run."""
        if self.keys and self.private:
            settings = settings | {"members": str(self.keys.members)}
            settings |= {"simulated-keys": str(self.keys.folder)} if self.runtime == "simulation" else {}
        app = write_app(self.scratch, settings)
        arguments = ["run", str(app), "fleet", "--stream"]
        if self.runtime == "simulation":
            size = f"num-supernodes={self.num_clients} client-resources-num-cpus=1"
            arguments += ["--federation-config", size]
        return self.spawn("run", find_program("flwr"), *arguments)

    def spawn(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program, registered under `name`; its output goes to `logs/name.log`."""
        with (self.logs / f"{name}.log").open("ab") as file:
            self.processes[name] = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.scratch,
                start_new_session=True,  # Ctrl-C reaches only the parent, which ends the others in order
            )
        return self.processes[name]

    def check_alive(self, name: str) -> None:
        """Raise `UserError` with the path of the log if the process `name` has ended."""
        if (code := self.processes[name].poll()) is not None:
            raise UserError(f"the {name} ended with code {code}. See {self.logs / name}.log.")

    def stop(self) -> None:
        """End every process of the fleet, and wait until none is left."""
        end_processes(self.living)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.guardian.communicate()

    def living(self) -> list[int]:
        """Process ids of the fleet, including those started by its processes."""
        own = [process.pid for process in self.processes.values() if process.poll() is None]
        return sorted({*own, *marked_processes(self.id)})


def find_program(name: str) -> str:
    """Path of one of Flower's programs, in the environment of this Python or on PATH."""
    found = shutil.which(name, path=str(PROGRAMS)) or shutil.which(name)
    if found is None:
        raise UserError(f"{name} is not installed. Install it with: pip install 'fedpohcs[flower]'")
    return found


def free_port() -> int:
    """A TCP port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def checked_port(port: int) -> int:
    """Return `port`, or raise `UserError` if it is in use. 0 stands for a free port, chosen later."""
    require(0 <= port < 2**16, "port", port, "must be at least 0 and below 65536")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was closed just now counts as free
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            remedy = "Name another, or 0 for any that is free"
            raise UserError(f"port (={port}) cannot be used: {error.strerror}. {remedy}.") from error
    return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
