"""A Flower fleet on this machine: a SuperLink and SuperNodes as child processes, which end with this process."""

import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from fedpohcs.core.errors import UserError
from fedpohcs.deploy.app_folder import write_app
from fedpohcs.deploy.flower_internals import check_internals
from fedpohcs.deploy.guardian import MARK, end_processes, marked_processes, start_guardian
from fedpohcs.deploy.keys import Keys, make_keys
from fedpohcs.deploy.programs import (
    LOOPBACK,
    SECONDS_TO_START,
    checked_port,
    find_program,
    free_port,
    quiet_environment,
    wait_until_answered,
)
from fedpohcs.deploy.protocol import config_from_text
from fedpohcs.deploy.superlink import SuperLink

LARGEST_SKETCH = 2**24  # words: whoever starts this fleet may ask its nodes for any sketch
DAYS = 365  # for which the plan of a run is valid
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
        states: Path | None = None,
        allow: Collection[str] = (),
    ) -> None:
        self.num_clients = num_clients
        self.logs = logs
        self.runtime = runtime
        self.port = checked_port(port)
        self.insecure = insecure
        self.private = private  # nodes get identities, and then take part in private runs only
        self.allow = allow  # functions that a config may name on the nodes
        self.id = uuid.uuid4().hex
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # An empty working directory, because Ray would import packages from a folder that has some.
        self.scratch = Path(tempfile.mkdtemp(prefix="fedpohcs-fleet-"))
        self.states = states or self.scratch / "states"
        self.guardian = start_guardian(self.id, self.scratch)
        self.environment = quiet_environment(telemetry=telemetry)
        self.environment |= {"FLWR_HOME": str(self.scratch / "flwr"), MARK: self.id}
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
        self.keys: Keys | None = None
        if not self.insecure:
            self.keys = make_keys(self.scratch / "keys", self.num_clients, ["localhost", LOOPBACK])
        self.port = self.port or free_port()
        self.superlink = SuperLink(self.scratch, free_port(), secure=not self.insecure, runtime=self.runtime)
        self.superlink.prepare()
        self._start_program("superlink", self.superlink.command(), self.superlink.port)
        if self.runtime == "deployment":
            self.start_front()
            if self.keys:
                self._register_nodes(self.keys)
            for client in range(self.num_clients):
                self.start_node(client)

    def start_front(self) -> None:
        """Start the front, through which nodes reach the SuperLink, and wait until it answers."""
        certificate, key = (self.keys.certificate, self.keys.server_key) if self.keys else (None, None)
        self._start_program("front", self.superlink.front(self.port, certificate, key).command(), self.port)

    def _start_program(self, name: str, command: list[str], port: int) -> None:
        self.spawn(name, *command)
        wait_until_answered(port, name, lambda: self.check_alive(name))

    def _register_nodes(self, keys: Keys) -> None:
        names = [f"register-{client}" for client in range(self.num_clients)]
        for client, name in enumerate(names):
            public = str(keys.node_public_key(client))
            self.spawn(name, find_program("flwr"), "supernode", "register", public, "fleet")
        for name in names:
            if self.processes.pop(name).wait(SECONDS_TO_START):
                raise UserError(f"a SuperNode could not be registered. See {self.logs / name}.log.")

    def start_node(self, client: int, key: Path | None = None) -> subprocess.Popen[bytes]:
        """Start the node of a client."""
        arguments = ["--superlink", f"{LOOPBACK}:{self.port}", "--client-id", str(client)]
        arguments += ["--state-dir", str(self.states)]
        arguments += ["--allow", *self.allow] if self.allow else []
        if self.keys:
            key = key or self.keys.node_key(client)
            arguments += ["--root-certificates", str(self.keys.authority), "--key", str(key)]
        else:
            arguments += ["--insecure"]
        if self.keys and self.private:
            arguments += ["--identity", str(self.keys.identity(client)), "--members", str(self.keys.members)]
            arguments += ["--plan-key", str(self.keys.operator_public), "--max-sketch", str(LARGEST_SKETCH)]
        if self.telemetry:
            arguments += ["--telemetry"]
        return self.spawn(f"client-{client}", sys.executable, "-m", "fedpohcs", "flower", "node", *arguments)

    def submit(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Submit a run to the SuperLink; the returned process ends with the run."""
        if self.keys and self.private:
            settings = settings | {"members": str(self.keys.members), "plan": self._plan(settings)}
            settings |= {"simulated-keys": str(self.keys.folder)} if self.runtime == "simulation" else {}
        app = write_app(self.scratch, settings)
        arguments = ["run", str(app), "fleet", "--stream"]
        if self.runtime == "simulation":
            size = f"num-supernodes={self.num_clients} client-resources-num-cpus=1"
            arguments += ["--federation-config", size]
        return self.spawn("run", find_program("flwr"), *arguments)

    def _plan(self, settings: dict[str, Any]) -> str:
        """A signed plan of the run: its user is the operator of this fleet."""
        from fedpohcs.deploy.planning import signed_plan

        assert self.keys is not None
        config = config_from_text(settings["config"])
        return signed_plan(config, self.keys.members, self.keys.operator, DAYS).decode()

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
