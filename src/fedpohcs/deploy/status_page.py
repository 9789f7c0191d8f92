"""The page of a server: which devices are online, when each was last seen, and what it did in the latest run."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from fedpohcs.analysis.report import page_style
from fedpohcs.core.errors import UserError
from fedpohcs.core.reading import parse_json_object

SECONDS_PER_LIST = 10.0  # a list of nodes takes a process, so it is not made for every request
SECONDS_PER_REFRESH = 10
HEADINGS = ("client", "node", "online", "last seen", "version", "rounds trained", "bad replies")
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta http-equiv="refresh" content="{seconds}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header><div><h1>{title}</h1><p>{summary}</p></div></header>
<main>
<section><h2>Devices</h2><div class="scroll">{devices}</div></section>
<section><h2>Latest run</h2><div class="scroll">{run}</div></section>
</main>
</body>
</html>
"""

Nodes = list[dict[str, Any]]


class FleetPage:
    """Joins the SuperLink's list of nodes with the status that the latest run wrote."""

    def __init__(self, list_nodes: Callable[[], Nodes], status: Path) -> None:
        """Make a page.

        Args:
            list_nodes: gives the nodes that the SuperLink knows, as `flwr supernode list --format json` does.
            status: file that runs write; see `FleetStatus`.
        """
        self._list_nodes, self._status = list_nodes, status
        self._lock = threading.Lock()
        self._nodes: Nodes = []
        self._listed_at = -SECONDS_PER_LIST
        self._problem = ""

    def page(self) -> str:
        """The page with the present state."""
        with self._lock:
            run = self._read_status()
            rows = self._rows(run)
        online = sum(row["online"] for row in rows)
        summary = f"{online} of {len(rows)} devices online" + (f"; {self._problem}" if self._problem else "")
        return PAGE.format(
            seconds=SECONDS_PER_REFRESH,
            style=page_style(),
            title="Fleet",
            summary=escape(summary),
            devices=_table(HEADINGS, [_cells(row) for row in rows]) + _note(rows),
            run=_table((), _run_cells(run)) if run else "<p>No run yet.</p>",
        )

    def data(self) -> str:
        """The same as JSON."""
        with self._lock:
            run = self._read_status()
            return json.dumps({"devices": self._rows(run), "run": run, "problem": self._problem})

    def _read_status(self) -> dict[str, Any]:
        try:
            return parse_json_object(self._status.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not written yet
            return {}

    def _rows(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        """Every node that the SuperLink knows, and every client of the run, each once."""
        self._renew_nodes()
        clients = {one.get("node"): one for one in _dicts(run.get("clients"))}
        rows = [_row(node, clients.pop(node.get("node-id"), {})) for node in self._nodes]
        rows += [_row({}, one) for one in clients.values()]
        return sorted(rows, key=lambda row: (row["client"] is None, row["client"] or 0, str(row["node"])))

    def _renew_nodes(self) -> None:
        now = time.monotonic()
        if now - self._listed_at < SECONDS_PER_LIST:
            return
        self._listed_at = now
        try:
            self._nodes, self._problem = _dicts(self._list_nodes()), ""
        except UserError as error:
            self._problem = str(error)


def _row(node: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    online = node.get("status") == "online"
    left = _timestamp(node.get("offline-at"))
    seen = [moment for moment in (left, client.get("last_answer")) if isinstance(moment, int | float)]
    number = client.get("client")
    return {
        "client": number if isinstance(number, int) else None,
        "node": node.get("node-id", client.get("node")),
        "online": online,
        "last_seen": time.time() if online else max(seen, default=None),
        **{name: client.get(name) for name in ("version", "rounds_trained", "bad_replies")},
    }


def _dicts(given: Any) -> list[dict[str, Any]]:
    """The entries of what a file or a program said that can be used."""
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def _cells(row: dict[str, Any]) -> list[str]:
    online = "yes" if row["online"] else "no"
    rest = [row[name] for name in ("version", "rounds_trained", "bad_replies")]
    return [_text(cell) for cell in (row["client"], row["node"], online, _moment(row["last_seen"]), *rest)]


def _run_cells(run: dict[str, Any]) -> list[list[str]]:
    rows = [[name, _text(run.get(name))] for name in ("folder", "world", "selector")]
    rows.append(["round", f"{_text(run.get('round'))} of {_text(run.get('rounds'))}"])
    rows.append(["written", _moment(run.get("written"))])
    refused = run.get("refused")
    return rows + [
        [f"refused: node {node}", _text(why)] for node, why in (refused if isinstance(refused, dict) else {}).items()
    ]


def _note(rows: list[dict[str, Any]]) -> str:
    """What a dash means, where there is one."""
    if all(row["client"] is not None for row in rows):
        return ""
    return "<p>Client, version and counts of a device are known when the latest run has reached it.</p>"


def _text(cell: Any) -> str:
    return "-" if cell is None else str(cell)


def _moment(seconds: Any) -> str:
    """A moment in UTC, to the second."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (TypeError, ValueError, OverflowError, OSError):  # None, or no moment at all
        return "never"


def _timestamp(text: Any) -> float | None:
    """Seconds of a moment as `flwr` writes it, or None."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; whatever a device or a file said is text, not markup."""
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
    head = f"<thead><tr>{cells}</tr></thead>" if headings else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{head}<tbody>{body}</tbody></table>"
