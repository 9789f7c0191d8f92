"""Reads from the node config which client a node runs, its key files, and the folder of its state."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flwr.app import Context

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.deploy import require_masked
from fedpohcs.deploy.allowed import outside_names
from fedpohcs.deploy.device import default_states, run_folder
from fedpohcs.deploy.node_command import MAX_SKETCH

if TYPE_CHECKING:  # imported at run time only if selection is private
    from fedpohcs.deploy.member import Member
    from fedpohcs.deploy.pooling import PoolingMember
    from fedpohcs.privacy.plan import Plan


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
    from fedpohcs.deploy.keys import ledger_of, load_identity, load_members
    from fedpohcs.deploy.member import Member
    from fedpohcs.privacy.client import PrivateClient
    from fedpohcs.privacy.terms import run_parameters

    if paths is None:
        needed = f"identity='identity-{client}' members='members' plan-key='operator.pub'"
        raise UserError(f"identity (=none) must be in the node config with privacy {config.privacy!r}: {needed}.")
    require_masked(config)
    known = load_members(paths.members)
    plan = _checked_plan(context, config, known, paths.plan_key)
    identity = load_identity(paths.identity, client, known)
    party = PrivateClient(client, run_parameters(plan.config, plan.run), identity, known)
    folder, ledger = session_folder(run_folder(state_folder(context), run, client), known), ledger_of(paths.identity)
    rule = "must be a file that this node can write: it was made with the identity"
    remedy = "If it is lost, make a new identity, and a new list of members and a new plan with it."
    require(os.access(ledger, os.R_OK | os.W_OK), "ledger", str(ledger), rule, remedy)
    return Member(party, folder, ledger)


def pooling_member_of(context: Context, config: ExperimentConfig, run: str) -> "PoolingMember":
    """The object that adds the filter of this client to a sum; only with privacy, and only without a noise budget."""
    client, paths = logical_client(context), _key_files(context)
    noise = config.protection.epsilon is not None
    rule = "has no sums of filters: clients send them in the clear, or with an epsilon not at all"
    require(config.privacy != "none" and not noise and paths is not None, "privacy", config.privacy, rule)
    from fedpohcs.deploy.keys import ledger_of, load_identity, load_members
    from fedpohcs.deploy.pooling import PoolingMember
    from fedpohcs.privacy.pooling import PoolingClient
    from fedpohcs.privacy.terms import run_parameters

    assert paths is not None
    known = load_members(paths.members)
    plan = _checked_plan(context, config, known, paths.plan_key)
    name = run_parameters(plan.config, plan.run).digest + run.encode()
    identity = load_identity(paths.identity, client, known)
    party = PoolingClient(client, name, identity, known, config.protection.min_cohort)
    return PoolingMember(party, run_folder(state_folder(context), run, client), ledger_of(paths.identity), plan.run)


def _checked_plan(context: Context, config: ExperimentConfig, members: Mapping[int, bytes], key: Path) -> "Plan":
    """The plan that the run brings, if the operator signed it for this config and these members."""
    from fedpohcs.deploy.keys import load_public
    from fedpohcs.privacy.errors import RefusedError
    from fedpohcs.privacy.plan import check_plan, read_plan

    try:
        plan = read_plan(str(context.run_config.get("plan", "")).encode(), load_public(key))
        check_plan(plan, config, members)
    except RefusedError as error:
        raise UserError(f"plan: {error}.") from error
    words, most = config.protection.num_words, int(context.node_config.get("max-sketch", MAX_SKETCH))
    remedy = f"If this device may send as much, start its node with: --max-sketch {words}"
    require(words <= most, "protection.sketch_size", words, f"is above the limit of this node (={most})", remedy)
    return plan


class KeyFiles(NamedTuple):
    """The files that a node needs for private selection."""

    identity: Path
    members: Path
    plan_key: Path  # public key of the operator


def _key_files(context: Context) -> KeyFiles | None:
    """The key files. Only nodes of a simulation take them from the run config."""
    given = context.node_config
    if "identity" in given:
        for name in ("members", "plan-key"):
            require(name in given, name, "none", "must be in the node config beside identity")
        return KeyFiles(*(Path(str(given[name])) for name in ("identity", "members", "plan-key")))
    folder = context.run_config.get("simulated-keys")
    if folder and _is_simulated(context):
        from fedpohcs.deploy.keys import Keys

        keys = Keys(Path(str(folder)))
        return KeyFiles(keys.identity(logical_client(context)), keys.members, keys.operator_public)
    return None
