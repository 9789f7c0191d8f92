"""`fedpohcs flower`: a federation on Flower, on this machine or prepared for a fleet."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from fedpohcs.cli.options import RunSettings
from fedpohcs.cli.parsing import parse, run_subcommand
from fedpohcs.cli.settings import parse_experiment
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.deploy import require_flower, require_masked, require_no_held_out, require_shared, require_trusted

SECONDS_PER_POLL = 0.5


@dataclass(frozen=True)
class WaitSettings:
    """How long the server waits, and for how many clients."""

    phase_timeout: float = 600.0
    """Seconds to wait for the replies of a phase. Later replies are left out."""
    startup_timeout: float = 600.0
    """Seconds to wait for clients to connect before the first round."""
    min_clients: int = 0
    """Clients that must be connected before the first round. 0: all."""

    def __post_init__(self) -> None:
        for name in ("phase_timeout", "startup_timeout"):
            require(getattr(self, name) > 0, name.replace("_", "-"), getattr(self, name), "must be above 0")
        require(self.min_clients >= 0, "min-clients", self.min_clients, "must be 0 or more")

    def settings(self) -> dict[str, Any]:
        """These settings in the form that the server app reads."""
        names = ("phase_timeout", "startup_timeout", "min_clients")
        return {name.replace("_", "-"): getattr(self, name) for name in names}


@dataclass(frozen=True)
class Processes:
    """What `fedpohcs flower run` starts on this machine."""

    runtime: Literal["deployment", "simulation"] = "deployment"
    """A SuperNode process for each client, or Flower's simulation, which shares processes among clients."""
    port: int = 0
    """Port to which the nodes connect. 0: any free port."""
    insecure: bool = False
    """Send plain text between the processes, without TLS and keys."""
    telemetry: bool = False
    """Let Flower send usage statistics to its developers."""


@dataclass(frozen=True)
class RunOptions:
    """`fedpohcs flower run`."""

    config: Annotated[RunSettings, arg(name="")]
    waiting: Annotated[WaitSettings, arg(name="")] = WaitSettings()
    processes: Annotated[Processes, arg(name="")] = Processes()
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    out: Path | None = None
    """Run folder to write. None: runs/flower/PRESET/LEVEL/SELECTOR/seed-SEED."""
    config_file: Annotated[Path | None, arg(name="config")] = None
    """TOML file with the settings, in place of a preset; see `fedpohcs config`."""
    overwrite: bool = False
    """Replace the run that is in the folder."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints, from which --resume goes on. 0: none."""


@dataclass(frozen=True)
class ResumeOptions:
    """`fedpohcs flower run --resume`."""

    resume: Path
    """Run folder of a run that stopped."""
    rounds: int | None = None
    """Rounds in all. None: as many as the run was to have."""
    waiting: Annotated[WaitSettings, arg(name="")] = WaitSettings()
    processes: Annotated[Processes, arg(name="")] = Processes()
    checkpoint_every: int = 1
    """Rounds between two checkpoints. 0: none."""


@dataclass(frozen=True)
class AppOptions:
    """`fedpohcs flower app`."""

    config: Annotated[RunSettings, arg(name="")]
    app: Path = Path("fleet")
    """Folder to write the Flower app into, as fedpohcs-app."""
    waiting: Annotated[WaitSettings, arg(name="")] = WaitSettings()
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    out: Path | None = None
    """Run folder that the server will write. None: runs/flower/PRESET/LEVEL/SELECTOR/seed-SEED."""
    config_file: Annotated[Path | None, arg(name="config")] = None
    """TOML file with the settings, in place of a preset; see `fedpohcs config`."""
    checkpoint_every: int = 1
    """Rounds between two checkpoints. 0: none."""
    members: Path | None = None
    """List of members, by which no device can take another's client id. Privacy needs it."""
    plan: Path | None = None
    """Plan of a private run, which the operator signed for the same settings and members."""


