"""Pages that change, served on this machine alone, such as the report of runs that still train."""

import hashlib
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, cast

from fedpohcs.analysis.groups import group_runs
from fedpohcs.analysis.report import render_page, report_data, to_json
from fedpohcs.core.errors import UserError
from fedpohcs.runs.loading import Run, find_runs, load_run

LOOPBACK = "127.0.0.1"


class Page(Protocol):
    """A page that changes."""

    def page(self) -> str:
        """The page with the present data."""
        ...

    def data(self) -> str:
        """The present data as JSON."""
        ...


class LiveReport:
    """Reads run folders again when their files have changed, and only those that have."""

    def __init__(self, paths: Sequence[Path], title: str, thresholds: Sequence[float] | None = None) -> None:
        """Check the folders; raises `UserError` for a folder that neither is nor contains a run."""
        self.paths, self.title, self.thresholds = paths, title, thresholds
        self.runs: dict[Path, tuple[object, Run]] = {}
        self.lock = threading.Lock()
        self.seen: object = None
        self.document = self._read(strict=True)

    def page(self) -> str:
        """The page with the present data."""
        with self.lock:
            self.document = self._read()
            return render_page(self.document, self.title)

    def data(self) -> str:
        """The present JSON document of the page."""
        with self.lock:
            self.document = self._read()
            return to_json(self.document)

    def _read(self, strict: bool = False) -> dict[str, Any]:
        try:
            folders = find_runs(self.paths)
            stamps = {folder: _stamp(folder) for folder in folders}
            if stamps == self.seen:
                return self.document
            for folder, stamp in stamps.items():
                if _has_rounds(folder) and self.runs.get(folder, (None,))[0] != stamp:
                    self.runs[folder] = (stamp, load_run(folder))
            runs = [self.runs[folder][1] for folder in folders if folder in self.runs and _has_rounds(folder)]
            document = report_data(group_runs(runs), self.thresholds, live=True)
        except (UserError, OSError):
            if strict:
                raise
            return self.document  # a folder is being replaced right now; the next request reads it
        self.seen = stamps
        return document


def _stamp(folder: Path) -> object:
    """A value that changes when a round is finished or the policy is stored."""
    files = (folder / name for name in ("config.json", "rounds.csv", "policy.npz"))
    return [(stat.st_size, stat.st_mtime_ns) for stat in (file.stat() for file in files if file.exists())]


def _has_rounds(folder: Path) -> bool:
    with (folder / "rounds.csv").open("rb") as file:
        return file.read().count(b"\n") > 1


class _Handler(BaseHTTPRequestHandler):
    """Serves the page and its data; every other address is not found."""

    def do_GET(self) -> None:
        """Send the page, or its data if they have changed since the last request."""
        if self.headers.get("Host", "").partition(":")[0] not in (LOOPBACK, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)  # a request under another host name, as in DNS rebinding
        elif self.path == "/":
            self._answer("text/html", self._shown.page())
        elif self.path == "/data.json":
            self._answer("application/json", self._shown.data())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    @property
    def _shown(self) -> Page:
        return cast(PageServer, self.server).shown

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode("utf-8")
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        known = self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK)
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        if not known:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not known:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""


class PageServer(ThreadingHTTPServer):
    """HTTP server of one page; a context manager."""

    daemon_threads = True
    shown: Page


def serve(shown: Page, port: int = 0) -> "PageServer":
    """A server of the page that only this machine can reach; port 0 stands for any free port."""
    try:
        server = PageServer((LOOPBACK, port), _Handler)
    except OSError as error:
        raise UserError(f"port (={port}) cannot be used: {error.strerror}. Name another, or 0 for any.") from error
    server.shown = shown
    return server
