"""The process of a peer: reads the name of a case per line, runs it once and answers with one JSON line.

Only the standard library. The first turn of a case builds and compiles, and is not counted by the script that asks.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

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
    return {"work": work, "seconds": time.perf_counter() - start, "cpu_seconds": cpu_seconds() - cpu}


def cpu_seconds() -> float:
    """Processor time of this process and of all processes below it, threads included."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            cells = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        processes[int(folder.name)] = (int(cells[1]), sum(map(int, cells[11:13])))
    mine, size = {os.getpid()}, 0
    while len(mine) > size:
        size = len(mine)
        mine |= {pid for pid, (parent, _) in processes.items() if parent in mine}
    below = sum(processes[pid][1] for pid in mine - {os.getpid()} if pid in processes) / os.sysconf("SC_CLK_TCK")
    return time.process_time() + below
