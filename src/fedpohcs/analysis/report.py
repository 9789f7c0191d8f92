"""One self-contained HTML page about the results of a set of runs. It needs no server and no network.

Python gathers the numbers into one JSON document, in which long arrays are base64; the scripts in `page/` draw them.
`fedpohcs watch` serves the same page and the same document.
"""

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedpohcs.analysis.communication import traffic
from fedpohcs.analysis.gains import gains_over_local
from fedpohcs.analysis.groups import Group, averaged_clients, by_level
from fedpohcs.analysis.statistics import bootstrap_limits
from fedpohcs.analysis.summary import summarise_level
from fedpohcs.analysis.tables import Clocks, clocks_of, make_scope, statistics_tables, summarise
from fedpohcs.core.config import MOST_LISTED, to_dict
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.version import __version__
from fedpohcs.runs.loading import LAST_ROUNDS, Run

SCRIPTS = ("charts.js", "overview.js", "inside.js", "report.js")  # in this order; the last one starts the page
MIRRORED_METRICS = {"similarity"}  # it is minus the heterogeneity, which the page shows already
NOT_A_NUMBER = 65_535  # code of NaN in arrays of 16-bit numbers


def write_report(
    groups: Sequence[Group],
    path: Path,
    title: str = "Client selection compared",
    thresholds: Sequence[float] | None = None,
) -> None:
    """Write the report of `groups` to `path`."""
    text = render_report(groups, title, thresholds)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error


def render_report(groups: Sequence[Group], title: str, thresholds: Sequence[float] | None = None) -> str:
    """The report as one HTML document, which draws every client."""
    for run in (run for group in groups for run in group.runs):
        n, remedy = run.config.federation.num_clients, "Use fedpohcs compare: its tables and curves need no clients."
        require(n <= MOST_LISTED, "federation.num_clients", n, f"must not exceed {MOST_LISTED} in a report", remedy)
    return render_page(report_data(groups, thresholds), title)


def render_page(data: dict[str, Any], title: str) -> str:
    """The page around a document of `report_data`."""
    page = resources.files("fedpohcs.analysis") / "page"
    parts = {
        "style": page_style(),
        "script": "\n".join((page / name).read_text(encoding="utf-8") for name in SCRIPTS),
        "data": to_json(data).replace("<", "\\u003c"),  # which could end the script element, or begin a comment in it
        "title": escape(title),
    }
    first, *rest = (page / "report.html").read_text(encoding="utf-8").split("{{")
    pieces = (piece.split("}}", 1) for piece in rest)  # in one pass, so that inserted text is not searched again
    return first + "".join(parts[name] + tail for name, tail in pieces)


def page_style() -> str:
    """The style sheet of all pages."""
    return (resources.files("fedpohcs.analysis") / "page" / "style.css").read_text(encoding="utf-8")


