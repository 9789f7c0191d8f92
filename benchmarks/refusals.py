"""How soon bad input is refused: processes of their own, from their start to their end, in turns with an empty Python.

Kinds: values out of range or of the wrong type, misspelt names, files that are missing or broken, and what only the
experiment can check, which loads JAX. Goal: below 1 s after start-up, that is, beyond what `fedpohcs --version` takes;
on the clock, and in processor time, which a busy machine changes less.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import Figure, Goal, argument_parser, machine_facts, percentile_90, write_results

START = ["--version"]
CASES = {
    "an unknown command": ["trian"],
    "an unknown preset": ["train", "mountain-car"],
    "a misspelt level": ["train", "mountain-cars", "--level", "hgih"],
    "a misspelt selector": ["train", "mountain-cars", "--selector", "fedpohc"],
    "a value of the wrong type": ["train", "mountain-cars", "--rounds", "many"],
    "a value out of range": ["train", "mountain-cars", "--rounds", "0"],
    "a nested value out of range": ["train", "mountain-cars", "--learner.learning-rate", "nan"],
    "a misspelt option": ["train", "mountain-cars", "--learner.momentun", "0.5"],
    "a file that is missing": ["train", "--config", "nowhere.toml"],
    "a file that is not TOML": ["train", "--config", "broken.toml"],
    "a bad value in a file": ["train", "--config", "bad.toml"],
    "an unknown aggregator (loads JAX)": ["train", "mountain-cars", "--federation.aggregator", "mean"],
    "an environment for another world": ["train", "mountain-cars", "--env", "CartPole-v1"],
}


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    facts, repetitions = machine_facts(), 1 if arguments.quick else 7
    seconds: dict[str, list[float]] = {name: [] for name in ("start-up", *CASES)}
    processor: dict[str, list[float]] = {name: [] for name in seconds}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "broken.toml").write_text("rounds =\n")
        (folder / "bad.toml").write_text("[learner]\nmomentum = 2.0\n")
        for repetition in range(repetitions + 1):
            for name, words in {"start-up": START, **CASES}.items():
                taken, worked = timed(words, folder, expected=0 if name == "start-up" else 2)
                if repetition:  # the first turn reads the files from disk
                    seconds[name].append(taken)
                    processor[name].append(worked)
        left = sorted(path.name for path in folder.iterdir())
    assert left == ["bad.toml", "broken.toml"], f"something was written: {left}"
    start = statistics.median(seconds["start-up"])
    figures = [Figure("start-up: fedpohcs --version", start, "s")]
    figures += [
        Figure(f"{name}: after start-up", statistics.median(seconds[name]) - start, "s", Goal("<", 1, "s"))
        for name in CASES
    ]
    slowest = max(percentile_90(seconds[name]) - start for name in CASES)
    figures.append(Figure("the slowest kind, 90th percentile", slowest, "s", Goal("<", 1, "s")))
    idle = statistics.median(processor["start-up"])
    figures += [Figure("start-up: processor time", idle, "s")]
    figures += [
        Figure(f"{name}: processor time after start-up", statistics.median(times) - idle, "s", Goal("<", 1, "s"))
        for name, times in processor.items()
        if name != "start-up"
    ]
    write_results("refusals", facts, figures, {"seconds": seconds, "processor": processor}, quick=arguments.quick)


def timed(words: list[str], folder: Path, expected: int) -> tuple[float, float]:
    """Seconds on the clock, and of the processor."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "fedpohcs", *words], cwd=folder, capture_output=True, text=True)
    taken, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == expected, done.stderr
    assert expected == 0 or done.stderr.count("\n") == 1, done.stderr
    return taken, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
