"""`fedpohcs theory`: options and commands. Heavy modules are imported after the input is checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedpohcs.cli.parsing import parse, run_subcommand
from fedpohcs.core.errors import require_known

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from fedpohcs.theory.rates import Rate
    from fedpohcs.theory.verify import Finding

FIGURES = ("error-bound", "heterogeneity", "selection", "aggregation", "conservative")


@dataclass(frozen=True)
class VerifyOptions:
    """`fedpohcs theory verify`."""

    instances: int = 10_000
    """Number of random federations, besides the worst cases, to check the claims on."""
    seed: int = 0
    """Seed of the random federations."""
    climb_steps: int = 30
    """Steps of hill climbing towards a violation, for each claim that no random federation violates."""
    claims: str | None = None
    """Names of claims, separated by commas. None: all."""
    out: Path = Path("runs/theory")
    """Folder for the worst instance of every claim, CLAIM.npz."""
    instance: Path | None = None
    """Check only this stored instance."""
    format: Literal["text", "markdown"] = "text"
    """Format of the tables."""


@dataclass(frozen=True)
class PlotOptions:
    """`fedpohcs theory plot`."""

    out: Path = Path("runs/theory")
    """Folder for the pictures, PNG and SVG."""
    figures: str = ",".join(FIGURES)
    """Names of pictures, separated by commas."""


def theory(arguments: list[str]) -> None:
    """Check the paper's claims at worst cases and on random federations (verify), or draw its bounds (plot)."""
    run_subcommand("fedpohcs theory", {"verify": verify, "plot": plot}, arguments)


def verify(arguments: list[str]) -> None:
    """Check every claim of the paper; exit with 1 if a result differs from what is documented."""
    given = parse(VerifyOptions, "fedpohcs theory verify", verify.__doc__, arguments)
    from fedpohcs.theory.rates import measured_rates
    from fedpohcs.theory.verify import check_stored, save_worst, verify_claims

    if given.instance is not None:
        findings, rates = [check_stored(given.instance)], []
    else:
        names = given.claims.split(",") if given.claims else None
        findings = verify_claims(
            given.instances, seed=given.seed, climb_steps=given.climb_steps, names=names, watch=_say
        )
        rates = measured_rates(given.seed) if names is None else []
        save_worst(findings, given.out)
    for table in (_claims_table(findings), *([_rates_table(rates)] if rates else [])):
        _print(table, given.format)
    if given.instance is None:
        _say(f"worst instances: {given.out}")
    complaints = [line for result in (*findings, *rates) for line in result.complaints]
    for line in complaints:
        _say(f"not as documented: {line}")
    if complaints:
        raise SystemExit(1)


def plot(arguments: list[str]) -> None:
    """Draw the error bound, the effects of heterogeneity and selection, aggregation errors, conservative clients."""
    given = parse(PlotOptions, "fedpohcs theory plot", plot.__doc__, arguments)
    names = given.figures.split(",")
    for name in names:
        require_known("figure", name, FIGURES)
    from fedpohcs.analysis.figures import save_figure
    from fedpohcs.theory.figures import draw

    for name in names:
        figure = draw(name)
        for ending in ("png", "svg"):
            path = given.out / f"{name}.{ending}"
            save_figure(figure, path)
            print(path, flush=True)


def _say(message: str) -> None:
    print(message, flush=True)


def _claims_table(findings: "Iterable[Finding]") -> "Table":
    table = _table("claim", "paper", "statement", "instances", "violations", "measured / bound", "verdict")
    for finding in findings:
        table.add_row(
            finding.name,
            finding.claim.place,
            finding.claim.statement,
            f"{finding.instances}",
            f"{finding.violations}",
            f"{finding.tightest:.3f}",
            _verdict(bool(finding.violations), finding.complaints),
        )
    return table


def _rates_table(rates: "Iterable[Rate]") -> "Table":
    table = _table("paper", "error of two-layer networks", "stated exponent", "worst case", "verdict")
    for rate in rates:
        measured = f"{round(rate.measured, 2) + 0.0:.2f}"
        verdict = _verdict(not rate.holds, rate.complaints)
        table.add_row(rate.statement.place, rate.statement.text, f"{rate.stated:.2f}", measured, verdict)
    return table


def _verdict(violated: bool, complaints: list[str]) -> str:
    verdict = "violated" if violated else "not violated"
    return f"{verdict}: not as documented" if complaints else verdict


def _table(*columns: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        number = column in ("instances", "violations", "measured / bound", "stated exponent", "worst case")
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _print(table: "Table", style: str) -> None:
    from rich import box
    from rich.console import Console

    if style == "markdown":
        table.box, table.pad_edge = box.MARKDOWN, True
    # Wide enough for every column, so that a narrow terminal or a file does not cut names off.
    Console(width=160, highlight=False, emoji=False, markup=False).print(table)
