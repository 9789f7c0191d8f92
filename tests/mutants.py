"""A slow check of the tests: whether they notice plausible mistakes.

`mutants.toml` lists the mistakes. Each replaces one piece of text of src/fedpohcs, in a copy, and names the tests that
must fail then. A piece that is not found exactly once is an error: the list follows the source. Run it by `make
mutants`, or alone: python tests/mutants.py [--only NAME...] [--list] [--jobs N].
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src") / "fedpohcs"
NEEDED = ("src", "tests", "docs", "pyproject.toml")
FAILED = 1  # pytest's exit code when tests ran and failed; 2 to 5 mean that they did not run
LONGEST = 600  # seconds for the tests of one mutant
NOT_NOTICED = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")
"""Errors of code that does not run. A test that meets one says nothing about the mistake."""

PLUGIN = '''
"""Tells which test failed first and by which error, and that the copy is what is tested."""
import os
from pathlib import Path

import pytest

import fedpohcs

COPY = Path(os.environ["FEDPOHCS_COPY"])
if not Path(fedpohcs.__file__).is_relative_to(COPY):
    pytest.exit(f"{fedpohcs.__file__} was imported, not the copy below {COPY}", returncode=6)


def pytest_exception_interact(node, call, report):
    if report.failed:
        (COPY / "failed").write_text(f"{call.excinfo.typename} {report.nodeid}")
'''


class Mutant(NamedTuple):
    """One mistake."""

    name: str
    old: str
    new: str
    tests: tuple[str, ...]


class Verdict(NamedTuple):
    """What the tests say to a mutant."""

    caught: bool
    text: str


class Copy:
    """A copy of the sources and tests in which one mistake at a time is made."""

    def __init__(self, folder: Path, origin: Path = ROOT) -> None:
        self.folder, self.num_judged = folder, 0
        folder.mkdir()
        for name in NEEDED:
            copy = shutil.copytree if (origin / name).is_dir() else shutil.copy2
            copy(origin / name, folder / name)
        (folder / "mutant_plugin.py").write_text(PLUGIN)

    def run(self, tests: Iterable[str], *, stop: bool = True) -> tuple[int, str]:
        """The exit code of pytest, and what it printed."""
        (self.folder / "failed").unlink(missing_ok=True)
        options = ["-q", *["-x"] * stop, "-n", "0", "--tb=short", "--hypothesis-seed=0"]
        plugins = ["-p", "no:cacheprovider", "-p", "mutant_plugin"]
        path = os.pathsep.join([str(self.folder / "src"), str(self.folder)])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *plugins, *tests],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "FEDPOHCS_COPY": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST if stop else None,
            check=False,
        )
        return done.returncode, done.stdout

    def judge(self, mutant: Mutant, place: Path) -> Verdict:
        """Make the mistake, run the tests that must notice, and undo it."""
        path = self.folder / place
        right, times = path.read_text(), path.stat()
        wrong = right.replace(mutant.old, mutant.new)
        compile(wrong, str(path), "exec")
        path.write_text(wrong)
        # Compiled code is found by the time of its source in whole seconds: each mistake needs a second of its own.
        self.num_judged += 1
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 2 * 10**9 * self.num_judged))
        try:
            return self._verdict(*self.run(mutant.tests))
        except subprocess.TimeoutExpired:
            return Verdict(False, f"no end after {LONGEST} s")
        finally:
            path.write_text(right)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _verdict(self, code: int, output: str) -> Verdict:
        if code == 0:
            return Verdict(False, "survives: no test failed")
        failed = self.folder / "failed"
        if code != FAILED or not failed.exists():
            return Verdict(False, f"tests could not be run (exit code {code}):\n{output}")
        error, test = failed.read_text().split(" ", 1)
        if error in NOT_NOTICED:
            return Verdict(False, f"does not run ({error} in {test}):\n{output}")
        return Verdict(True, test)


def read_mutants(only: Sequence[str]) -> list[Mutant]:
    """The mutants of these names; without names all."""
    rows = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]
    mutants = [Mutant(row["name"], row["old"], row["new"], tuple(row["tests"])) for row in rows]
    names = [mutant.name for mutant in mutants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        sys.exit(f"names of mutants must differ: {', '.join(twice)}")
    if unknown := sorted(set(only) - set(names)):
        sys.exit(f"unknown mutants: {', '.join(unknown)}. See --list.")
    return [mutant for mutant in mutants if not only or mutant.name in only]


def find_places(mutants: Sequence[Mutant]) -> dict[str, Path]:
    """The file that holds the text of each mutant, by name; none of them may be missing or ambiguous."""
    texts = {path.relative_to(ROOT): path.read_text() for path in sorted((ROOT / SOURCE).rglob("*.py"))}
    places, problems = {}, []
    for mutant in mutants:
        found = [path for path, text in texts.items() for _ in range(text.count(mutant.old))]
        if len(found) == 1 and mutant.old != mutant.new:
            places[mutant.name] = found[0]
        else:
            where = ", ".join(map(str, found)) or "nowhere"
            problems.append(f"{mutant.name}: its text must occur once below {SOURCE}, and occurs here: {where}")
    if problems:
        sys.exit("\n".join(problems))
    return places


def check_unmutated(copy: Copy, mutants: Sequence[Mutant]) -> None:
    """All tests that are named must pass before any mistake is made."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    start = time.perf_counter()
    code, output = copy.run(tests, stop=False)
    if code:
        sys.exit(f"without a mutant the tests must pass (exit code {code}):\n{output}")
    print(f"{len(tests)} tests and files pass without a mutant, {time.perf_counter() - start:.0f} s", flush=True)


def judge_all(copies: Sequence[Copy], mutants: Sequence[Mutant], places: dict[str, Path]) -> list[Verdict]:
    """One verdict per mutant, printed as it comes."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def judge(mutant: Mutant) -> Verdict:
        copy, start = free.get(), time.perf_counter()
        try:
            verdict = copy.judge(mutant, places[mutant.name])
        finally:
            free.put(copy)
        mark = "caught" if verdict.caught else "NOT CAUGHT"
        print(f"{mark}  {mutant.name}: {verdict.text}, {time.perf_counter() - start:.1f} s", flush=True)
        return verdict

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(judge, mutants))


def main() -> None:
    """Judge all mutants, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="judge these mutants alone")
    parser.add_argument("--list", action="store_true", help="print the names of all mutants, and do nothing")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="mutants at a time")
    options = parser.parse_args()
    mutants = read_mutants(options.only)
    places = find_places(mutants)
    if options.list:
        print("\n".join(f"{mutant.name}  {places[mutant.name]}" for mutant in mutants))
        return
    with tempfile.TemporaryDirectory(prefix="fedpohcs-mutants-") as folder:
        first = Copy(Path(folder) / "copy-1")
        check_unmutated(first, mutants)
        # Copies of the first one have what Numba compiled without a mistake.
        others = [Copy(Path(folder) / f"copy-{number}", first.folder) for number in range(2, options.jobs + 1)]
        verdicts = judge_all([first, *others], mutants, places)
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"{caught} of {len(mutants)} mutants caught")
    sys.exit(caught < len(mutants))


if __name__ == "__main__":
    main()
