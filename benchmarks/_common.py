"""Shared by the speed scripts: settings, machine facts, timing in turns, results. Only the standard library."""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PACKAGES = ("fedpohcs", "jax", "jaxlib", "numba", "numpy", "scipy", "gymnasium", "libsumo")


class Goal(NamedTuple):
    """A bound to compare a number with; only shown, never asserted."""

    sign: str  # "<=", "<" or ">="
    bound: float
    unit: str

    def met(self, value: float) -> bool:
        return {"<=": value <= self.bound, "<": value < self.bound, ">=": value >= self.bound}[self.sign]

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g} {self.unit}"


class Figure(NamedTuple):
    """One headline number, with the goal it is held against if there is one."""

    name: str
    value: float
    unit: str
    goal: Goal | None = None

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "met" if self.goal.met(self.value) else "missed"


def argument_parser(documentation: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring, with `--quick`."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that the script works, not how fast")
    return parser


def benchmark_config(selector: str = "fedpohcs", *, quick: bool = False) -> Any:
    """The default preset at paper size, or with `quick` a tiny federation that does the same things."""
    from fedpohcs import preset

    config = preset("mountain-cars", selector=selector)
    if not quick:
        return config
    federation = dataclasses.replace(config.federation, num_clients=8, num_candidates=4, num_selected=2)
    learner = dataclasses.replace(config.learner, local_iterations=2, filter_warmup_steps=2_000)
    return dataclasses.replace(config, federation=federation, learner=learner)


def machine_facts() -> dict[str, Any]:
    """What a number depends on besides the code. Ask before measuring: it holds the load average."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := installed_version(name))},
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "git_commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--", "src", "benchmarks/*.py")),
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def jax_devices() -> str | None:
    """The devices on which JAX ran in this process, such as `2 x cpu`; None if it did not run here."""
    if "jax" not in sys.modules:
        return None
    from fedpohcs.execution.devices import describe_devices

    return describe_devices()


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def interleaved_rates(contenders: Mapping[str, Callable[[], int]], repetitions: int) -> dict[str, list[float]]:
    """Steps per second of contenders that return their steps, in turns: A B A B ...; the first turn only warms up."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for repetition in range(repetitions + 1):
        for name, contender in contenders.items():
            start = time.perf_counter()
            steps = contender()
            if repetition:
                rates[name].append(steps / (time.perf_counter() - start))
    return rates


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median over repetitions of a ratio taken within each."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def percentile_90(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def run_worker(script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """The JSON that a script prints last when it runs as its own process."""
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def write_results(
    name: str, facts: dict[str, Any], figures: Sequence[Figure], samples: Mapping[str, Any], *, quick: bool
) -> None:
    """Write results/NAME.json, or NAME-quick.json, which says nothing about speed; then print the headline table."""
    RESULTS.mkdir(exist_ok=True)
    load = [round(load, 2) for load in os.getloadavg()]
    verdicts = ["" if quick else figure.verdict for figure in figures]
    content = {
        "benchmark": name,
        "quick": quick,
        "machine": facts | {"load_average_after": load, "devices": jax_devices()},
        "figures": [
            {"name": f.name, "value": f.value, "unit": f.unit, "goal": str(f.goal or ""), "verdict": verdict}
            for f, verdict in zip(figures, verdicts, strict=True)
        ],
        "samples": samples,
    }
    path = RESULTS / f"{name}{'-quick' if quick else ''}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    rows = [
        (f.name, f"{shown(f.value)} {f.unit}", f.goal or "", verdict)
        for f, verdict in zip(figures, verdicts, strict=True)
    ]
    print_table(f"{name}{' (quick: not a measurement)' if quick else ''}", ("measured", "value", "goal", ""), rows)
    print(f"load before {facts['load_average_before'][0]}, after {load[0]}; {path.relative_to(HERE.parent)}")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A Markdown table whose columns line up; numbers are shortened."""
    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
    lines = [list(columns), ["-" * width for width in widths], *cells]
    print(f"\n{title}\n")
    for line in lines:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
    print(flush=True)


def shown(cell: Any) -> str:
    """A number to three digits, or to the unit if it is large."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
