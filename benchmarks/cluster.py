"""One run in the actors of a Ray cluster: bytes of messages, what the cluster costs, an estimate for 100 machines.

Measured on this machine with Mountain Cars (60 clients, d = 18, K = 6, 2 groups): bytes of every message as Ray
serialises it, and processor seconds per round, beside the same run in one process (`sharded`, the same bytes in all
results). Processor seconds are of the server's process and of the actors; Ray's daemons are counted apart. Programs are
made for a number of clients, which random selections vary, and every actor makes or loads its own. So rounds in which
nobody made or loaded a program are told apart from those in which somebody did. The first two always do.

The estimate is on paper. A run of N clients, d candidates and K selected has `machines * cores` actors, a group each,
and one server. Its round takes

    T = server + sum over phases of (most clients in one actor) * seconds per client
          + actors asked * seconds per message + bytes through the server's link / bandwidth + 2 * latency

Seconds per client are measured in batches of the width that the busiest actor has. Server and message seconds are the
server's own processor time with actors, divided as measured. The policy leaves the server once per machine and phase,
because the actors of a machine share Ray's object store; all other bytes are per client. The most clients in one actor
is the mean over 1,000 draws of K (or d) clients among N. Bandwidth, latency, machines and cores are assumptions; that
nobody else uses the machines is another. A snapshot of every client is fetched in every round, as with checkpoints in
every round.
"""

import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from _common import Figure, argument_parser, benchmark_config, machine_facts, print_table, run_worker, write_results

PHASES = ("evaluate", "measure", "train", "snapshot")
ROUNDS, FIRST = 24, 3  # in all, and the first that counts
PROGRAM_EVENTS = "/jax/core/compile/backend_compile_duration"  # also of a program from the cache on disk
MACHINES, CORES = 100, 8
BANDWIDTH, LATENCY = 10e9 / 8, 1e-3  # bytes per second of the server's link; seconds one way
CLIENTS, CANDIDATES, SELECTED = 10_000, 1_000, 400
WIDE = 13  # clients of an actor in the estimate: 10,000 / 800, rounded up


class Costs(NamedTuple):
    """What a phase costs: processor seconds of one actor with so many clients at most, and bytes."""

    seconds: float  # of the busiest actor
    clients: int  # asked in all
    bytes_per_client: float  # from the client
    policies: bool = True  # whether the policy is sent with the request


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--worker", choices=("ray", "sharded", "costs"))
    arguments = parser.parse_args()
    if arguments.worker == "costs":
        return print(json.dumps(seconds_per_client(arguments.quick)))
    if arguments.worker:
        return print(json.dumps(measured(arguments.worker, arguments.quick)))
    facts, flags = machine_facts(), ["--quick"] if arguments.quick else []
    results = {name: run_worker(__file__, "--worker", name, *flags) for name in ("sharded", "ray", "costs")}
    results["estimate"] = estimate(results["ray"], results["costs"])
    figures = figures_of(results)
    rows = [(phase, *results["ray"]["bytes"][phase]) for phase in PHASES]
    print_table("bytes per round, 60 clients", ("phase", "to the actors", "from the actors"), rows)
    write_results("cluster", facts, figures, results, quick=arguments.quick)


def config_of(executor: str, quick: bool) -> Any:
    return replace(benchmark_config(quick=quick), rounds=ROUNDS, groups=2, executor=executor)


