"""`fedpohcs flower node`: runs one client on a device, as a SuperNode process and a client-app process."""

import os
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fedpohcs.core.errors import UserError, require
from fedpohcs.deploy.flower_internals import check_internals
from fedpohcs.deploy.programs import LOOPBACK, end_child, free_port, quiet_environment, start_child

SECONDS_PER_POLL = 0.2
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 10.0  # seconds before a lost server is tried again
SECONDS_STEADY = 120.0  # after which a connection counts as a new one
SECRET_BYTES = 32
EXIT_LOST = 4  # exit code of the SuperNode: it had a connection and lost it
MAX_SKETCH = 2**14  # words of a sketch; what a run asks for by default
EXIT_UNSUPPORTED = 3  # exit code of the client app: this version of Flower lacks a name that it uses


@dataclass(frozen=True)
class NodeOptions:
    """`fedpohcs flower node`."""

    superlink: str
    """HOST:PORT of the SuperLink."""
    client_id: int
    """Id of the client that this device runs, from 0."""
    root_certificates: Path | None = None
    """ca.pem: certificate of the authority that signed the server's certificate."""
    key: Path | None = None
    """client-N: private key with which this device authenticates to the server."""
    identity: Path | None = None
    """identity-N: key for private selection. With it the device takes part in private runs only."""
    members: Path | None = None
    """Public keys of all clients, for private runs."""
    plan_key: Path | None = None
    """operator.pub: public key of the operator, who signs the plans of private runs."""
    max_sketch: int = MAX_SKETCH
    """Most words of 4 bytes that a private run may ask of this device in a round."""
    state_dir: Path | None = None
    """Folder for the client's state. None: ~/.local/state/fedpohcs."""
    allow: tuple[str, ...] = ()
    """Functions, as MODULE:FUNCTION, and folders that the config of a run may name. All others are refused."""
    give_up_after: float = 600.0
    """Seconds without the server after which the node ends, so that systemd, for instance, starts it again."""
    insecure: bool = False
    """Connect to the server without TLS and without authentication."""
    telemetry: bool = False
    """Let Flower send usage statistics to its developers."""

    def __post_init__(self) -> None:
        require(self.client_id >= 0, "client-id", self.client_id, "must be at least 0")
        rule = "must be given, or --insecure"
        for name in ("root_certificates", "key"):
            require(self.insecure or bool(getattr(self, name)), name.replace("_", "-"), None, rule)
            require(not (self.insecure and getattr(self, name)), "insecure", True, f"cannot go with {name}")
        require(self.give_up_after > 0, "give-up-after", self.give_up_after, "must be above 0")
        for name in self.allow:
            plain = bool(name) and not set(name) & set(" ,'\"\n")
            require(plain, "allow", name, "must be MODULE:FUNCTION or a folder, without blanks, commas and quotes")
        given = [self.identity is None, self.members is None, self.plan_key is None]
        together = f"goes together with members (={str(self.members)!r}) and plan-key (={str(self.plan_key)!r})"
        require(len(set(given)) == 1, "identity", str(self.identity), together)
        for name in ("root_certificates", "key", "identity", "members", "plan_key"):
            path = getattr(self, name)
            require(path is None or path.is_file(), name.replace("_", "-"), str(path), "is not a file")

    def node_config(self) -> str:
        """The node config in the form of `flower-supernode --node-config`."""
        paths = {"identity": self.identity, "members": self.members, "plan-key": self.plan_key}
        paths |= {"state-dir": self.state_dir}
        given = [f"{name}='{path.absolute()}'" for name, path in paths.items() if path is not None]
        given += [f"allow='{','.join(self.allow)}'"] if self.allow else []
        return " ".join([f"client-id={self.client_id}", f"max-sketch={self.max_sketch}", *given])

    def supernode_arguments(self, port: int) -> list[str]:
        """Command-line arguments of `flower-supernode`."""
        trust = ["--insecure"]
        if not self.insecure:
            trust = ["--root-certificates", str(self.root_certificates), "--auth-supernode-private-key", str(self.key)]
        runtime = ["--isolation", "process", "--host", LOOPBACK, "--port", str(port)]
        runtime += ["--max-wait-time", str(self.give_up_after)]
        return ["--superlink", self.superlink, *trust, *runtime, "--node-config", self.node_config()]


class Reconnection:
    """Decides, each time a SuperNode has ended, whether and when another is started."""

    def __init__(self, give_up_after: float) -> None:
        self.give_up_after = give_up_after
        self.lost: float | None = None  # time at which the connection was lost
        self.pause = SHORTEST_PAUSE

    def pause_after(self, code: int, lived: float, now: float) -> float:
        """Seconds to wait before the next try. Raises `UserError` if it makes no sense or took too long."""
        if code == EXIT_LOST and (self.lost is None or lived > SECONDS_STEADY):
            self.lost, self.pause = now, SHORTEST_PAUSE
        if self.lost is None:
            raise UserError(
                f"the SuperNode ended with code {code}. If it does not say why above, the server does not know its key "
                "(fedpohcs flower members add), or the clocks of the two machines differ."
            )
        if now - self.lost > self.give_up_after:
            raise UserError(f"the server was lost {now - self.lost:.0f} s ago, and no new connection was possible.")
        pause, self.pause = self.pause, min(2 * self.pause, LONGEST_PAUSE)
        return pause


def run_node(given: NodeOptions) -> None:
    """Run both processes until stopped. Restart a client app that ends, and a SuperNode that has lost the server."""
    with tempfile.TemporaryDirectory(prefix="fedpohcs-node-") as folder:  # readable by this user alone
        secret = Path(folder) / "secret"
        secret.write_bytes(secrets.token_bytes(SECRET_BYTES))
        _run_processes(given, secret)


def _run_processes(given: NodeOptions, secret: Path) -> None:
    port = free_port()
    environment = quiet_environment(telemetry=given.telemetry)
    supernode = [sys.executable, "-m", "fedpohcs.deploy.supernode", *given.supernode_arguments(port)]
    supernode += ["--superexec-auth-secret-file", str(secret)]  # other users of this machine reach its runtime port
    resident = [sys.executable, "-m", "fedpohcs.deploy.resident", f"{LOOPBACK}:{port}", str(os.getpid()), str(secret)]
    processes = [start_child(supernode, environment), start_child(resident, environment)]
    reconnection, started = Reconnection(given.give_up_after), time.monotonic()
    try:
        while True:
            if (code := processes[1].poll()) is not None:
                if code == EXIT_UNSUPPORTED:
                    check_internals()  # raises what the client app has found; loaded here only to report it
                processes[1] = start_child(resident, environment)
            if (code := processes[0].poll()) is not None:
                now = time.monotonic()
                pause = reconnection.pause_after(code, now - started, now)
                print(f"fedpohcs: the server was lost; the next try is in {pause:g} s.", file=sys.stderr, flush=True)
                time.sleep(pause)
                processes[0], started = start_child(supernode, environment), time.monotonic()
            time.sleep(SECONDS_PER_POLL)
    finally:
        for process in processes:
            end_child(process)
