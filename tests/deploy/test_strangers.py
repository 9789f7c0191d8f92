"""Real processes: `fedpohcs flower server`, two nodes, and a stranger who has the authority's certificate."""

import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedpohcs.core.errors import UserError
from fedpohcs.deploy import flower_internals as flower
from fedpohcs.deploy.app_folder import run_settings, write_app
from fedpohcs.deploy.flower_internals import FLEET_CALLS
from fedpohcs.deploy.keys import make_keys
from fedpohcs.deploy.members import MemberKeys, read_members, remove_member, write_members
from fedpohcs.deploy.programs import LOOPBACK, find_program
from fedpohcs.runs.loading import load_run

from .serving import CONFIG, PATIENCE, Server, honest_run, running, running_server

PROTOBUF = {"content-type": "application/protobuf"}


def call(log: Path, home: Path, *arguments: str) -> int:
    with running(log, find_program("flwr"), *arguments, home=home) as process:
        return process.wait(PATIENCE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path) as server:
        yield server


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
    with honest_run(server, out, replace(CONFIG, rounds=1)) as run:
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
