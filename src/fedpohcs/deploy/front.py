"""The one port of a server that devices reach. It forwards the calls of Flower's fleet and refuses all others.

Flower's SuperLink answers devices, operators and the processes of runs on one port, and asks operators for no
credentials: whoever reaches that port can start code on the server. So the SuperLink listens on loopback only, and this
front stands before it (with uvicorn, which Flower's own servers use). It hands on the signatures by which the SuperLink
knows its nodes, and limits what a stranger can occupy: the size of a request, its time, the number of connections.

`python -m fedpohcs.deploy.front OPTIONS` takes its options as JSON.
"""

import asyncio
import json
import logging
import ssl
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedpohcs.deploy.flower_internals import FLEET_CALLS, REGISTRATION_CALLS
from fedpohcs.deploy.programs import LOOPBACK

MIB = 2**20
SMALL_REQUEST = 64 * 2**10  # bytes
LARGE_AT_ONCE = 16  # larger requests that are in memory at the same time
SECONDS_PER_REQUEST = 60.0  # to arrive
SECONDS_PER_ANSWER = 60.0  # of the SuperLink
SECONDS_IDLE = 20.0  # until a connection that asks nothing is closed
KNOWN_REFUSED = 1000  # addresses that are remembered, so that a stranger cannot fill the log
HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    *("upgrade", "host", "content-length", "content-encoding", "accept-encoding", "forwarded"),
}
"""Headers that concern one connection, not the call."""

log = logging.getLogger("fedpohcs")


@dataclass(frozen=True)
class FrontOptions:
    """What a front listens to, and what it allows."""

    port: int
    superlink_port: int
    host: str = LOOPBACK
    certificate: str | None = None
    """Certificate of the server. None: plain text."""
    key: str | None = None
    superlink_authority: str | None = None
    """Certificate of the authority of the SuperLink on loopback. None: plain text."""
    registration: bool = False
    """Let nodes register themselves: only for test fleets without keys."""
    max_request: int = 16 * MIB
    """Bytes of a request. Flower sends arrays in pieces of 5 MiB."""
    max_connections: int = 1000

    @property
    def calls(self) -> frozenset[str]:
        """Paths of the calls that are forwarded."""
        return FLEET_CALLS | (REGISTRATION_CALLS if self.registration else frozenset())

    def command(self) -> list[str]:
        """The command that starts this front."""
        return [sys.executable, "-m", __name__, json.dumps(asdict(self))]


class Front:
    """An ASGI application that forwards calls to a SuperLink."""

    def __init__(self, superlink: httpx.AsyncClient, calls: Collection[str], max_request: int) -> None:
        self.superlink = superlink
        self.calls = calls
        self.max_request = max_request
        self.room = asyncio.Semaphore(LARGE_AT_ONCE)
        self.refused: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        try:
            response = await self._answer(Request(scope, receive))
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.scope["path"]
        if request.method != "POST" or path not in self.calls:
            self._note(request)
            return PlainTextResponse("this port is for the calls of devices only", 403)
        try:
            size = int(request.headers.get("content-length", self.max_request))
        except ValueError:
            return PlainTextResponse("content-length must be a number", 400)
        if size > self.max_request:
            return PlainTextResponse(f"a request must not exceed {self.max_request} bytes", 413)
        if size <= SMALL_REQUEST:
            return await self._forward(path, request)
        if self.room.locked():
            return PlainTextResponse("too many large requests; try again", 503)
        async with self.room:
            return await self._forward(path, request)

    async def _forward(self, path: str, request: Request) -> Response:
        try:
            async with asyncio.timeout(SECONDS_PER_REQUEST):
                body = await self._body(request)
        except TimeoutError:
            return PlainTextResponse("the request took too long", 408, {"connection": "close"})
        if body is None:
            return PlainTextResponse(
                f"a request must not exceed {self.max_request} bytes", 413, {"connection": "close"}
            )
        try:
            reply = await self.superlink.post(path, content=body, headers=_passed(request.headers.items()))
        except httpx.HTTPError as error:
            log.warning("the SuperLink did not answer: %s", error or type(error).__name__)
            return PlainTextResponse("the SuperLink did not answer; try again", 503)
        # A SuperNode that is answered with 500 stops asking for ever; with 503 it tries again, less and less often.
        status = 503 if reply.status_code == 500 else reply.status_code
        return Response(reply.content, status, dict(_passed(reply.headers.items())))

    async def _body(self, request: Request) -> bytes | None:
        """The body; None if it is too long, whatever its header says."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_request:
                return None
        return bytes(body)

    def _note(self, request: Request) -> None:
        address = request.client.host if request.client else "?"
        if address not in self.refused and len(self.refused) < KNOWN_REFUSED:
            self.refused.add(address)
            log.warning("%s asked for %r, which is not for devices: refused", address, request.scope["path"][:100])


def _passed(headers: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(k, v) for k, v in headers if k.lower() not in HOP_BY_HOP and not k.lower().startswith("x-forwarded-")]


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 that refuses connections above the limit, and closes those on which no request arrives."""

    watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept or close a new connection."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.abort()
        else:
            self.watch = self.loop.call_later(SECONDS_IDLE, self._close_if_idle, None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self.watch is not None:
            self.watch.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self, last: Any) -> None:
        """Close the connection if no request has begun since the `last` one, and that is answered."""
        if self.cycle is last and (last is None or last.response_complete):
            self.transport.close()
        else:
            self.watch = self.loop.call_later(SECONDS_IDLE, self._close_if_idle, self.cycle)


def make_server(options: FrontOptions) -> uvicorn.Server:
    """The server of a front."""
    scheme, trust = "http", ssl.create_default_context()
    if options.superlink_authority is not None:
        scheme, trust = "https", ssl.create_default_context(cafile=options.superlink_authority)
    address = f"{scheme}://{LOOPBACK}:{options.superlink_port}"
    superlink = httpx.AsyncClient(base_url=address, verify=trust, timeout=SECONDS_PER_ANSWER, trust_env=False)
    config = uvicorn.Config(
        Front(superlink, options.calls, options.max_request),
        host=options.host,
        port=options.port,
        http=ImpatientProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=options.max_connections + 1,
        timeout_graceful_shutdown=5,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
    )
    return uvicorn.Server(config)


def main(text: str) -> None:
    """Serve until stopped."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO)
    options = FrontOptions(**json.loads(text))
    log.info("devices reach this server at %s:%d", options.host, options.port)
    make_server(options).run()


if __name__ == "__main__":
    main(sys.argv[1])
