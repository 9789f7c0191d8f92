"""Traffic in environment steps per second and core, policy included, with libsumo and with TraCI.

Measured:
- `libsumo`: `envs.workers.Player` in one process: SUMO, observation, reward, a NumPy policy (two tanh layers of 64),
  recording; ten areas in turn, network changes and resets included. Rates are per second of processor time, which is
  what a free core would give.
- `traci`: the same code over TraCI, SUMO in a process of its own; processor time of both processes. Needs the extra
  `sumo-build`.
- `collector`: `envs.workers.WorkerCollector` with one worker per core, by the clock: the machine's other load counts.

Goals: libsumo >= 5,000 steps/s; libsumo / traci >= 4.
"""

import contextlib
import io
import itertools
import os
import resource
import statistics
import time
from typing import Any

from _common import Figure, Goal, argument_parser, machine_facts, median_ratio, write_results

HIDDEN = 64


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported
    facts = machine_facts()
    turns, episodes = (1, 1) if arguments.quick else (5, 2)
    rates: dict[str, list[float]] = {"libsumo": [], "traci": [], "collector": []}
    for _ in range(turns):
        rates["libsumo"].append(played_rate(episodes, with_traci=False))
        rates["traci"].append(played_rate(episodes, with_traci=True))
        rates["collector"].append(collected_rate(episodes))
    write_results("traffic", facts, headline(rates), {"steps_per_second": rates}, quick=arguments.quick)


def processor_seconds() -> float:
    """Of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def played_rate(episodes: int, *, with_traci: bool) -> float:
    from fedpohcs.worlds.host import Quota
    from fedpohcs.worlds.workers import Player

    world, plays = make_plays(with_traci)
    before = processor_seconds()
    with Player(world) as player:
        steps = num_steps([player.play(play, Quota(episodes=episodes)) for play in plays])
    return steps / (processor_seconds() - before)


def collected_rate(episodes: int) -> float:
    from fedpohcs.worlds.host import Quota
    from fedpohcs.worlds.workers import WorkerCollector

    world, plays = make_plays(with_traci=False)
    collector = WorkerCollector(world)
    try:
        collector.collect(plays, Quota(episodes=1))  # starts the workers
        before = time.perf_counter()
        played = collector.collect(plays, Quota(episodes=episodes))
        return num_steps(played) / (time.perf_counter() - before)
    finally:
        collector.close()


def num_steps(played: list[Any]) -> int:
    failures = [one.failure for one in played if one.failure]
    if failures:
        raise RuntimeError(failures[0])
    return sum(len(one.trajectory.reward) for one in played)


def make_plays(with_traci: bool) -> tuple[Any, list[Any]]:
    """The ten areas, and a policy with random weights for each."""
    import numpy as np

    from fedpohcs.core.noise import ActionNoise
    from fedpohcs.learners.actors import policy_actor, sight_of
    from fedpohcs.learners.filters import init_filters
    from fedpohcs.learners.networks import Dense, PolicyParams
    from fedpohcs.worlds.hongkong.areas import AREAS
    from fedpohcs.worlds.hongkong.world import HongKong
    from fedpohcs.worlds.host import Play

    world = traci_world() if with_traci else HongKong("areas", len(AREAS))
    generator = np.random.default_rng(0)
    sizes = (world.observation_size, HIDDEN, HIDDEN, world.actions.size)
    layers = tuple(
        Dense(generator.normal(scale=0.2, size=(a, b)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in itertools.pairwise(sizes)
    )
    policy = PolicyParams(layers, np.zeros(sizes[-1], np.float32))
    filters = init_filters(world.observation_size)
    actor = policy_actor(ActionNoise("normal", sizes[-1]), policy, sight_of(filters, 5.0))
    return world, [Play(client, actor, (0, client)) for client in range(len(AREAS))]


def traci_world() -> Any:
    import sumo
    import traci

    from fedpohcs.worlds.hongkong.areas import AREAS
    from fedpohcs.worlds.hongkong.simulation import Traffic
    from fedpohcs.worlds.hongkong.world import HongKong

    class OverTraci:
        """TraCI, with the program named by its full path and the same interface as libsumo."""

        def __getattr__(self, name: str) -> Any:
            return getattr(traci, name)

        def start(self, command: list[str]) -> None:
            with contextlib.redirect_stdout(io.StringIO()):  # it tells of every try to connect
                traci.start([os.path.join(sumo.SUMO_HOME, "bin", "sumo"), *command[1:]])

    class TraciHongKong(HongKong):
        """The same world, its simulators behind a socket."""

        def open(self, client: int) -> Traffic:
            return Traffic(self.networks[client], self.settings, sumo=OverTraci())

    return TraciHongKong("areas", len(AREAS))


def headline(rates: dict[str, list[float]]) -> list[Figure]:
    libsumo, traci, collector = (statistics.median(rates[name]) for name in ("libsumo", "traci", "collector"))
    return [
        Figure("libsumo, of one core", libsumo, "steps/s", Goal(">=", 5000, "steps/s")),
        Figure("traci, of one core", traci, "steps/s"),
        Figure("libsumo / traci", median_ratio(rates["libsumo"], rates["traci"]), "times", Goal(">=", 4, "times")),
        Figure("collector, by the clock", collector, "steps/s"),
    ]


if __name__ == "__main__":
    main()