@dataclass(frozen=True)
class PlanOptions:
    """`fedpohcs flower plan`."""

    config: Annotated[RunSettings, arg(name="")]
    members: Path = Path("members")
    """List of members for which the plan is made."""
    operator: Path = Path("operator")
    """Private key of the operator, made if it is missing. Keep it away from the server."""
    plan: Path = Path("plan")
    """File to write: the signed plan, for the server."""
    days: int = 30
    """Days for which devices accept the plan."""
    clients: int | None = None
    """Size of the population, in short. Candidates and selected clients are no more than that. None: the preset's."""
    config_file: Annotated[Path | None, arg(name="config")] = None
    """TOML file with the settings, in place of a preset; see `fedpohcs config`."""


@dataclass(frozen=True)
class ExportOptions:
    """`fedpohcs flower export`."""

    output: Positional[Path]
    """File to write; the ending names the format: npz or onnx."""
    state_dir: Path | None = None
    """Folder for the client's state, as for the node. None: ~/.local/state/fedpohcs."""
    client_id: int | None = None
    """Number of the client, from 0. None: the only one that has a state here."""
    run: str | None = None
    """Name of the run below the folder. None: the run with the newest policy."""
    policy: str | None = None
    """Another policy of the run, copied here: a file that `fedpohcs export RUN@best policy.npz` wrote on the server, or
    a run folder. None: the last policy that this device was sent to evaluate."""
    sample: bool = False
    """Let an onnx file draw actions as in training. Without: the most likely action."""

    def __post_init__(self) -> None:
        require(self.client_id is None or self.client_id >= 0, "client-id", self.client_id, "must be at least 0")
        plain = self.run is None or self.run.isalnum()
        require(plain, "run", self.run, "must be letters and digits")


@dataclass(frozen=True)
class KeysOptions:
    """`fedpohcs flower keys`."""

    out: Positional[Path]
    """New folder for the keys; with --renew the folder of the authority."""
    hosts: str = "localhost,127.0.0.1"
    """Names and addresses under which nodes reach the server, joined by commas."""
    days: int = 365
    """Days for which the certificate of the server is valid."""
    renew: bool = False
    """Replace the certificate of the server and its key, and nothing else."""
    test_fleet: bool = False
    """Make the keys of all devices as well. Only to try things out: whoever makes them can play every device."""
    clients: int = 3
    """With --test-fleet: devices for which keys are made."""

    def __post_init__(self) -> None:
        require(not (self.renew and self.test_fleet), "renew", True, "cannot go with --test-fleet")


@dataclass(frozen=True)
class IdentityOptions:
    """`fedpohcs flower identity`."""

    out: Path = Path("identity")
    """New folder for the keys of this device."""


@dataclass(frozen=True)
class MemberOptions:
    """`fedpohcs flower members remove`."""

    members: Positional[Path]
    """File with the list of members."""
    client_id: int
    """Id of the client, from 0."""
    server: Path | None = None
    """State folder of a `fedpohcs flower server` on this machine, which then knows the device as well."""


@dataclass(frozen=True)
class AddOptions(MemberOptions):
    """`fedpohcs flower members add`."""

    public: Path = Path("public")
    """File with the public keys of the device, which `fedpohcs flower identity` wrote there."""


@dataclass(frozen=True)
class ListOptions:
    """`fedpohcs flower members list`."""

    members: Positional[Path]
    """File with the list of members."""


def run(arguments: list[str]) -> None:
    """Start a SuperLink and SuperNodes, train with them, and stop them. --resume RUN continues a run."""
    if any(word == "--resume" or word.startswith("--resume=") for word in arguments):
        return _resume(arguments)
    from fedpohcs.runs.folder import check_free

    given, config, folder = parse_experiment(RunOptions, "flower run", run.__doc__, arguments)
    out = given.out or _default_folder(folder)
    check_free(out, given.overwrite)
    _check(config, given)
    _check_processes(config, given.processes)
    _run_fleet(config, out, given, {"overwrite": given.overwrite})


