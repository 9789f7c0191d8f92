"""`fedpohcs flower plan`: the operator's signature under what a private run may ask."""

from pathlib import Path

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.deploy.keys import load_members, load_private
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.plan import check_plan, new_plan, server_plan, sign_plan


def signed_plan(config: ExperimentConfig, members: Path, operator: Path, days: int) -> bytes:
    """A new plan for this config and these members, signed with the operator's key."""
    require(days > 0, "days", days, "must be at least 1")
    known, n = load_members(members), config.federation.num_clients
    require(known.keys() >= set(range(n)), "members", str(members), f"must list the clients 0 to {n - 1}")
    return sign_plan(new_plan(config, known, days), load_private("operator", operator))


def plan_text(path: Path, config: ExperimentConfig, members: Path) -> str:
    """The text of a plan for the settings of a run, after a check against them."""
    try:
        data = path.read_bytes()
        check_plan(server_plan(data), config, load_members(members))
    except OSError as error:
        raise UserError(f"plan (={str(path)!r}) cannot be read: {error.strerror}.") from error
    except RefusedError as error:
        raise UserError(f"plan (={str(path)!r}): {error}.") from error
    return data.decode()
