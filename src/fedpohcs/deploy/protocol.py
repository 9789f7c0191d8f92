"""The config values of messages: the request, the client, and the rules that both sides must share."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedpohcs.core.array_rules import BadReplyError
from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.version import __version__
from fedpohcs.runs.checkpoints import FREE_KEYS
from fedpohcs.server.replies import Stamp

PROTOCOL = 5
"""Version of the protocol. Increase it when older clients and newer servers would misunderstand each other."""

HELLO, MEASURE, PRIVATE, TRAIN, EVALUATE, POOL = "hello", "measure", "private", "train", "evaluate", "pool"
SIMULATE = "simulate"  # training for the server, of which the client keeps nothing
MESSAGE_TYPES = {HELLO: "query.hello", MEASURE: "query.measure", PRIVATE: "query.private", POOL: "query.pool"}
MESSAGE_TYPES |= {TRAIN: "train", EVALUATE: "evaluate", SIMULATE: "query.simulate"}
SPACES = "spaces"  # key of a reply to HELLO: sizes of the environment, where the server cannot know them


class Rules(NamedTuple):
    """Rules that server and client must share."""

    protocol: int
    config: str  # hash
    version: str  # of the package, for error messages; it may differ


class Request(NamedTuple):
    """A request to one client."""

    phase: str
    round: int = 0
    attempt: int = 0
    run: str = ""  # name of the client's stored state; a resumed run keeps its name
    measures: frozenset[str] = frozenset()  # metrics to measure; in `evaluate` after playing
    oldest_round: int = 0  # oldest round to which the server may return
    draw: int = 0  # number of a simulation within its round; each has random draws of its own
    message: bytes = b""  # of private selection; its reply is a message as well

    def stamp(self, client: int) -> Stamp:
        """The stamp that the reply must have."""
        return Stamp(client, self.phase, self.round, self.attempt)


def rules_of(config: ExperimentConfig) -> Rules:
    """The rules of this program and config. The number of rounds is left out, because clients do not depend on it."""
    values = {key: value for key, value in to_dict(config).items() if key not in FREE_KEYS}
    text = json.dumps(values, sort_keys=True)
    return Rules(PROTOCOL, hashlib.sha256(text.encode()).hexdigest()[:16], __version__)


def config_text(config: ExperimentConfig) -> str:
    """The config as one line."""
    return json.dumps(to_dict(config))


def config_from_text(text: str) -> ExperimentConfig:
    """Read the config back; unknown keys are refused."""
    return from_dict(json.loads(text))


def to_values(request: Request, rules: Rules) -> dict[str, Any]:
    """A request as Flower's config values."""
    values = request._asdict() | {"measures": ",".join(sorted(request.measures))}
    del values["message"]
    return values | {f"rules.{name}": value for name, value in rules._asdict().items()}


def request_from(values: Mapping[str, Any], own: Rules, message: bytes = b"") -> Request:
    """Read a request; refuse a sender with other rules."""
    check_rules(values, own)
    fields: dict[str, Any] = {name: values[name] for name in Request._fields if name != "message"}
    fields["message"] = message
    fields["measures"] = frozenset(filter(None, fields["measures"].split(",")))
    return Request(**fields)


def answer_values(stamp: Stamp, rules: Rules) -> dict[str, Any]:
    """The config values of a reply."""
    return stamp._asdict() | {f"rules.{name}": value for name, value in rules._asdict().items()}


def stamp_from(values: Mapping[str, Any], own: Rules) -> Stamp:
    """The stamp of a reply; a sender with other rules is refused."""
    check_rules(values, own)
    try:
        stamp = Stamp(**{name: values[name] for name in Stamp._fields})
    except KeyError as error:
        raise BadReplyError("stamp", f"does not say its {error.args[0]}") from error
    if not all(isinstance(number, int) for number in (stamp.client, stamp.round, stamp.attempt)):
        raise BadReplyError("stamp", f"says {tuple(stamp)}, which are not all whole numbers")
    return stamp


def check_rules(values: Mapping[str, Any], own: Rules) -> None:
    """Refuse the other side if its rules differ from ours; the message names both."""
    other = Rules(*(values.get(f"rules.{name}") for name in Rules._fields))  # pyright: ignore[reportArgumentType]
    if other[:2] != own[:2]:
        raise UserError(
            f"server and client do not match: protocol {other.protocol}, config {other.config}, fedpohcs "
            f"{other.version} there; protocol {own.protocol}, config {own.config}, fedpohcs {own.version} here. "
            "Install the same version of fedpohcs on both."
        )