def to_json(data: dict[str, Any]) -> str:
    """JSON without spaces. NaN is refused."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def report_data(
    groups: Sequence[Group], thresholds: Sequence[float] | None = None, *, live: bool = False
) -> dict[str, Any]:
    """Everything the page shows."""
    panels = by_level(groups)
    return {
        "version": __version__,
        "live": live,
        "lastRounds": LAST_ROUNDS,
        "clocks": list(clocks_of(groups)),
        "labels": list(dict.fromkeys(group.label for group in groups)),
        "started": min((start for group in groups for run in group.runs if (start := _start(run))), default=None),
        "panels": [
            _panel(world, level, members, thresholds, clocks_of(groups)) for (world, level), members in panels.items()
        ],
    }


def _start(run: Run) -> str:
    """When the run began, as its folder says; "" if it does not."""
    start = run.origin.get("started")
    return start if isinstance(start, str) else ""


def _panel(
    world: str, level: str, groups: Sequence[Group], thresholds: Sequence[float] | None, clocks: Clocks
) -> dict[str, Any]:
    scope = make_scope(groups, thresholds)
    summaries = {group.label: summarise(group, scope) for group in groups}
    names = [name for name in dict.fromkeys(name for one in summaries.values() for name in one) if "share" not in name]
    return {
        "world": world,
        "level": level,
        "summary": summarise_level(groups, thresholds)._asdict(),
        "thresholds": scope.thresholds,
        "averagedOver": averaged_clients(groups),
        "tables": [table._asdict() for table in statistics_tables(groups, thresholds=thresholds)],
        "groups": [_group(group, clocks) for group in groups],
        "gains": [
            {"label": gain.label, "scheme": gain.scheme, "values": _floats(gain.by_client)}
            for gain in gains_over_local(groups)
        ],
        "intervals": {
            label: {name: [_number(x) for x in summary[name][:3]] if name in summary else [None] * 3 for name in names}
            for label, summary in summaries.items()
        },
    }


def _group(group: Group, clocks: Clocks) -> dict[str, Any]:
    returns = group.mean_returns
    length = returns.shape[1]
    low, high = bootstrap_limits(returns)
    first = group.runs[0]
    return {
        "label": group.label,
        "mean": _floats(returns.mean(0)),
        "low": _floats(low),
        "high": _floats(high),
        "clocks": {
            name: _floats(np.mean([clock(run)[:length] for run in group.runs], axis=0))
            for name, clock in clocks.items()
        },
        "participation": _floats(_selections_per_round(group)),
        "finalReturns": _floats(np.mean([run.final_returns for run in group.runs], axis=0)),
        "seconds": _median_by_phase([_seconds(run) for run in group.runs]),
        "bytes": _median_by_phase([{k: v[1:] for k, v in traffic(run)._asdict().items()} for run in group.runs]),
        "runs": [_run(run) for run in group.runs],
        "config": to_dict(first.config),
        "origin": first.origin,
    }


def _selections_per_round(group: Group) -> np.ndarray[Any, Any]:
    num_rounds = sum(len(run.rounds["round"]) - 1 for run in group.runs)
    return np.sum([run.times_selected for run in group.runs], axis=0) / max(num_rounds, 1)


def _seconds(run: Run) -> dict[str, Any]:
    """Median seconds by phase, without round 0, which only evaluates."""
    return {name: column[1:] for name, column in run.timings.items() if name not in ("round", "total")}


def _median_by_phase(by_run: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    joined = {phase: np.concatenate([run[phase] for run in by_run]) for phase in by_run[0]}
    return {phase: _number(np.median(values)) if len(values) else None for phase, values in joined.items()}


def _run(run: Run) -> dict[str, Any]:
    candidates = [ids.split() for ids in run.rounds["candidates"]]
    selected = [set(ids.split()) for ids in run.rounds["selected"]]
    pairs = list(zip(candidates, selected, strict=True))
    return {
        "seed": run.config.seed,
        "rounds": len(run.rounds["round"]) - 1,
        "totalRounds": run.config.rounds,
        "numClients": run.config.federation.num_clients,
        "answered": _latest_answers(run),
        "rejected": int(run.rounds["num_rejected"].sum()),
        "mean": _floats(run.rounds["mean_return"]),
        "returns": _quantised(run.client_returns),
        "counts": _encode(np.array([len(ids) for ids in candidates]), "<u2"),
        "candidates": _encode(np.array([int(client) for ids in candidates for client in ids]), "<u2"),
        "selected": _encode(np.array([client in chosen for ids, chosen in pairs for client in ids]), "u1"),
        "scores": _scores(run),
    }


def _latest_answers(run: Run) -> int:
    """Number of clients in the latest evaluation."""
    counts = np.isfinite(run.client_returns).sum(axis=1)
    return int(counts[counts > 0][-1]) if counts.any() else 0


def _scores(run: Run) -> dict[str, str]:
    """What each candidate scored, in the order of rounds and, within a round, of `candidates`."""
    table = run.clients
    is_score = table["role"] == "candidate"
    places = {
        (number, client): place
        for place, (number, client) in enumerate(
            (number, int(client)) for number, ids in enumerate(run.rounds["candidates"]) for client in ids.split()
        )
    }
    scores = {}
    for metric in dict.fromkeys(table["metric"][is_score].tolist()):
        if metric in MIRRORED_METRICS:
            continue
        rows = is_score & (table["metric"] == metric)
        values = np.full(len(places), np.nan, np.float32)
        keys = zip(table["round"][rows].tolist(), table["client"][rows].tolist(), strict=True)
        for key, value in zip(keys, table["value"][rows], strict=True):
            if key in places:  # otherwise the two tables contradict each other
                values[places[key]] = value
        scores[metric] = _encode(values, "<f4")
    return scores


def _quantised(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Values as 16-bit numbers between their extremes: half the size, and precise enough for a picture."""
    finite = np.isfinite(values)
    low, high = (float(values[finite].min()), float(values[finite].max())) if finite.any() else (0.0, 0.0)
    steps = np.where(finite, (values - low) / ((high - low) or 1.0) * (NOT_A_NUMBER - 1), NOT_A_NUMBER)
    return {"low": low, "high": high, "steps": _encode(np.round(steps), "<u2")}


def _floats(values: ArrayLike) -> str:
    return _encode(np.asarray(values), "<f4")


def _encode(values: np.ndarray[Any, Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
