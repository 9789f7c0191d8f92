"""Messages as bytes: little-endian, after a header of 16 bytes. Bytes that do not parse exactly are refused."""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from fedpohcs.privacy.errors import RefusedError, demand

VERSION = 3
HEADER = struct.Struct("<BBHI8s")  # version, kind, zero, client, tag
LARGEST_COUNT = 2**16  # most entries of a list; longer lists are refused before memory is allocated


class Kind(IntEnum):
    """Kinds of messages. Their numbers are part of the specification."""

    HELLO = 1
    ANNOUNCEMENT = 2
    ROSTER = 3
    SEALED = 4
    KEY = 5
    READY = 6
    INVITATION = 7
    UPLOAD = 8
    TOTAL = 9
    SCORE = 10
    LEVELS = 11
    BALLOT = 12
    CHOICE = 13


class Message(NamedTuple):
    """A parsed message."""

    kind: Kind
    client: int  # the sender of a message to the server, or the receiver of one from it
    tag: bytes  # the first 8 bytes of its context; zeros if there is no context yet
    body: bytes

    def to_bytes(self) -> bytes:
        return HEADER.pack(VERSION, self.kind, 0, self.client, self.tag) + self.body


def parse(data: bytes) -> Message:
    """The message in `data`."""
    demand(len(data) >= HEADER.size, "the message is too short for a header")
    version, kind, zero, client, tag = HEADER.unpack_from(data)
    demand(version == VERSION, f"the message has version {version}, not {VERSION}")
    demand(kind in Kind._value2member_map_ and not zero, f"the message is of unknown kind {kind}")
    return Message(Kind(kind), client, tag, data[HEADER.size :])


def expect(data: bytes, kind: Kind, client: int, tag: bytes = bytes(8)) -> bytes:
    """The body of a message that must be of this kind, party and context."""
    message = parse(data)
    found, wanted = message[:3], (kind, client, tag)
    demand(found == wanted, f"the message is {_name(found)}, not {_name(wanted)}")
    return message.body


def _name(header: Sequence[object]) -> str:
    kind, client, tag = header
    assert isinstance(kind, Kind) and isinstance(client, int) and isinstance(tag, bytes)
    return f"{kind.name} of client {client}, context {tag.hex()}"


def pack_rows(layout: str, rows: Iterable[Sequence[object]]) -> bytes:
    """A count and rows of one layout."""
    pack = struct.Struct("<" + layout).pack
    packed = [pack(*row) for row in rows]
    return struct.pack("<I", len(packed)) + b"".join(packed)


def unpack_rows(layout: str, data: bytes) -> tuple[list[tuple], bytes]:
    """The rows, and what follows them."""
    demand(len(data) >= 4, "the message ends within a count")
    (count,) = struct.unpack_from("<I", data)
    row = struct.Struct("<" + layout)
    demand(count <= LARGEST_COUNT and len(data) >= 4 + count * row.size, "the message ends within a list")
    end = 4 + count * row.size
    return list(row.iter_unpack(data[4:end])), data[end:]


def unpack(layout: str, data: bytes) -> tuple:
    """A body of one fixed layout."""
    try:
        return struct.unpack("<" + layout, data)
    except struct.error as error:
        raise RefusedError("the message has the wrong length") from error
