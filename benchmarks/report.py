"""How long the report takes and how large it is, at the size of the paper's longest comparison.

Made up: 4 selectors x 3 seeds x 500 rounds x 60 clients, with 18 candidates, 6 selected and 4 scores per candidate, in
run folders as training writes them. Measured: `fedpohcs report` as a process of its own, imports included; the size of
the page; and the time `fedpohcs watch` takes to answer after one of the runs has grown by a round.

Goals: report < 10 s and < 8 MB.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from _common import Figure, Goal, argument_parser, benchmark_config, machine_facts, write_results

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.types import Evaluation, RoundRecord, Selection
from fedpohcs.runs.folder import RunFolder

SELECTORS = ("fedavg", "power-of-choice", "gradient-norm", "fedpohcs")
SCORES = ("selection_metric", "learning_potential", "heterogeneity", "similarity")


def main() -> None:
    quick = argument_parser(__doc__).parse_args().quick
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_runs(folder / "runs", rounds=10 if quick else 500)
        seconds = [time_report(folder) for _ in range(1 if quick else 5)]
        size = (folder / "report.html").stat().st_size / 1e6
        refresh = time_refreshes(folder / "runs", 1 if quick else 5)
    figures = [
        Figure("fedpohcs report, median", statistics.median(seconds), "s", Goal("<", 10, "s")),
        Figure("size of the page", size, "MB", Goal("<", 8, "MB")),
        Figure("refresh of a watched comparison, median", statistics.median(refresh), "s"),
    ]
    write_results("report", facts, figures, {"report": seconds, "refresh": refresh}, quick=quick)


def write_runs(folder: Path, rounds: int) -> None:
    for selector in SELECTORS:
        for seed in range(3):
            config = replace(benchmark_config(selector), rounds=rounds, seed=seed)
            run = RunFolder.create(folder / selector / f"seed-{seed}", config)
            for record in made_up_records(config):
                run.append(record)


def made_up_records(config: ExperimentConfig) -> Iterator[RoundRecord]:
    generator = np.random.default_rng(config.seed)
    federation = config.federation
    everyone = np.arange(federation.num_clients)
    for number in range(config.rounds + 1):
        asked = federation.num_candidates if number else 0
        candidates = np.sort(generator.choice(everyone, asked, replace=False))
        selected = candidates[: federation.num_selected]
        scores = {} if config.selector == "fedavg" else {name: generator.normal(size=asked) for name in SCORES}
        updates = {name: generator.random(len(selected)) for name in ("kl", "entropy", "critic_loss")}
        yield RoundRecord(
            round=number,
            candidates=candidates,
            selection=Selection(selected, scores if number else {}),
            updates_info=updates,
            train_steps=np.full(len(selected), 12_000),
            rejected=selected[:0],
            evaluation=Evaluation(everyone, 70 - 100 * generator.random(len(everyone)), np.full(len(everyone), 2000)),
            seconds={"measure": 0.1, "train": 0.2, "evaluate": 0.05},
            upload_bytes={int(client): 30_000 for client in candidates},
        )


def time_report(folder: Path) -> float:
    command = [sys.executable, "-m", "fedpohcs", "report", str(folder / "runs"), "-o", str(folder / "report.html")]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def time_refreshes(folder: Path, repetitions: int) -> list[float]:
    """Each time one round more is there, of a run that goes on."""
    from fedpohcs.analysis.live import LiveReport

    config = replace(benchmark_config("full"), rounds=repetitions)
    records = made_up_records(config)
    run = RunFolder.create(folder / "new", config)
    run.append(next(records))
    report = LiveReport([folder], "watched")
    seconds = []
    for record in records:
        run.append(record)
        start = time.perf_counter()
        report.data()
        seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
