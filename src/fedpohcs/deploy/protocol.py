"""What a message says besides its arrays: who asks whom for what, and by which rules both were built."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedpohcs.core.config import ExperimentConfig, from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.expected import BadReplyError
from fedpohcs.core.version import __version__
from fedpohcs.runs.checkpoints import FREE_KEYS
from fedpohcs.server.replies import Stamp

PROTOCOL = 3
"""Rises when older clients and newer servers would misunderstand each other."""

HELLO, MEASURE, PRIVATE, TRAIN, EVALUATE = "hello", "measure", "private", "train", "evaluate"
MESSAGE_TYPES = {HELLO: "query.hello", MEASURE: "query.measure", PRIVATE: "query.private"}
MESSAGE_TYPES |= {TRAIN: "train", EVALUATE: "evaluate"}


class Rules(NamedTuple):
    """What both sides must share to mean the same."""

    protocol: int
    config: str  # hash
    version: str  # of the package, to be named in a complaint; it may differ


class Request(NamedTuple):
    """A question to one client."""

    phase: str
    round: int = 0
    attempt: int = 0
    run: str = ""  # names the state that the client keeps; a run that goes on keeps its name
    measures: frozenset[str] = frozenset()  # what to measure, in `evaluate`: after playing
    oldest_round: int = 0  # the server may yet go back to it
    message: bytes = b""  # of private selection, to be answered by one; it travels beside the rest

    def stamp(self, client: int) -> Stamp:
        """What the answer must bear."""
        return Stamp(client, self.phase, self.round, self.attempt)


def rules_of(config: ExperimentConfig) -> Rules:
    """Those of this program and config. How many rounds are wanted is no client's business."""
    values = {key: value for key, value in to_dict(config).items() if key not in FREE_KEYS}
    text = json.dumps(values, sort_keys=True)
    return Rules(PROTOCOL, hashlib.sha256(text.encode()).hexdigest()[:16], __version__)


def config_text(config: ExperimentConfig) -> str:
    """The config as one line."""
    return json.dumps(to_dict(config))


def config_from_text(text: str) -> ExperimentConfig:
    """The config back; what this version does not know is refused."""
    return from_dict(json.loads(text))


def to_values(request: Request, rules: Rules) -> dict[str, Any]:
    """A question as Flower's config values."""
    values = request._asdict() | {"measures": ",".join(sorted(request.measures))}
    del values["message"]
    return values | {f"rules.{name}": value for name, value in rules._asdict().items()}


def request_from(values: Mapping[str, Any], own: Rules, message: bytes = b"") -> Request:
    """The question, unless its sender goes by other rules."""
    check_rules(values, own)
    fields: dict[str, Any] = {name: values[name] for name in Request._fields if name != "message"}
    fields["message"] = message
    fields["measures"] = frozenset(filter(None, fields["measures"].split(",")))
    return Request(**fields)


def answer_values(stamp: Stamp, rules: Rules) -> dict[str, Any]:
    """What an answer says besides its arrays."""
    return stamp._asdict() | {f"rules.{name}": value for name, value in rules._asdict().items()}


def stamp_from(values: Mapping[str, Any], own: Rules) -> Stamp:
    """Which question was answered, unless by other rules."""
    check_rules(values, own)
    try:
        stamp = Stamp(**{name: values[name] for name in Stamp._fields})
    except KeyError as error:
        raise BadReplyError("stamp", f"does not say its {error.args[0]}") from error
    if not all(isinstance(number, int) for number in (stamp.client, stamp.round, stamp.attempt)):
        raise BadReplyError("stamp", f"says {tuple(stamp)}, which are not all whole numbers")
    return stamp


def check_rules(values: Mapping[str, Any], own: Rules) -> None:
    """Refuse the other side if its rules are not ours, and name both."""
    other = Rules(*(values.get(f"rules.{name}") for name in Rules._fields))  # pyright: ignore[reportArgumentType]
    if other[:2] != own[:2]:
        raise UserError(
            f"server and client do not match: protocol {other.protocol}, config {other.config}, fedpohcs "
            f"{other.version} there; protocol {own.protocol}, config {own.config}, fedpohcs {own.version} here. "
            "Install the same version of fedpohcs on both."
        )
