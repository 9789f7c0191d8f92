"""Kills a node at every system call that writes, in turn, and asks it another question about the same table.

`python kills.py FOLDER KILLS` prints what happened. A child process answers as a node does; after its n-th call of
`os.write`, `os.fsync`, `os.replace` or of a file's `write` it is killed with -9. Then a node that is started anew gets
the same question, which it may answer, and questions with another policy or cohort, which it may not if a reply has
left before. A reply leaves when the node has returned it.
"""

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedpohcs.deploy.member import Member
from fedpohcs.privacy.client import PrivateClient
from fedpohcs.privacy.messages import Kind, parse
from privacy.federation import IDS, POLICY, Federation, make_table


class Killer:
    """Lets so many writes pass, and kills this process after the last."""

    def __init__(self, writes: int) -> None:
        self.left = writes
        for name in ("write", "fsync", "replace", "ftruncate"):
            setattr(os, name, self.counted(getattr(os, name)))

    def counted(self, call):
        def counting(*arguments, **options):
            result = call(*arguments, **options)
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counting


class Node:
    """Client 1 of a federation, as a node answers for it: from its files alone."""

    def __init__(self, federation: Federation, folder: Path) -> None:
        self.federation, self.folder = federation, folder
        (folder / "identity").mkdir(parents=True, exist_ok=True)
        self.ledger = folder / "identity" / "identity.ledger"
        if not self.ledger.exists():
            self.ledger.touch(0o600)
        self.identity = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)

    def answer(self, message: bytes, policy: bytes = b"") -> bytes:
        party = PrivateClient(0, self.federation.parameters, self.identity, self.federation.members)
        table = make_table(0) if policy else None
        return Member(party, self.folder, self.ledger).answer(message, policy, table)


def in_child(work) -> list[bytes]:
    """The replies that left a child process before its end."""
    reading, writing = os.pipe()
    send = os.write
    if (pid := os.fork()) == 0:
        try:
            for reply in work():
                send(writing, len(reply).to_bytes(4, "little") + reply)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = io.BytesIO(file.read())
    os.waitpid(pid, 0)
    replies = []
    while size := data.read(4):
        replies.append(data.read(int.from_bytes(size, "little")))
    return replies


def main(folder: Path, kills: int) -> None:
    found = {"kills": 0, "replies": 0, "second answers": 0, "places": 0}
    writes = 0
    while found["kills"] < kills:
        writes += 1
        federation = Federation(4, IDS)
        node = Node(federation, folder / str(found["kills"]))
        federation.clients[0] = node  # type: ignore[assignment]
        federation.start()
        invitation = federation.invitation(0)

        def killed(node: Node = node, invitation: bytes = invitation, writes: int = writes):
            Killer(writes)
            yield node.answer(invitation, POLICY)
            yield node.answer(invitation, POLICY)  # a server that asks again

        replies = in_child(killed)
        if len(replies) == 2:  # it has not made so many writes
            writes = 0
            continue
        found["kills"] += 1
        found["places"] = max(found["places"], writes)
        found["replies"] += len(replies)
        later = Node(federation, node.folder)
        federation.clients[0] = later  # type: ignore[assignment]
        asked, first = (POLICY, None), None
        if any(replies):
            first = asked
        for session in range(2):
            for question in ((bytes(32), None), (POLICY, (0, 1, 2)), asked):
                reply = later.answer(federation.invitation(0, cohort=question[1]), question[0])
                if reply and parse(reply).kind == Kind.UPLOAD:
                    # The same question may be answered again, but not in the old session, with masks used before.
                    found["second answers"] += first is not None and (question != first or session == 0)
                    first = question
            with contextlib.suppress(Exception):
                federation.start()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
