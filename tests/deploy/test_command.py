"""`fedpohcs flower` before anything is started: keys, the app folder, and what it refuses."""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from fedpohcs.cli import main
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.deploy.protocol import config_from_text, config_text, rules_of


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['flwr'] = None; import importlib.util as u; f = u.find_spec; "
    hidden += "u.find_spec = lambda name, *rest: None if name == 'flwr' else f(name, *rest); "
    program = hidden + "from fedpohcs.cli import main; sys.exit(main(sys.argv[1:]))"
    for arguments in (["run", "tabular", "--out", str(tmp_path / "run")], ["keys", str(tmp_path / "keys")]):
        done = subprocess.run([sys.executable, "-c", program, "flower", *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr == "fedpohcs: Flower is not installed. Install it with: pip install 'fedpohcs[flower]'\n"
    assert not list(tmp_path.iterdir())


def test_the_app_folder_holds_settings_and_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "flower",
        "app",
        "tabular",
        "--clients",
        "5",
        "--seed",
        "3",
        "--app",
        str(tmp_path),
        "--min-clients",
        "4",
    ]
    assert main(arguments) == 0
    app = Path(capsys.readouterr().out.strip())
    assert sorted(path.name for path in app.iterdir()) == ["README.md", "pyproject.toml"]
    flower = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]
    assert "federations" not in flower  # flwr would rewrite the file
    config = config_from_text(flower["app"]["config"]["config"])
    assert (config.federation.num_clients, config.seed) == (5, 3)
    assert flower["app"]["config"]["min-clients"] == 4