def _resume(arguments: list[str]) -> None:
    from fedpohcs.runs.loading import read_config

    given = _parse(ResumeOptions, "run", run, arguments)
    config = read_config(given.resume)
    if given.rounds is not None:
        config = replace(config, rounds=given.rounds)
    _check(config, given)
    _check_processes(config, given.processes)
    _run_fleet(config, given.resume, given, {"resume": True})


def _default_folder(folder: Path) -> Path:
    """Where a run on Flower is stored: apart from the run of the same settings in one process."""
    return Path("runs", "flower", *folder.parts[1:])


def _check_config(config: ExperimentConfig, *, elsewhere: bool = False) -> None:
    from fedpohcs.runs.checks import check_config

    check_config(config, elsewhere=elsewhere)
    require_no_held_out(config)
    require_shared(config)
    require_trusted(config)
    require_masked(config)


def _check(config: ExperimentConfig, given: Any, *, elsewhere: bool = False) -> None:
    _check_config(config, elsewhere=elsewhere)
    n = config.federation.num_clients
    least, every = given.waiting.min_clients, given.checkpoint_every
    require(least <= n, "min-clients", least, f"must not exceed num_clients (={n})")
    require(every >= 0, "checkpoint-every", every, "must be 0 or more")


def _check_processes(config: ExperimentConfig, given: Processes) -> None:
    require_flower(simulation=given.runtime == "simulation")
    rule = f"cannot go with privacy {config.privacy!r}: scores need TLS on their way"
    require(config.privacy == "none" or not given.insecure, "insecure", given.insecure, rule)


def _run_fleet(config: ExperimentConfig, out: Path, given: Any, changes: dict[str, Any]) -> None:
    """Start the fleet, show its rounds until it is done, and stop it."""
    from fedpohcs.cli.following import FleetDisplay, Follower
    from fedpohcs.cli.grid import read_progress
    from fedpohcs.cli.signals import how_to_go_on, stopped_by_signals
    from fedpohcs.deploy.allowed import outside_names
    from fedpohcs.deploy.app_folder import run_settings
    from fedpohcs.deploy.local import LocalFleet

    logs = out.absolute().with_name(f"{out.name}-logs")
    fleet = LocalFleet(
        config.federation.num_clients,
        logs,
        **asdict(given.processes),
        private=config.privacy != "none",
        states=out.absolute() / "clients",
        allow=sorted({name for _, name in outside_names(config)}),  # the user of this command has named them
    )
    outcome = fleet.scratch / "outcome.json"
    settings = run_settings(config, out, **given.waiting.settings(), **changes)
    settings |= {
        "checkpoint-every": given.checkpoint_every,
        "state-dir": str(out.absolute() / "clients"),
        "outcome": str(outcome),
    }
    seen = read_progress(out).round if changes.get("resume") else -1
    with stopped_by_signals(how_to_go_on(out, "fedpohcs flower run --resume")), FleetDisplay() as display, fleet:
        display.on_start(config)
        follower = Follower(out, display, seen)
        process = fleet.submit(settings)
        while process.poll() is None:
            follower.look()
            fleet.check_alive("superlink")
            time.sleep(SECONDS_PER_POLL)
        follower.look()
        display.on_finish()
        result = json.loads(outcome.read_text()) if outcome.exists() else {"error": "the run did not start."}
        if result["error"]:
            fleet.check_alive("superlink")  # if the SuperLink has ended, report that as the cause
    if result["error"]:
        raise UserError(f"{result['error']} The logs are in {logs}.")
    print(f"run: {out}")


def app(arguments: list[str]) -> None:
    """Write the folder that `flwr run` takes, for a SuperLink that runs elsewhere."""
    from fedpohcs.deploy.app_folder import run_settings, write_app

    given, config, folder = parse_experiment(AppOptions, "flower app", app.__doc__, arguments)
    _check(config, given, elsewhere=True)
    out = given.out or _default_folder(folder)
    settings = run_settings(config, out, **given.waiting.settings())
    settings |= {"checkpoint-every": given.checkpoint_every, "members": _members(config, given.members)}
    settings |= {"plan": _plan(config, given)}
    print(write_app(given.app, settings))


