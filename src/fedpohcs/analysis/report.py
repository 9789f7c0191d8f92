"""One HTML file that says what a set of runs reached. It needs nothing but itself."""

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedpohcs.analysis.figures import participation, return_by_round, to_svg
from fedpohcs.analysis.groups import Group
from fedpohcs.analysis.tables import Table, statistics_tables, timings_table
from fedpohcs.config import to_dict
from fedpohcs.errors import UserError

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --line: #d1d9e0; --page: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #0d1117; --card: #151b23; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 62rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--text); background: var(--page); }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p, figcaption, caption { color: var(--soft); }
figure { margin: 0; } figure img { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
.scroll { overflow-x: auto; margin-bottom: 1.25rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; padding: .3rem 0; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .5rem 1rem;
  margin: .5rem 0; }
pre { overflow-x: auto; font-size: .8rem; }
@media print { body { max-width: none; padding: 0; } figure, table { break-inside: avoid; } details { display: none; } }
"""


def write_report(groups: Sequence[Group], path: Path, title: str = "Client selection compared") -> None:
    """Write the report of `groups` to `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_report(groups, title), encoding="utf-8")
    except OSError as error:
        raise UserError(f"output (={str(path)!r}) cannot be written: {error.strerror}.") from error


def render_report(groups: Sequence[Group], title: str) -> str:
    """The report as one HTML document."""
    curves = _image(to_svg(return_by_round(groups)), "Mean return by round for every group")
    histogram = _image(to_svg(participation(groups)), "Selections and final return of every client for every group")
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_describe(groups))}</p>",
        "<h2>Return by round</h2>",
        _figure(curves, "Mean return over all clients, averaged over seeds; bands are 95 % confidence intervals."),
        "<h2>Statistics</h2>",
        *(_table(table) for table in statistics_tables(groups)),
        "<p>Mean over seeds ± half the 95 % Student-t interval; “-”: the run is too short, or not comparable.</p>",
        "<h2>Who trains, and who gains</h2>",
        _figure(histogram, "Bars: selections a round. Points: mean return of the last ten rounds. Ids count from 1."),
        "<h2>Time</h2>",
        _table(timings_table(groups)),
        "<h2>Configuration and origin</h2>",
        *(_details(group) for group in groups),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(body) + "\n</body></html>\n"


def _describe(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    worlds = ", ".join(dict.fromkeys(f"{group.world} ({group.level})" for group in groups))
    unfinished = sum(not run.complete for run in runs)
    note = f" {unfinished} of them stopped early." if unfinished else ""
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{count} on {worlds}, started {min(run.origin['started'] for run in runs)}.{note}"


def _image(svg: bytes, description: str) -> str:
    """As a data URI, so that the ids inside one drawing cannot meet those of another."""
    data = base64.b64encode(svg).decode("ascii")
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(description)}">'


def _figure(image: str, caption: str) -> str:
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.headers)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows)
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _details(group: Group) -> str:
    seeds = ", ".join(str(run.config.seed) for run in group.runs)
    summary = escape(f"{group.label} ({group.world}, {group.level}), seeds {seeds}")
    first = group.runs[0]
    text = json.dumps({"config": to_dict(first.config), "origin": first.origin}, indent=2)
    return f"<details><summary>{summary}</summary><pre>{escape(text)}</pre></details>"
