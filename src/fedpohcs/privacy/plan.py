"""A plan: what the operator of a fleet allows a run to ask, signed with a key that the server does not have.

A client answers in private selection only as the plan says. The server passes the plan on and cannot change it. A plan
is a text: a title, the operator's Ed25519 signature, and a JSON object that begins in the third line. The signature
covers the bytes of that object as they stand, so no two programs have to agree on how JSON is written.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpohcs.core.config import ExperimentConfig, flat_dict, from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.reading import LARGEST_SETTINGS, parse_json_object
from fedpohcs.privacy.errors import RefusedError, demand

TITLE = b"fedpohcs plan 1"
LABEL = b"signature: "
DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Plan:
    """What a run may ask of its clients."""

    run: bytes  # 32 random bytes that name the run
    config: ExperimentConfig  # all settings: rounds, candidates, K, weights q_n, protection
    members: bytes  # SHA-256 of the list of members
    expires: int  # seconds since 1970, after which no client answers

    def text(self) -> bytes:
        """The JSON object that is signed."""
        values = {
            "run": self.run.hex(),
            "members": self.members.hex(),
            "expires": self.expires,
            "config": to_dict(self.config),
        }
        return json.dumps(values, indent=2).encode() + b"\n"


def new_plan(config: ExperimentConfig, members: Mapping[int, bytes], days: int) -> Plan:
    """A plan for a new run, which expires after so many days."""
    return Plan(os.urandom(32), config, members_digest(members), int(time.time()) + days * DAY)


def members_digest(members: Mapping[int, bytes]) -> bytes:
    """SHA-256 of all ids, counted from 0 (u32), and Ed25519 public keys, by ascending id."""
    return hashlib.sha256(b"".join(n.to_bytes(4, "little") + members[n] for n in sorted(members))).digest()


def sign_plan(plan: Plan, operator: Ed25519PrivateKey) -> bytes:
    """The plan as a text that clients accept."""
    text = plan.text()
    signature = operator.sign(TITLE + b"\n" + text).hex().encode()
    return b"\n".join((TITLE, LABEL + signature, text))


def read_plan(data: bytes, operator: bytes, now: float | None = None) -> Plan:
    """The plan in a text, if the operator with this public key signed it and it has not expired."""
    signature, text = _parts(data)
    try:
        Ed25519PublicKey.from_public_bytes(operator).verify(signature, TITLE + b"\n" + text)
    except InvalidSignature as error:
        raise RefusedError("the plan is not signed by the operator") from error
    plan = _plan(text)
    demand(plan.expires > (time.time() if now is None else now), "the plan has expired")
    return plan


def server_plan(data: bytes) -> Plan:
    """The plan in a text, whoever signed it: for the server, which cannot change it and need not trust it."""
    return _plan(_parts(data)[1])


def check_plan(plan: Plan, config: ExperimentConfig, members: Mapping[int, bytes]) -> None:
    """Refuse a run with other settings or members than its plan. It may end earlier."""
    there, here = flat_dict(plan.config), flat_dict(config)
    differing = [
        f"{key} ({there.get(key)!r} there, {here.get(key)!r} here)" for key in here if there.get(key) != here[key]
    ]
    if config.rounds <= plan.config.rounds:
        differing = [text for text in differing if not text.startswith("rounds (")]
    demand(not differing, f"the plan has other settings: {', '.join(differing[:5])}")
    demand(plan.members == members_digest(members), "the plan has another list of members")


def _parts(data: bytes) -> tuple[bytes, bytes]:
    """The signature, and the text that it covers."""
    demand(len(data) <= LARGEST_SETTINGS, f"the plan has {len(data)} bytes, more than {LARGEST_SETTINGS}")
    title, _, rest = data.partition(b"\n")
    label, _, text = rest.partition(b"\n")
    demand(title == TITLE and label.startswith(LABEL), "the plan does not begin with its title and signature")
    try:
        return bytes.fromhex(label.removeprefix(LABEL).decode("ascii")), text
    except ValueError as error:
        raise RefusedError("the plan is not signed by the operator") from error


def _plan(text: bytes) -> Plan:
    """The plan of a signed JSON object. The operator's program may be another version than this one."""
    try:
        values: dict[str, Any] = parse_json_object(text)
        run, members = (bytes.fromhex(values[name]) for name in ("run", "members"))
        plan = Plan(run, from_dict(values["config"]), members, values["expires"])
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise RefusedError(f"the plan cannot be read: {error}") from error
    demand(len(run) == len(members) == 32 and type(plan.expires) is int, "the plan has fields of the wrong size")
    return plan