def _members(config: ExperimentConfig, given: Path | None) -> str:
    """The path of the list of members, after a check; empty without one."""
    private, n = config.privacy != "none", config.federation.num_clients
    if given is None:
        require(not private, "members", "none", f"must be given with privacy {config.privacy!r}")
        return ""
    from fedpohcs.deploy.keys import load_members
    from fedpohcs.deploy.members import load_owners

    path = given.absolute()
    owners, everyone = load_owners(path), set(range(n))
    require(
        not private or load_members(path).keys() >= everyone,
        "members",
        str(path),
        f"must list the clients 0 to {n - 1}",
    )
    remedy = "Register them with: fedpohcs flower members add ... --server"
    registered = owners.keys() >= everyone or (private and not owners)
    require(registered, "members", str(path), f"must have the nodes of the clients 0 to {n - 1}", remedy)
    return str(path)


def _plan(config: ExperimentConfig, given: AppOptions) -> str:
    """The text of the plan, after a check; empty without privacy."""
    if config.privacy == "none":
        return ""
    remedy = "The operator makes it with: fedpohcs flower plan"
    if given.plan is None or given.members is None:
        raise UserError(f"plan (='none') must be given with privacy {config.privacy!r}. {remedy}")
    from fedpohcs.deploy.planning import plan_text

    return plan_text(given.plan, config, given.members)


def plan(arguments: list[str]) -> None:
    """Sign what a private run may ask of its devices, on the operator's machine, with a key the server lacks."""
    given, config, _ = parse_experiment(PlanOptions, "flower plan", plan.__doc__, arguments)
    require_flower()
    _check_config(config)
    require(config.privacy != "none", "privacy", config.privacy, "needs no plan", "Add --privacy masked.")
    from fedpohcs.core.files import replace_file
    from fedpohcs.deploy.keys import make_operator
    from fedpohcs.deploy.members import fingerprint
    from fedpohcs.deploy.planning import signed_plan

    if not given.operator.exists():
        print(f"{make_operator(given.operator)}: a new key. Give this file to every device as --plan-key.")
    signed = signed_plan(config, given.members, given.operator, given.days)
    replace_file(given.plan, signed)
    public = given.operator.with_suffix(".pub").read_text()
    print(f"{given.plan}: signed by {fingerprint(public)}, valid for {given.days} days. Give it to the server.")


def export(arguments: list[str]) -> None:
    """On a device: write the last policy that it was sent, with its own observation filter."""
    given = _parse(ExportOptions, "export", export, arguments)
    from fedpohcs.deploy.device import default_states, export_kept, find_kept

    kept = find_kept(given.state_dir or default_states(), given.client_id, given.run)
    about = export_kept(kept, given.output, given.policy, sample=given.sample)
    print(f"{given.output}: policy of round {about['round']}, filter of {kept.parent}")


def keys(arguments: list[str]) -> None:
    """Make or renew the certificate of a server; with --test-fleet the keys of all devices as well."""
    given = _parse(KeysOptions, "keys", keys, arguments)
    require_flower()
    from fedpohcs.deploy.keys import make_authority, make_keys, renew_certificate

    hosts = [host.strip() for host in given.hosts.split(",")]
    if given.test_fleet:
        made = make_keys(given.out, given.clients, hosts, given.days)
        print(f"{made.folder}: ca.pem for every node; server.pem and server.key for the server;")
        print(f"client-0 to client-{given.clients - 1} for a node each; their .pub files to be registered;")
        print("for private selection identity-0 and so on for a node each, and members for every node.")
        print("This is for trying things out: whoever has this folder can play every device.")
        print("In a fleet that counts each device makes its own keys: fedpohcs flower identity")
        return
    make = renew_certificate if given.renew else make_authority
    made = make(given.out, hosts, given.days)
    print(f"{made.folder}: server.pem and server.key for the server, ca.pem for every device.")
    print("Keep ca.key away from the server: it signs the next certificate (--renew).")