NODE = ("--superlink", "s:1", "--client-id", "1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fly"], "flower command (='fly') is not known"),
        (["run", "tabular", "--phase-timeout", "0"], "phase-timeout (=0.0) must be above 0"),
        (["run", "tabular", "--min-clients", "13"], "min-clients (=13) must not exceed num_clients (=12)"),
        (["run", "--resume", "nowhere"], "run (='nowhere') is not a run folder"),
        (["run", "tabular", "--checkpoint-every", "-1"], "checkpoint-every (=-1) must be 0 or more"),
        (["run", "tabular", "--privacy", "masked", "--insecure"], "insecure (=True) cannot go with privacy 'masked'"),
        (["app", "tabular", "--privacy", "masked"], "members (='none') must be given with privacy 'masked'"),
        (["app", "tabular", "--privacy", "masked", "--members", "m"], "cannot be read: No such file or directory"),
        (["app", "tabular", "--members", "m"], "cannot be read: No such file or directory"),
        (["run", "tabular", "--privacy", "masked", "--selector", "potential-only"], "Use fedpohcs or"),
        (["run", "tabular", "--port", "70000"], "port (=70000) must be at least 0 and below 65536"),
        (["node", "--superlink", "s:1", "--client-id", "-1", "--insecure"], "client-id (=-1) must be at least 0"),
        (["node", "--superlink", "s:1", "--client-id", "1"], "root-certificates (=None) must be given, or --insecure"),
        (
            ["node", *NODE, "--insecure", "--identity", "i", "--members", "m"],
            "identity (='i') goes together with members (='m') and plan-key (='None')",
        ),
        (
            ["node", *NODE, "--insecure", "--identity", "i", "--members", "m", "--plan-key", "o"],
            "identity (='i') is not a file",
        ),
        (["node", *NODE, "--root-certificates", "ca.pem", "--key", "k"], "root-certificates (='ca.pem') is not a file"),
        (["keys", "new", "--test-fleet", "--clients", "0"], "clients (=0) must be at least 1"),
        (["keys", "new", "--hosts", "a,"], "hosts (='a,') must be names or addresses"),
        (["keys", "new", "--renew", "--test-fleet"], "renew (=True) cannot go with --test-fleet"),
        (["keys", "new", "--renew"], "authority (='new/ca.key') cannot be read: No such file or directory"),
        (["members", "ad"], "members command (='ad') is not known. Did you mean 'add'?"),
        (["members", "list", "m"], "members (='m') cannot be read: No such file or directory"),
        (["members", "add", "m", "--client-id", "1"], "public (='public') cannot be read: No such file or directory"),
        (["server", "--certificate", "c", "--key", "k"], "certificate (='c') is not a file. Make one with"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("flwr")
    monkeypatch.chdir(tmp_path)
    assert main(["flower", *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class RecordedFleet:
    """In place of a fleet: keeps the settings of the run, which ends at once."""

    submitted: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, num_clients: int, logs: Path, **options: Any) -> None:
        self.scratch = logs.parent

    def __enter__(self) -> "RecordedFleet":
        return self

    def __exit__(self, *error: object) -> None: ...

    def submit(self, settings: dict[str, Any]) -> SimpleNamespace:
        self.submitted.append(settings)
        Path(settings["outcome"]).write_text('{"error": null}')
        return SimpleNamespace(poll=lambda: 0)


def test_resume_submits_the_stored_run_with_the_clients_states(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    run = make_run(stop_after=1, rounds=3, seed=5)
    monkeypatch.setattr("fedpohcs.deploy.local.LocalFleet", RecordedFleet)
    assert main(["flower", "run", "--resume", str(run), "--rounds", "7", "--phase-timeout", "9"]) == 0
    (settings,) = RecordedFleet.submitted
    assert (settings["resume"], settings["out"], settings["phase-timeout"]) == (True, str(run), 9.0)
    assert settings["state-dir"] == str(run / "clients")
    assert config_from_text(settings["config"]) == replace(preset("tabular"), rounds=7, seed=5)


SECRETS = ("server.key", "client-0", "client-1", "identity-0", "identity-1")


def test_keys_are_for_their_owner_alone_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr")
    folder = tmp_path / "keys"
    assert main(["flower", "keys", str(folder), "--test-fleet", "--clients", "2"]) == 0
    names = {"ca.pem", "server.pem", "server.key", "client-0", "client-0.pub", "client-1", "client-1.pub"}
    names |= {"identity-0", "identity-1", "members", "identity-0.ledger", "identity-1.ledger"}
    names |= {"operator", "operator.pub"}
    assert {path.name for path in folder.iterdir()} == names
    assert {(folder / name).stat().st_mode & 0o777 for name in SECRETS} == {0o600}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["flower", "keys", str(folder)]) == 2
    assert "Keys are never overwritten" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_without_a_test_fleet_only_the_server_gets_keys(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    folder = tmp_path / "keys"
    assert main(["flower", "keys", str(folder), "--hosts", "example.org"]) == 0
    assert {path.name for path in folder.iterdir()} == {"ca.pem", "ca.key", "server.pem", "server.key"}
    assert {(folder / name).stat().st_mode & 0o777 for name in ("ca.key", "server.key")} == {0o600}


def test_the_certificate_of_the_server_is_renewed_alone(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from cryptography import x509

    from fedpohcs.deploy.server_command import ServerOptions

    folder = tmp_path / "keys"
    main(["flower", "keys", str(folder), "--hosts", "example.org"])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["flower", "keys", str(folder), "--renew", "--hosts", "example.net"]) == 0
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.pem", "server.key"}
    authority, server = (x509.load_pem_x509_certificate(after[name]) for name in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(authority)
    ServerOptions(folder / "server.pem", folder / "server.key")  # they belong together
    (folder / "server.key").write_bytes(before["server.key"])
    with pytest.raises(UserError, match="are not a certificate and its key"):
        ServerOptions(folder / "server.pem", folder / "server.key")


def test_an_app_takes_a_list_of_members_only_if_all_nodes_are_registered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr")
    from fedpohcs.deploy.members import load_owners, read_members, read_public, write_members

    path, arguments = tmp_path / "members", ["flower", "app", "tabular", "--clients", "2", "--app", str(tmp_path)]
    devices = {client: read_public(make_device(tmp_path / f"{client}") / "public") for client in (0, 1)}
    write_members(path, devices | {0: replace(devices[0], node_id=2**63 + 5)})
    assert main([*arguments, "--members", str(path)]) == 2
    assert "must have the nodes of the clients 0 to 1" in capsys.readouterr().err
    write_members(path, read_members(path) | {1: replace(devices[1], node_id=7)})
    assert load_owners(path) == {0: 2**63 + 5, 1: 7}
    assert main([*arguments, "--members", str(path)]) == 0


def make_device(folder: Path) -> Path:
    assert main(["flower", "identity", "--out", str(folder)]) == 0
    return folder


def test_a_device_makes_its_own_keys_and_only_public_ones_leave_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr")
    from fedpohcs.deploy.keys import load_identity, load_members

    device, members = make_device(tmp_path / "device"), tmp_path / "members"
    secret = {"key", "identity", "identity.ledger"}
    assert {path.name for path in device.iterdir()} == {*secret, "public"}
    assert {(device / name).stat().st_mode & 0o777 for name in secret} == {0o600}
    assert "PRIVATE" not in (device / "public").read_text()
    shown = capsys.readouterr().out
    arguments = ["flower", "members", "add", str(members), "--client-id", "7", "--public", str(device / "public")]
    assert main(arguments) == 0
    found = set(re.findall("SHA256:[^,\\s]+", capsys.readouterr().out))
    assert len(found) == 2 and found == set(re.findall("SHA256:[^,\\s]+", shown))
    known = load_members(members)
    assert load_identity(device / "identity", 7, known).public_key().public_bytes_raw() == known[7]
    assert main(["flower", "members", "remove", str(members), "--client-id", "7"]) == 0
    assert load_members(members) == {}


def test_a_client_is_listed_once_and_no_key_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr")
    one, two, members = make_device(tmp_path / "one"), make_device(tmp_path / "two"), tmp_path / "members"

    def add(client: int, device: Path) -> int:
        public = str(device / "public")
        return main(["flower", "members", "add", str(members), "--client-id", str(client), "--public", public])

    assert add(0, one) == 0
    before = members.read_bytes()
    assert [add(0, two), add(1, one), add(-1, two)] == [2, 2, 2]
    errors = capsys.readouterr().err
    assert "client-id (=0) is in the list already" in errors
    assert "has a key of client 0" in errors
    assert members.read_bytes() == before
    assert add(1, two) == 0
    capsys.readouterr()
    assert main(["flower", "members", "list", str(members)]) == 0
    assert capsys.readouterr().out.count("not registered") == 2


def test_the_certificate_is_signed_by_the_authority_for_every_host(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from cryptography import x509

    folder = tmp_path / "keys"
    main(["flower", "keys", str(folder), "--hosts", "example.org,10.0.0.1", "--days", "7"])
    authority, server = (
        x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes()) for name in ("ca", "server")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["example.org"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert (server.not_valid_after_utc - server.not_valid_before_utc).days == 7


def test_telemetry_is_off_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from fedpohcs.deploy.local import LocalFleet

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    for asked in (False, True):
        fleet = LocalFleet(1, tmp_path / "logs", runtime="deployment", telemetry=asked)
        assert fleet.environment["FLWR_TELEMETRY_ENABLED"] == str(int(asked))
        assert fleet.environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        fleet.stop()


def test_rules_follow_the_config_but_not_the_number_of_rounds() -> None:
    config = preset("tabular")
    assert rules_of(config) == rules_of(replace(config, rounds=7))
    assert rules_of(config) != rules_of(replace(config, seed=7))
    assert config_from_text(config_text(config)) == config