def measured(executor: str, quick: bool) -> dict[str, Any]:
    """Inside the worker: processor seconds per round, and bytes by phase."""
    from fedpohcs.runs.experiment import start_training

    config = config_of(executor, quick)
    training = start_training(config)
    shards: Any = training.executor.shards  # pyright: ignore[reportAttributeAccessIssue]
    pids = [shards.ray.get(owner.actor.process.remote()) for owner in shards.owners] if executor == "ray" else []
    sizes = weighed(shards) if executor == "ray" else {}
    daemons = [pid for pid in descendants(os.getpid()) if pid not in pids]
    programs = counters(training)
    for count in programs:
        count()  # from now on
    rounds, last = [], {}
    for record in training.remaining_rounds():
        training.executor.snapshot()
        now = {"server": time.process_time(), "actors": processor(pids), "daemons": processor(daemons)}
        now["programs"] = float(sum(count() for count in programs))
        if record.round >= FIRST:
            rounds.append({name: now[name] - last[name] for name in now})
        last = now
    calls = {phase: len(sizes.get(phase, [])) for phase in PHASES}
    training.executor.close()
    medians = {phase: [statistics.median(one[way] for one in rows) for way in (0, 1)] for phase, rows in sizes.items()}
    steady = [one for one in rounds if not one["programs"]] or rounds
    return {
        **{name: statistics.median(one[name] for one in steady) for name in ("server", "actors", "daemons")},
        "mean_of_all": {name: statistics.mean(one[name] for one in rounds) for name in rounds[0]},
        "steady_rounds": len(steady) if steady is not rounds else 0,
        "rounds": rounds,
        "bytes": {phase: medians[phase] for phase in PHASES if phase in medians},
        "calls": calls,
        "num_actors": len(pids),
        "policy_bytes": policy_bytes(training),
    }


def count_programs(place: Any) -> int:
    """Programs that this process made or loaded since it was first asked; `place` keeps the number."""
    import jax

    if not hasattr(place, "programs"):
        place.programs = []
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, duration_secs, **_: place.programs.append(duration_secs) if event == PROGRAM_EVENTS else None
        )
    return len(place.programs)


def counters(training: Any) -> list[Callable[[], int]]:
    """`count_programs` of this process, or of every actor."""
    shards = training.executor.shards
    if not hasattr(shards, "owners"):
        return [lambda: count_programs(training)]
    return [
        lambda actor=owner.actor: shards.ray.get(actor.__ray_call__.remote(count_programs)) for owner in shards.owners
    ]


def weighed(shards: Any) -> dict[str, list[tuple[int, int]]]:
    """Note the bytes of every request and reply, by task; weighing costs the server a little time itself."""
    import ray

    context = ray._private.worker.global_worker.get_serialization_context()
    sizes: dict[str, list[tuple[int, int]]] = {}
    ask = shards.ask

    def weigh(order: Any, clients: Any) -> Any:
        parts = ask(order, clients)
        to = context.serialize(order).total_bytes + context.serialize(dict(clients)).total_bytes
        sizes.setdefault(order.task, []).append((to, context.serialize(parts).total_bytes))
        return parts

    shards.ask = weigh
    return sizes


def policy_bytes(training: Any) -> int:
    import jax
    import numpy as np

    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(training.state.params))


def descendants(parent: int) -> list[int]:
    """Processes that this one has started, and those that they have started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, edge = [], [parent]
    while edge:
        edge = [pid for pid, above in parents.items() if above in edge]
        found += edge
    return found


def processor(pids: list[int]) -> float:
    """Processor seconds of these processes so far."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def seconds_per_client(quick: bool) -> dict[str, list[float]]:
    """Processor seconds of one actor for 1, 2 and 13 clients of a request, by phase; the least of some calls."""
    import numpy as np

    from fedpohcs.execution import configure_jax, make_executor
    from fedpohcs.metrics.base import reads_evaluation
    from fedpohcs.server.selection import make_selector

    config = config_of("sharded", quick)
    federation = replace(config.federation, num_clients=WIDE, num_candidates=WIDE, num_selected=min(6, WIDE))
    config, names = replace(config, federation=federation), make_selector(config.selector).requires
    configure_jax(config.num_devices)
    shard = make_executor(config, record=reads_evaluation(names, config))
    params, found = shard.initial_params(), {}
    for width in (1, 2, 4, WIDE):
        clients, seconds = np.arange(width), []
        for number in range(4):
            times = [time.process_time()]
            shard.evaluate(params, number, clients)
            times.append(time.process_time())
            shard.measure(params, number, clients, names)
            times.append(time.process_time())
            shard.train(params, number, clients)
            times.append(time.process_time())
            seconds.append([after - before for before, after in itertools.pairwise(times)])
        found[str(width)] = [min(column) for column in zip(*seconds[1:], strict=True)]
    return found


