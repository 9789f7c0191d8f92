"""The list of the members of a fleet: the public keys of every device, which the operator collects.

It is a text file with two lines per client, in OpenSSH's format. The identity signs a client's messages in private
selection; with the other key its node authenticates to the server. If the node is registered with the SuperLink of the
server, the number that it got there follows:

    7 ssh-ed25519 AAAA...
    7 ecdsa-sha2-nistp384 AAAA... 1234567890
"""

import base64
import hashlib
import json
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpohcs.core.errors import UserError, require
from fedpohcs.core.files import replace_file
from fedpohcs.deploy.programs import find_program, quiet_environment

LONGEST_FILE = 2**24  # bytes
NIST_CURVES = ("secp256r1", "secp384r1", "secp521r1")  # those that Flower accepts


@dataclass(frozen=True)
class MemberKeys:
    """The public keys of one client, as OpenSSH writes them: a type and a number in base64."""

    identity: str | None = None
    node: str | None = None
    node_id: int | None = None

    def lines(self, client: int) -> str:
        """The lines of a client."""
        identity = f"{client} {self.identity}\n" if self.identity else ""
        number = "" if self.node_id is None else f" {self.node_id}"
        return identity + (f"{client} {self.node}{number}\n" if self.node else "")


def read_members(path: Path) -> dict[int, MemberKeys]:
    """Read the list of members, by client."""
    members: dict[int, MemberKeys] = {}
    for number, line in enumerate(read_text("members", path).splitlines(), start=1):
        client, _, text = line.strip().partition(" ")
        if not client or client.startswith("#"):
            continue
        rule = f"must say CLIENT-ID ssh-ed25519 KEY or CLIENT-ID ecdsa-... KEY in line {number}, each client once"
        kind = kind_of(text)
        known = members.get(int(client), MemberKeys()) if client.isdecimal() and len(client) < 10 else None
        require(known is not None and kind is not None, "members", str(path), rule)
        assert known is not None and kind is not None
        require(getattr(known, kind) is None, "members", str(path), rule)
        changes: dict[str, Any] = {kind: " ".join(text.split()[:2])}
        if kind == "node" and len(words := text.split()) > 2 and words[2].isdecimal():
            changes["node_id"] = int(words[2])
        members[int(client)] = replace(known, **changes)
    return members


def load_owners(path: Path) -> dict[int, int]:
    """Read which node of Flower runs each client, as far as nodes are registered."""
    found = {client: keys.node_id for client, keys in read_members(path).items()}
    return {client: node for client, node in found.items() if node is not None}


def write_members(path: Path, members: dict[int, MemberKeys]) -> None:
    """Replace the list of members."""
    text = "".join(members[client].lines(client) for client in sorted(members))
    replace_file(path, text.encode())


def kind_of(text: str) -> str | None:
    """Whether a public key is an `identity` or that of a `node`; None: neither."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(text.encode())
    except Exception:  # the library has several kinds of errors for a text that is no key
        return None
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in NIST_CURVES:
        return "node"
    return "identity" if isinstance(key, Ed25519PublicKey) else None


def read_public(path: Path) -> MemberKeys:
    """Read the public keys that `fedpohcs flower identity` wrote on a device."""
    found = {
        kind_of(line): " ".join(line.split()[:2]) for line in read_text("public", path).splitlines() if line.strip()
    }
    rule = "must hold the two public keys that `fedpohcs flower identity` writes"
    require(found.keys() == {"identity", "node"}, "public", str(path), rule)
    return MemberKeys(found["identity"], found["node"])


def add_member(path: Path, client: int, given: MemberKeys, server: Path | None) -> MemberKeys:
    """Add a client to the list, and register its node with the SuperLink of `server`, if given."""
    require(client >= 0, "client-id", client, "must be at least 0")
    members = read_members(path) if path.exists() else {}
    remedy = f"Take it out with: fedpohcs flower members remove {path} --client-id {client}"
    require(client not in members, "client-id", client, "is in the list already", remedy)
    for other, keys in members.items():
        same = given.identity == keys.identity or given.node == keys.node
        require(not same, "public", str(client), f"has a key of client {other}", "Every device makes its own keys.")
    if server is not None:
        given = replace(given, node_id=_register(server, str(given.node)))
    write_members(path, members | {client: given})
    return given


def remove_member(path: Path, client: int, server: Path | None) -> None:
    """Take a client out of the list, and its node out of the SuperLink of `server`, if given."""
    members = read_members(path)
    require(client in members, "client-id", client, "is not in the list")
    number = members[client].node_id
    if server is not None:
        require(number is not None, "client-id", client, "was not registered by this list", "Leave out --server.")
        call_supernode(server, "unregister", str(number), "fleet")
    write_members(path, {other: keys for other, keys in members.items() if other != client})


def fingerprint(key: str | None) -> str:
    """The fingerprint that `ssh-keygen -l` shows for a public key."""
    if key is None:
        return "none"
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _register(server: Path, key: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.pub"
        path.write_text(f"{key}\n")
        return int(call_supernode(server, "register", str(path), "fleet")["node-id"])


def list_nodes(server: Path) -> list[dict[str, Any]]:
    """The nodes that the SuperLink of `server` knows, and whether they are online."""
    return call_supernode(server, "list", "fleet")["nodes"]


def call_supernode(server: Path, *arguments: str) -> dict[str, Any]:
    """Call `flwr supernode` for the SuperLink whose files are in the folder `server`, and return what it says."""
    home = server / "flwr"
    remedy = "Name the --state-dir of a `fedpohcs flower server` that runs on this machine."
    require((home / "config.toml").is_file(), "server", str(server), "has no settings of a SuperLink", remedy)
    environment = quiet_environment(telemetry=False) | {"FLWR_HOME": str(home.absolute())}
    command = [find_program("flwr"), "supernode", *arguments, "--format", "json"]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        answer = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success"):
        said = answer.get("error-message") or " ".join((done.stderr or done.stdout).split())
        raise UserError(f"the SuperLink refused to {arguments[0]} nodes: {said}")
    return answer


def read_text(name: str, path: Path) -> str:
    """Read a small text file; bytes that are not ASCII become marks."""
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"{name} (={str(path)!r}) cannot be read: {error.strerror}.") from error
    require(len(data) <= LONGEST_FILE, name, str(path), f"must not exceed {LONGEST_FILE} bytes")
    return data.decode("ascii", "replace")
