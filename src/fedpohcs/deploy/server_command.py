"""`fedpohcs flower server`: a SuperLink that only this machine reaches, and the front that devices reach."""

import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fedpohcs.core.errors import UserError, require
from fedpohcs.deploy.programs import (
    LOOPBACK,
    checked_port,
    end_child,
    free_port,
    quiet_environment,
    start_child,
    wait_until_answered,
)
from fedpohcs.deploy.status import VARIABLE

SECONDS_PER_POLL = 0.2
MIB = 2**20


@dataclass(frozen=True)
class ServerOptions:
    """`fedpohcs flower server`."""

    certificate: Path
    """server.pem: certificate of the server."""
    key: Path
    """server.key: its private key."""
    host: str = "0.0.0.0"
    """Address of this machine at which devices reach it."""
    port: int = 9092
    """Port that devices reach, and the only one to open to them."""
    state_dir: Path = Path("server")
    """Folder for the SuperLink's database and for what `flwr` needs to find it."""
    control_port: int = 0
    """Port of the SuperLink on loopback. 0: any free port."""
    max_request: int = 16
    """MiB of a request; larger ones are refused."""
    max_connections: int = 1000
    """Connections at the same time; more are closed."""
    status_port: int = 0
    """Port of the status page, which only this machine reaches. 0: any free port."""
    telemetry: bool = False
    """Let Flower send usage statistics to its developers."""

    def __post_init__(self) -> None:
        for name in ("certificate", "key"):
            path = getattr(self, name)
            require(path.is_file(), name, str(path), "is not a file", "Make one with: fedpohcs flower keys")
        for name in ("max_request", "max_connections"):
            value = getattr(self, name)
            require(value > 0, name.replace("_", "-"), value, "must be at least 1")
        for name in ("control_port", "status_port"):
            value = getattr(self, name)
            require(0 <= value < 2**16, name.replace("_", "-"), value, "must be from 0 to 65535")
        _check_pair(self.certificate, self.key)


def run_server(given: ServerOptions) -> None:
    """Run both processes until stopped; if one ends, end the other and say so."""
    from fedpohcs.analysis.live import serve
    from fedpohcs.deploy.members import list_nodes
    from fedpohcs.deploy.status_page import FleetPage
    from fedpohcs.deploy.superlink import SuperLink

    checked_port(given.port, given.host)
    folder = given.state_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    superlink = SuperLink(folder, given.control_port or free_port(), database=folder / "superlink.db")
    superlink.prepare()
    front = superlink.front(given.port, given.certificate.absolute(), given.key.absolute(), given.host)
    front = replace(front, max_request=given.max_request * MIB, max_connections=given.max_connections)
    status = folder / "status.json"
    environment = quiet_environment(telemetry=given.telemetry)
    environment |= {"FLWR_HOME": str(superlink.home), VARIABLE: str(status)}
    processes = {"SuperLink": start_child(superlink.command(), environment)}
    try:
        wait_until_answered(superlink.port, "SuperLink", lambda: _check_alive(processes))
        processes["front"] = start_child(front.command(), environment)
        print(f"to control it on this machine: export FLWR_HOME={superlink.home}", flush=True)
        with serve(FleetPage(lambda: list_nodes(folder), status), given.status_port) as page:
            print(f"status of the fleet: http://{LOOPBACK}:{page.server_port}/", flush=True)
            threading.Thread(target=page.serve_forever, daemon=True).start()
            while True:
                _check_alive(processes)
                time.sleep(SECONDS_PER_POLL)
    finally:
        for process in reversed(processes.values()):
            end_child(process)


def _check_alive(processes: dict[str, subprocess.Popen[bytes]]) -> None:
    for name, process in processes.items():
        if (code := process.poll()) is not None:
            raise UserError(f"the {name} ended with code {code}. It says why above.")


def _check_pair(certificate: Path, key: Path) -> None:
    """Refuse files that are no certificate and key, or do not belong together, before anything starts."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        rule = f"and key (={str(key)!r}) are not a certificate and its key: {reason}"
        raise UserError(f"certificate (={str(certificate)!r}) {rule}.") from error
