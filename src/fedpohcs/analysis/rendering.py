"""Tables as text for the terminal, as Markdown and as LaTeX."""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as RichTable

from fedpohcs.analysis.tables import Table

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "“": "``", "”": "''"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {"≥": r"$\ge$", "Δ": r"$\Delta$"}


def print_tables(tables: Sequence[Table]) -> None:
    """Print in the width of the terminal; without a terminal, as wide as the table needs."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for table in tables:
        rendered = RichTable(title=table.title, title_justify="left", caption=table.note, caption_justify="left")
        for index, header in enumerate(table.headers):
            rendered.add_column(header, justify="right" if index else "left", overflow="fold")
        for row in table.rows:
            rendered.add_row(*(cell.replace("[", r"\[") for cell in row))  # brackets are markup to Rich
        console.print(rendered, "")


def print_markdown(tables: Sequence[Table]) -> None:
    """Print `to_markdown`."""
    print(to_markdown(tables), end="")


def print_latex(tables: Sequence[Table]) -> None:
    """Print `to_latex`."""
    print(to_latex(tables), end="")


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub-flavoured Markdown: per table a heading, the rows and the note."""
    blocks = []
    for table in tables:
        lines = [table.headers, ("---", *("---:" for _ in table.headers[1:])), *table.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        blocks.append(f"### {table.title}\n\n{body}\n" + (f"\n{table.note}\n" if table.note else ""))
    return "\n".join(blocks)


def to_latex(tables: Sequence[Table]) -> str:
    """One `table` environment per table, with the rules of the package booktabs."""
    blocks = []
    for table in tables:
        head, *rows = (" & ".join(map(_escape, line)) + r" \\" for line in (table.headers, *table.rows))
        note = f"\n  \\par\\smallskip\\footnotesize {_escape(table.note)}" if table.note else ""
        body = "\n".join(f"    {row}" for row in rows)
        blocks.append(
            f"\\begin{{table}}\n  \\centering\n  \\caption{{{_escape(table.title)}}}\n"
            f"  \\begin{{tabular}}{{l{'r' * (len(table.headers) - 1)}}}\n    \\toprule\n    {head}\n    \\midrule\n"
            f"{body}\n    \\bottomrule\n  \\end{{tabular}}{note}\n\\end{{table}}\n"
        )
    return "% needs \\usepackage{booktabs}\n" + "\n".join(blocks)


def _escape(text: str) -> str:
    """Text for LaTeX; minus signs and comparisons become mathematics."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w$])-(?=\d)", "$-$", escaped.replace(">=", r"$\ge$"))
