"""The port that devices reach: what it forwards, what it refuses, and what a stranger can occupy."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedpohcs.deploy import front
from fedpohcs.deploy.flower_internals import FLEET_CALLS, REGISTRATION_CALLS
from fedpohcs.deploy.front import Front, FrontOptions, make_server
from fedpohcs.deploy.programs import free_port

PULL = "/v1/fleet/pull-messages"


class SuperLinkStub:
    """Answers in place of a SuperLink, and keeps what it was asked."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return httpx.Response(self.status, content=b"answer", headers={"flwr-note": "kept", "connection": "close"})


def ask(superlink: Callable[[httpx.Request], httpx.Response], path: str, method: str = "POST", **rest: Any) -> Any:
    async def call() -> httpx.Response:
        behind = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="http://superlink")
        app = httpx.ASGITransport(Front(behind, FLEET_CALLS, max_request=100))
        async with httpx.AsyncClient(transport=app, base_url="http://front") as client:
            return await client.request(method, path, **rest)

    return asyncio.run(call())


def test_every_call_of_flower_is_known_and_only_those_of_the_fleet_are_forwarded() -> None:
    fleet = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    assert fleet == FLEET_CALLS | REGISTRATION_CALLS
    assert FrontOptions(1, 2).calls == FLEET_CALLS


def test_a_call_passes_with_its_body_and_signature_and_so_does_the_answer() -> None:
    superlink = SuperLinkStub()
    sent = {"flwr-signature": "signed", "x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1"}
    reply = ask(superlink, PULL, content=b"question", headers=sent)
    (asked,) = superlink.asked
    assert (asked.url.path, asked.content, asked.headers["flwr-signature"]) == (PULL, b"question", "signed")
    assert not {"x-forwarded-for", "forwarded"} & set(asked.headers)
    assert (reply.status_code, reply.content, reply.headers["flwr-note"]) == (200, b"answer", "kept")
    assert "connection" not in reply.headers


REFUSED = sorted({path for _, path in PROTOBUF_REQUEST_TYPES} - FLEET_CALLS)


@pytest.mark.parametrize(
    "path",
    [
        *REFUSED,
        *("/", "/docs", "/openapi.json", "/health", "/v1/fleet/", f"{PULL}/", "/V1/FLEET/PULL-MESSAGES"),
        *("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/pull-messages%00"),
        *("//v1/control/start-run", "/v1/fleet/pull-messages/../../control/start-run"),
    ],
)
def test_every_other_path_is_refused_and_does_not_reach_the_superlink(path: str) -> None:
    superlink = SuperLinkStub()
    assert ask(superlink, path).status_code == 403
    assert not superlink.asked


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "DELETE"])
def test_every_other_method_is_refused(method: str) -> None:
    superlink = SuperLinkStub()
    assert ask(superlink, PULL, method).status_code == 403
    assert not superlink.asked


def test_a_query_is_not_forwarded() -> None:
    superlink = SuperLinkStub()
    assert ask(superlink, f"{PULL}?path=/v1/control/start-run").status_code == 200
    assert superlink.asked[0].url.query == b""


async def in_pieces() -> AsyncIterator[bytes]:
    for _ in range(11):
        yield b"ten bytes."


@pytest.mark.parametrize("content", [b"x" * 101, in_pieces()], ids=["announced", "in pieces"])
def test_a_long_request_is_refused_whether_it_says_so_or_not(content: Any) -> None:
    superlink = SuperLinkStub()
    assert ask(superlink, PULL, content=content).status_code == 413
    assert not superlink.asked


@pytest.mark.parametrize(("status", "expected"), [(500, 503), (503, 503), (401, 401), (404, 404)])
def test_an_error_inside_the_superlink_becomes_one_after_which_nodes_try_again(status: int, expected: int) -> None:
    assert ask(SuperLinkStub(status), PULL).status_code == expected


def test_a_superlink_that_is_down_is_answered_for_with_a_request_to_try_again() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    assert ask(fail, PULL).status_code == 503


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A front with room for three connections, in a thread."""
    monkeypatch.setattr(front, "SECONDS_IDLE", 0.3)
    options = FrontOptions(port=free_port(), superlink_port=free_port(), max_connections=3)
    server = make_server(options)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield options.port
    stop(server, thread)


def stop(server: uvicorn.Server, thread: threading.Thread) -> None:
    server.should_exit = True
    thread.join()


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(b"P")  # the beginning of a request whose rest never comes
    return connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_connection_on_which_no_request_arrives_is_closed(port: int) -> None:
    with connect(port) as connection:
        start = time.monotonic()
        assert is_closed(connection)
        assert time.monotonic() - start < 5


def test_connections_above_the_limit_are_closed_and_room_comes_back(port: int) -> None:
    with ExitStack() as stack:
        first = [stack.enter_context(connect(port)) for _ in range(3)]
        assert is_closed(stack.enter_context(connect(port)))
        assert all(is_closed(one) for one in first)  # after a while, because they ask nothing
    assert httpx.post(f"http://127.0.0.1:{port}/v1/control/start-run").status_code == 403
