"""A node that loses the server tries again, less and less often, and ends if that takes too long."""

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedpohcs.core.errors import UserError
from fedpohcs.deploy import node_command
from fedpohcs.deploy.node_command import EXIT_LOST, SECONDS_STEADY, NodeOptions, Reconnection, run_node

REFUSED = 600  # a code of Flower: the SuperNode could not be activated


def test_a_node_that_never_had_a_connection_ends_at_once() -> None:
    with pytest.raises(UserError, match="does not know its key"):
        Reconnection(600).pause_after(REFUSED, lived=3, now=3)


def test_pauses_grow_up_to_a_limit_and_start_anew_after_a_steady_connection() -> None:
    """Until the server has noticed the loss it refuses the node, which must not end the tries."""
    reconnection = Reconnection(600)
    codes = [EXIT_LOST, *[REFUSED] * 6]
    assert [reconnection.pause_after(code, 2, now) for now, code in enumerate(codes)] == [1, 2, 4, 8, 10, 10, 10]
    assert reconnection.pause_after(EXIT_LOST, lived=2, now=90) == 10  # lost again at once
    assert reconnection.pause_after(EXIT_LOST, lived=SECONDS_STEADY + 1, now=5000) == 1


def test_a_node_gives_up_after_its_limit_and_says_how_long_it_tried() -> None:
    reconnection = Reconnection(60)
    reconnection.pause_after(EXIT_LOST, lived=900, now=1000)
    reconnection.pause_after(REFUSED, lived=3, now=1059)
    with pytest.raises(UserError, match="the server was lost 61 s ago"):
        reconnection.pause_after(REFUSED, lived=3, now=1061)


class FakeProcess(SimpleNamespace):
    """A process that has ended with a code, or runs while that is None."""

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None: ...

    def wait(self, timeout: float) -> None: ...


def test_a_lost_supernode_is_started_again_beside_the_same_client_app(
    no_sleep: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: Iterator[int] = iter([EXIT_LOST, EXIT_LOST, REFUSED, REFUSED])
    commands: list[list[str]] = []

    def start(command: list[str], environment: Any) -> FakeProcess:
        commands.append(command)
        return FakeProcess(returncode=None if "fedpohcs.deploy.resident" in command else next(codes))

    monkeypatch.setattr(node_command, "start_child", start)
    times = iter([0, 0, 0, 100, 100, 500, 500, 700])
    monkeypatch.setattr(node_command.time, "monotonic", lambda: next(times))
    with pytest.raises(UserError, match="the server was lost 700 s ago"):
        run_node(NodeOptions("localhost:1", 1, insecure=True))
    assert sum("fedpohcs.deploy.resident" in command for command in commands) == 1
    supernodes = [command for command in commands if "fedpohcs.deploy.supernode" in command]
    assert len(supernodes) == 4
    assert all(one == supernodes[0] for one in supernodes)  # the client app knows its port
    assert capsys.readouterr().err.count("the server was lost; the next try is in") == 3


@pytest.mark.parametrize("where", ["loop", "thread"])
def test_a_supernode_whose_loop_or_heartbeat_ends_does_not_stay_alive(where: str) -> None:
    """Flower's own program would: the thread of its runtime port goes on."""
    program = """
import sys, threading, time
from types import SimpleNamespace
from fedpohcs.deploy import supernode
def flower_supernode():
    threading.Thread(target=time.sleep, args=(60,)).start()
    if sys.argv[1] == "thread":
        threading.Thread(target=int, args=("no number",)).start()
        time.sleep(60)
supernode.flower = SimpleNamespace(flower_supernode=flower_supernode)
supernode.main()
"""
    done = subprocess.run([sys.executable, "-c", program, where], capture_output=True, timeout=50)
    assert done.returncode == EXIT_LOST
