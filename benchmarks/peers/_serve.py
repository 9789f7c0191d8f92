"""The process of a peer: reads the name of a case per line, runs it once and answers with one JSON line.

Only the standard library. The first turn of a case builds and compiles, and is not counted by the script that asks.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

MARK = "FEDPOHCS_PEER"
"""Environment variable by which a driver's processes are known."""
Turn = Callable[[], int | dict[str, float]]
"""Does the work once and returns its size, environment steps or rounds; or an answer with seconds of its own."""


def serve(cases: Mapping[str, Callable[[], Turn]]) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print where they like
    turns: dict[str, Turn] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            turns[name] = turns.get(name) or cases[name]()
            answer = timed(turns[name])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


def timed(turn: Turn) -> dict[str, float]:
    cpu, start = cpu_seconds(), time.perf_counter()
    work = turn()
    if isinstance(work, dict):
        return work
    seconds = time.perf_counter() - start
    return {"work": work, "seconds": seconds, "cpu_seconds": cpu_seconds(at_end=True) - cpu}


def cpu_seconds(*, at_end: bool = False) -> float:
    """Processor time of this process and of all that it started, threads and ended processes included.

    Ray starts processes that get another parent. So they are known by a mark in the environment, which they inherit.
    The time of one that ends without a parent among these is lost. Looking for them takes milliseconds, which count
    neither before a measurement nor, with `at_end`, after it.
    """
    own, before = os.getpid(), time.process_time()
    others = sum(ticks_of(pid, ended_too=True) for pid in marked(os.environ.get(MARK, "")) if pid != own)
    ended = ticks_of(own, ended_too=True) - ticks_of(own)
    return (before if at_end else time.process_time()) + (others + ended) / os.sysconf("SC_CLK_TCK")


def marked(mark: str) -> list[int]:
    """The processes whose environment has this mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*") if mark else ():
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return found


def ticks_of(pid: int, *, ended_too: bool = False) -> int:
    """Processor time of a process, and with `ended_too` of its children that have ended."""
    try:
        cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, cells[11 : 15 if ended_too else 13]))
