"""Reads from the node config which client a node runs, its key files, and the folder of its state."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.deploy.allowed import outside_names
from fedpohcs.deploy.device import default_states, run_folder

if TYPE_CHECKING:  # imported at run time only if selection is private
    from fedpohcs.deploy.member import Member
    from fedpohcs.deploy.pooling import PoolingMember


def logical_client(context: Context) -> int:
    """Id of the client of this node: `client-id`, or `partition-id` in a simulation."""
    given = context.node_config
    if "client-id" in given:
        number = given["client-id"]
        require(type(number) is int and number >= 0, "client-id", number, "must be a whole number, 0 or more")
        return int(number)
    if "partition-id" in given:
        return int(given["partition-id"])
    raise UserError("client-id (=none) must be in the node config: flower-supernode --node-config 'client-id=0'.")


def state_folder(context: Context) -> Path:
    """Folder for the states of all clients of this machine. Only nodes of a simulation take it from the run config."""
    given = context.node_config.get("state-dir")
    if _is_simulated(context):
        given = given or context.run_config.get("state-dir")
    if given:
        return Path(str(given))
    return default_states()


def check_allowed(context: Context, config: ExperimentConfig) -> None:
    """Refuse a config that names code or files of this device which the node does not allow.

    Whoever starts a run could otherwise call any function here. Nodes of a simulation run on the machine of the user
    who named the functions.
    """
    if _is_simulated(context):
        return
    allowed = set(str(context.node_config.get("allow", "")).split(","))
    for setting, name in outside_names(config):
        remedy = f"If this device may use it, start its node with: --allow {name}"
        require(name in allowed, setting, name, "is not allowed by this node", remedy)


def _is_simulated(context: Context) -> bool:
    given = context.node_config
    return "partition-id" in given and "client-id" not in given


def session_folder(folder: Path, members: Mapping[int, bytes]) -> Path:
    """Folder for the session keys. A session cannot go on with other members' keys, so every list has its own."""
    listed = b"".join(client.to_bytes(4, "little") + members[client] for client in sorted(members))
    return folder / f"session-{hashlib.sha256(listed).hexdigest()[:16]}"


def member_of(context: Context, config: ExperimentConfig, run: str) -> "Member | None":
    """The object that answers messages of private selection; None if the run is not private.

    A node with an identity takes part in private runs only. Otherwise anybody who starts a run could request its tables
    in plain text.
    """
    client, paths = logical_client(context), _key_files(context)
    if config.privacy == "none":
        remedy = "Take identity out of the node config if the server may see this client's tables."
        require(paths is None, "privacy", config.privacy, f"is not enough for client {client}", remedy)
        return None
    from fedpohcs.deploy.keys import load_identity, load_members
    from fedpohcs.deploy.member import Member
    from fedpohcs.privacy.client import PrivateClient
    from fedpohcs.privacy.terms import run_parameters

    if paths is None:
        needed = f"--node-config \"client-id={client} identity='identity-{client}' members='members'\""
        raise UserError(f"identity (=none) must be in the node config with privacy {config.privacy!r}: {needed}.")
    identity, members = paths
    known = load_members(members)
    party = PrivateClient(client, run_parameters(config), load_identity(identity, client, known), known)
    return Member(party, session_folder(run_folder(state_folder(context), run, client), known))


def pooling_member_of(context: Context, config: ExperimentConfig, run: str) -> "PoolingMember":
    """The object that adds the filter of this client to a sum; only with privacy, and only without a noise budget."""
    client, paths = logical_client(context), _key_files(context)
    noise = config.protection.epsilon is not None
    rule = "has no sums of filters: clients send them in the clear, or with an epsilon not at all"
    require(config.privacy != "none" and not noise and paths is not None, "privacy", config.privacy, rule)
    from fedpohcs.deploy.keys import load_identity, load_members
    from fedpohcs.deploy.pooling import PoolingMember
    from fedpohcs.privacy.pooling import PoolingClient
    from fedpohcs.privacy.terms import run_parameters

    assert paths is not None
    known = load_members(paths[1])
    name = run_parameters(config).digest + run.encode()
    identity = load_identity(paths[0], client, known)
    party = PoolingClient(client, name, identity, known, config.protection.min_cohort)
    return PoolingMember(party, run_folder(state_folder(context), run, client))


def _key_files(context: Context) -> tuple[Path, Path] | None:
    """Paths of the identity and the list of members. Only nodes of a simulation take them from the run config."""
    given = context.node_config
    if "identity" in given:
        require("members" in given, "members", "none", "must be in the node config beside identity")
        return Path(str(given["identity"])), Path(str(given["members"]))
    folder = context.run_config.get("simulated-keys")
    if folder and _is_simulated(context):
        from fedpohcs.deploy.keys import Keys

        keys = Keys(Path(str(folder)))
        return keys.identity(logical_client(context)), keys.members
    return None