def most_in_one(asked: int, actors: int) -> float:
    """The mean number of clients in the busiest actor, of a random draw among all clients."""
    import numpy as np

    generator = np.random.default_rng(0)
    draws = [np.bincount(generator.permutation(CLIENTS)[:asked] % actors).max() for _ in range(1_000)]
    return float(np.mean(draws))


def interpolated(costs: dict[str, list[float]], phase: int, clients: float) -> float:
    """Processor seconds of an actor for so many clients, between the measured widths."""
    import numpy as np

    widths = sorted(map(int, costs))
    return float(np.interp(clients, widths, [costs[str(width)][phase] for width in widths]))


def estimate(ray: dict[str, Any], costs: dict[str, list[float]]) -> dict[str, Any]:
    """The formula of the docstring, term by term."""
    actors = MACHINES * CORES
    asked = {"evaluate": CLIENTS, "measure": CANDIDATES, "train": SELECTED, "snapshot": CLIENTS}
    messages = sum(min(actors, number) for number in asked.values())
    per_message = ray["server"] / (ray["num_actors"] * len(PHASES))  # all that the server does, put down to messages
    busiest = {phase: most_in_one(asked[phase], actors) for phase in PHASES[:3]}
    compute = {phase: interpolated(costs, number, busiest[phase]) for number, phase in enumerate(PHASES[:3])}
    measured_clients = {"evaluate": 60, "measure": 18, "train": 6, "snapshot": 60}
    up = sum(asked[phase] * ray["bytes"][phase][1] / measured_clients[phase] for phase in PHASES)
    down = 3 * MACHINES * ray["policy_bytes"] + 8 * sum(asked.values())
    link = (up + down) / BANDWIDTH + 2 * LATENCY * len(PHASES)
    one = CLIENTS * costs[str(WIDE)][0] / WIDE
    one += CANDIDATES * costs[str(WIDE)][1] / WIDE + SELECTED * costs[str(WIDE)][2] / WIDE
    return {
        "actors": actors,
        "busiest": busiest,
        "compute": compute,
        "server": messages * per_message,
        "messages": messages,
        "bytes_up": up,
        "bytes_down": down,
        "link": link,
        "round": sum(compute.values()) + messages * per_message + link,
        "one_core": one,
    }


def figures_of(results: dict[str, Any]) -> list[Figure]:
    one, ray, paper = results["sharded"], results["ray"], results["estimate"]
    both, everything = ray["server"] + ray["actors"], ray["mean_of_all"]
    return [
        Figure("processor time of a round in one process", one["server"], "s"),
        Figure("processor time of a round, server and actors", both, "s"),
        Figure("the same, to one process", both / one["server"], ""),
        Figure("of which the server", ray["server"], "s"),
        Figure("processor time of Ray's daemons per round", ray["daemons"], "s"),
        Figure(
            "rounds in which no actor made or loaded a program", float(ray["steady_rounds"]), f"of {len(ray['rounds'])}"
        ),
        Figure("mean of all rounds in one process", one["mean_of_all"]["server"], "s"),
        Figure("mean of all rounds, server and actors", everything["server"] + everything["actors"], "s"),
        Figure("programs made or loaded per round, in one process", one["mean_of_all"]["programs"], ""),
        Figure("programs made or loaded per round, in the actors", everything["programs"], ""),
        Figure("bytes to the actors per round", float(sum(ray["bytes"][phase][0] for phase in PHASES)), "B"),
        Figure("bytes from the actors per round", float(sum(ray["bytes"][phase][1] for phase in PHASES)), "B"),
        Figure(f"estimate: a round on {MACHINES} machines", paper["round"], "s"),
        Figure("estimate: the same round on one core", paper["one_core"], "s"),
    ]


if __name__ == "__main__":
    main()
