"""Flower's SuperLink as a process that asks its callers to try again while its database is locked.

`python -m fedpohcs.deploy.superlink_process ...` takes the arguments of `flower-superlink`. SQLite waits 5 s for a lock
that another process holds, a backup for instance. Then Flower's own program answers with 500, or says that an object
could not be stored. Its callers take that for a defect: the run ends, and so does the process that starts runs, after
which no run starts any more. After 503 they try again, less and less often.
"""

import sqlite3
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from sqlalchemy import event
from sqlalchemy.engine import Engine, ExceptionContext
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from fedpohcs.deploy import flower_internals as flower

LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
PRIMARY_CODE = 0xFF  # bits of an error code of SQLite that name the error; the others give details

locks: ContextVar[list[BaseException]] = ContextVar("locks")
"""Errors of the present request that came from a locked database. Threads that work for it share the list."""


def note_lock(context: ExceptionContext) -> None:
    """Remember an error of the database if it is a lock: Flower does not report every one to the caller."""
    error, noted = context.original_exception, locks.get(None)
    if noted is not None and getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE in LOCKED:
        noted.append(error)


async def ask_again_if_locked(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """Answer a request; with 503 if the database was locked, since its transaction was rolled back."""
    noted: list[BaseException] = []
    locks.set(noted)
    response = await answer(request)
    return PlainTextResponse("database is locked; try again", 503) if noted else response


def main() -> None:
    """Run a SuperLink."""
    event.listen(Engine, "handle_error", note_lock)
    outermost = (Middleware(BaseHTTPMiddleware, dispatch=ask_again_if_locked),)
    flower.replace("get_middleware", lambda: outermost)
    flower.flower_superlink()


if __name__ == "__main__":
    main()
