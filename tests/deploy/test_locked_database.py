"""Another process holds the lock of the SuperLink's database: callers are asked to try again, and a run goes on."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fedpohcs.cli.grid import read_progress
from fedpohcs.deploy.superlink_process import ask_again_if_locked, note_lock
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.runs.loading import load_run

from .serving import CONFIG, PATIENCE, honest_run, running_server

SECONDS_LOCKED = 15.0  # SQLite waits 5 s for a lock, and then fails
SECONDS_TO_RETURN = 120.0


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold the lock of all who write, as a backup does."""
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def wait_for(condition: Callable[[], bool], seconds: float, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "superlink.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE object (name TEXT UNIQUE)")
    return path


@pytest.fixture
def superlink(database: Path) -> Iterator[Starlette]:
    """Stores a name in a thread and hides every error of the database, as Flower does for objects."""
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 0})
    event.listen(engine, "handle_error", note_lock)

    def store(request: Request) -> PlainTextResponse:
        with suppress(DBAPIError), engine.begin() as connection:
            connection.execute(text("INSERT INTO object VALUES (:name)"), {"name": request.url.path})
        return PlainTextResponse("done")

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=ask_again_if_locked)]
    yield Starlette(routes=[Route("/{name}", store, methods=["POST"])], middleware=middleware)
    engine.dispose()


def status_of(superlink: Starlette, path: str) -> int:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(superlink), base_url="http://superlink") as client:
            return await client.post(path)

    return asyncio.run(post()).status_code


def test_a_caller_is_asked_to_try_again_while_the_database_is_locked(superlink: Starlette, database: Path) -> None:
    assert status_of(superlink, "/a") == 200
    with locked(database):
        assert status_of(superlink, "/b") == 503
    assert status_of(superlink, "/b") == 200
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT name FROM object").fetchall() == [("/a",), ("/b",)]


def test_other_errors_of_the_database_stay_as_they_are(superlink: Starlette) -> None:
    assert [status_of(superlink, "/a") for _ in range(2)] == [200, 200]


@pytest.mark.slow
def test_a_fleet_survives_a_locked_database(tmp_path: Path) -> None:
    """With 500 for an answer the run would end, and so would the process that starts runs."""
    out, log, config = tmp_path / "run", tmp_path / "run.log", replace(CONFIG, rounds=4)
    with running_server(tmp_path) as server, honest_run(server, out, config) as run:
        wait_for(lambda: read_progress(out).round >= 1, PATIENCE, log)
        with locked(tmp_path / "server" / "superlink.db"):
            time.sleep(SECONDS_LOCKED)
            assert read_progress(out).round < config.rounds
        wait_for(lambda: read_progress(out).round >= config.rounds, SECONDS_TO_RETURN, log)
        assert run.wait(PATIENCE) == 0, log.read_text()
        said = (tmp_path / "server.log").read_text()
        refused = [line for line in said.splitlines() if "database is locked" in line]
        assert any("/v1/runtime/" in line for line in refused), said
        assert any("/v1/fleet/" in line for line in refused), said
        for client in (0, 1):
            assert "Connection successful after" in (tmp_path / f"node-{client}.log").read_text()
    assert load_run(out).complete
    run_experiment(replace(config, executor="one-by-one"), tmp_path / "in-process")
    for table in ("rounds.csv", "clients.csv"):  # no reply was lost, none was counted twice
        assert (out / table).read_bytes() == (tmp_path / "in-process" / table).read_bytes()
