"""Tables as text for the terminal, as Markdown and as LaTeX."""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedpohcs.analysis.tables import Table
from fedpohcs.core.errors import printable

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "“": "``", "”": "''"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"≥": r"$\ge$", "Δ": r"$\Delta$"}
_MARKDOWN = {character: f"&#{ord(character)};" for character in "<&|\\`"}


def print_tables(tables: Sequence[Table]) -> None:
    """Print in the width of the terminal; without a terminal, as wide as the table needs."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for table in tables:
        title, note = _plain(table.title), _plain(table.note) if table.note else None
        rendered = RichTable(title=title, title_justify="left", caption=note, caption_justify="left")
        for index, header in enumerate(table.headers):
            rendered.add_column(_plain(header), justify="right" if index else "left", overflow="fold")
        for row in table.rows:
            rendered.add_row(*map(_plain, row))
        console.print(rendered, "")


def _plain(text: str) -> Text:
    """Text without markup or control sequences: some of it comes from run folders."""
    return Text(printable(text))


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub-flavoured Markdown: per table a heading, the rows and the note."""
    blocks = []
    for table in tables:
        lines = [table.headers, ("---", *("---:" for _ in table.headers[1:])), *table.rows]
        body = "\n".join("| " + " | ".join(map(_escape_markdown, line)) + " |" for line in lines)
        title, note = _escape_markdown(table.title), _escape_markdown(table.note)
        blocks.append(f"### {title}\n\n{body}\n" + (f"\n{note}\n" if note else ""))
    return "\n".join(blocks)


def _escape_markdown(text: str) -> str:
    """Text for Markdown without HTML, links, code or further columns. Brackets of an interval stay as they are."""
    escaped = "".join(_MARKDOWN.get(character, character) for character in printable(text))
    return escaped.replace("](", "]&#40;").replace("![", "&#33;[")


def to_latex(tables: Sequence[Table], *, bold: bool = False, prefix: str = "tab") -> str:
    """One `table` environment per table, with the rules of the package booktabs.

    Args:
        tables: to be written.
        bold: set the best estimate of a row in bold.
        prefix: of the labels, before a colon.
    """
    blocks = []
    for table in tables:
        best = table.best if bold and table.best else ((),) * len(table.rows)
        lines = [(table.headers, ()), *zip(table.rows, best, strict=True)]
        head, *rows = (" & ".join(_latex_cells(*line)) + r" \\" for line in lines)
        label = f"\n  \\label{{{prefix}:{re.sub('[^A-Za-z0-9]+', '-', table.label)}}}" if table.label else ""
        note = f"\n  \\par\\smallskip\\footnotesize {_escape(table.note)}" if table.note else ""
        body = "\n".join(f"    {row}" for row in rows)
        blocks.append(
            f"\\begin{{table}}\n  \\centering\n  \\caption{{{_escape(table.title)}}}{label}\n"
            f"  \\begin{{tabular}}{{l{'r' * (len(table.headers) - 1)}}}\n    \\toprule\n    {head}\n    \\midrule\n"
            f"{body}\n    \\bottomrule\n  \\end{{tabular}}{note}\n\\end{{table}}\n"
        )
    return "% needs \\usepackage{booktabs}\n" + "\n".join(blocks)


def _latex_cells(row: Sequence[str], best: tuple[int, ...]) -> list[str]:
    return [f"\\textbf{{{_escape(cell)}}}" if index in best else _escape(cell) for index, cell in enumerate(row)]


def _escape(text: str) -> str:
    """Text for LaTeX; minus signs and comparisons become mathematics."""
    escaped = "".join(_LATEX.get(character, character) for character in printable(text))
    return re.sub(r"(?<![\w$])-(?=\d)", "$-$", escaped.replace(">=", r"$\ge$"))