def identity(arguments: list[str]) -> None:
    """Make the keys of this device, on the device; the private ones stay here."""
    given = _parse(IdentityOptions, "identity", identity, arguments)
    require_flower()
    from fedpohcs.deploy.keys import make_identity
    from fedpohcs.deploy.members import fingerprint, read_public

    path = make_identity(given.out)
    public = read_public(path)
    print(f"{path}: send this file to the operator. The files key and identity beside it must not leave this device.")
    print(f"identity {fingerprint(public.identity)}\nnode     {fingerprint(public.node)}")


def members(arguments: list[str]) -> None:
    """Add a device to the list of members, remove it, or show the list: members add, remove, list."""
    commands = {"add": _add_member, "remove": _remove_member, "list": _list_members}
    run_subcommand("fedpohcs flower members", commands, arguments)


def _add_member(arguments: list[str]) -> None:
    """Add the public keys of a device to the list of members."""
    given = _parse(AddOptions, "members add", _add_member, arguments)
    require_flower()
    from fedpohcs.deploy.members import add_member, fingerprint, read_public

    added = add_member(given.members, given.client_id, read_public(given.public), given.server)
    print(f"client {given.client_id}: identity {fingerprint(added.identity)}, node {fingerprint(added.node)}")
    print("Compare the fingerprints with those that the device shows.")
    if added.node_id is not None:
        print(f"The SuperLink knows it as node {added.node_id}.")


def _remove_member(arguments: list[str]) -> None:
    """Take a device out of the list of members."""
    given = _parse(MemberOptions, "members remove", _remove_member, arguments)
    require_flower()
    from fedpohcs.deploy.members import remove_member

    remove_member(given.members, given.client_id, given.server)
    print(f"client {given.client_id} is no longer a member")


def _list_members(arguments: list[str]) -> None:
    """Show the list of members with the fingerprints of their keys."""
    given = _parse(ListOptions, "members list", _list_members, arguments)
    require_flower()
    from fedpohcs.deploy.members import fingerprint, read_members

    for client, member in sorted(read_members(given.members).items()):
        number = "not registered" if member.node_id is None else f"node {member.node_id}"
        print(f"{client:>4}  identity {fingerprint(member.identity)}  key {fingerprint(member.node)}  {number}")


def server(arguments: list[str]) -> None:
    """Run the server of a federation until stopped: a SuperLink on loopback, and the port that devices reach."""
    from fedpohcs.cli.signals import stopped_by_signals
    from fedpohcs.deploy.server_command import ServerOptions, run_server

    given = _parse(ServerOptions, "server", server, arguments)
    require_flower()
    with stopped_by_signals("stopped."):
        run_server(given)


def node(arguments: list[str]) -> None:
    """Be one client of a federation, on a device of its own, until stopped."""
    from fedpohcs.cli.signals import stopped_by_signals
    from fedpohcs.deploy.node_command import NodeOptions, run_node

    given = _parse(NodeOptions, "node", node, arguments)
    require_flower()
    with stopped_by_signals("stopped."):
        run_node(given)


SUBCOMMANDS: dict[str, Callable[[list[str]], None]] = {
    "run": run,
    "app": app,
    "server": server,
    "node": node,
    "export": export,
    "identity": identity,
    "members": members,
    "plan": plan,
    "keys": keys,
}


def run_command(arguments: list[str]) -> None:
    """Run one subcommand."""
    run_subcommand("fedpohcs flower", SUBCOMMANDS, arguments)


def _parse(cls: Any, name: str, command: Callable[..., None], arguments: list[str], default: Any = None) -> Any:
    return parse(cls, f"fedpohcs flower {name}", command.__doc__, arguments, default)
