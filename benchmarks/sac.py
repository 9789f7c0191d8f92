"""Gradient steps of SAC per second on one core: six clients at once against Stable-Baselines3.

Both learn from a full replay buffer of Pendulum-v1's shapes with tanh layers and minibatches of the same sizes:

    fedpohcs   local iterations of six clients in one compiled program, with their random draws and all transfers
    peer       `SAC.train` of Stable-Baselines3, one client, one PyTorch thread

They take turns. Run the script on one core: taskset -c 0 python benchmarks/sac.py --sb3-python PYTHON. The goal is for
the networks and minibatches of the learner's defaults; the networks of Stable-Baselines3's defaults are shown beside.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from _common import (
    Figure,
    Goal,
    argument_parser,
    installed_version,
    interleaved_rates,
    machine_facts,
    median_ratio,
    write_results,
)

GOAL = Goal(">=", 20, "times")
CLIENTS = 6
OBSERVATION, ACTION, LIMIT, STEPS = 3, 1, 2.0, 200  # of Pendulum-v1


class Size(NamedTuple):
    """Networks and minibatches, and how many gradient steps of a turn."""

    width: int
    batch: int
    ours: int
    peers: int
    goal: Goal | None = None

    def __str__(self) -> str:
        return f"{self.width}-{self.width}, batch {self.batch}"


SIZES = (Size(64, 64, 1000, 400, GOAL), Size(64, 256, 300, 300), Size(256, 256, 20, 60))
QUICK = (Size(8, 16, 20, 20),)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--sb3-python", help="interpreter that has stable_baselines3 and gymnasium")
    parser.add_argument("--worker", action="store_true", help="answer on standard output as the peer")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else SIZES
    if arguments.worker:
        serve_peer(sizes)
    elif arguments.sb3_python is None:
        sys.exit("--sb3-python is missing: python -m venv sb3 && sb3/bin/pip install stable-baselines3")
    else:
        compare(arguments.sb3_python, sizes, arguments.quick)


def compare(interpreter: str, sizes: tuple[Size, ...], quick: bool) -> None:
    facts = machine_facts()
    command = [interpreter, __file__, "--worker", *(["--quick"] if quick else [])]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    facts["versions"] |= {"sb3_and_torch": ask(peer, "versions")}
    rates: dict[str, dict[str, list[float]]] = {}
    figures = []
    for index, size in enumerate(sizes):
        contenders = {"fedpohcs": our_contender(size), "peer": peer_contender(peer, index)}
        rates[str(size)] = found = interleaved_rates(contenders, repetitions=2 if quick else 7)
        figures += [Figure(f"{name}, {size}", statistics.median(found[name]), "gradient steps/s") for name in found]
        figures.append(Figure(f"ratio, {size}", median_ratio(found["fedpohcs"], found["peer"]), "times", size.goal))
    peer.communicate()
    write_results("sac", facts, figures, {"gradient_steps_per_second": rates}, quick=quick)


def our_contender(size: Size) -> Callable[[], int]:
    """Local iterations of six clients, each with an own buffer."""
    from fedpohcs.execution.devices import configure_jax

    configure_jax(1)
    import jax
    import numpy as np

    from fedpohcs.core.learning import SACConfig
    from fedpohcs.core.spaces import ContinuousActions
    from fedpohcs.core.trajectory import Status, Trajectory
    from fedpohcs.execution.mapping import CLIENT_MAPS, joined
    from fedpohcs.learners.base import Broadcast, Progress, make_learner
    from fedpohcs.learners.client import ClientProgram
    from fedpohcs.worlds.spaces import AnnouncedWorld

    world = AnnouncedWorld(OBSERVATION, ContinuousActions(ACTION, -LIMIT, LIMIT), STEPS)
    config = SACConfig(
        hidden_sizes=(size.width, size.width),
        batch_size=size.batch,
        updates_per_iteration=size.ours,
        local_iterations=1,
        max_gradient_norm=1e9,  # the peer does not clip
    )
    learner = make_learner(config, world)
    params = jax.tree.map(np.asarray, learner.init_params(jax.random.key(0)))
    clients, generator = np.arange(CLIENTS), np.random.default_rng(0)

    def repeated(tree: Any) -> Any:
        return jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], CLIENTS, axis=0), tree)

    def drawn(*shape: int) -> np.ndarray:
        return generator.normal(size=(CLIENTS, learner.batch_length, 1, *shape)).astype(np.float32)

    status = np.full((CLIENTS, learner.batch_length, 1), Status.RUNNING, np.int8)
    played = Trajectory(drawn(OBSERVATION), drawn(ACTION), drawn(), status, drawn(OBSERVATION))
    start = Progress(repeated(params), repeated(learner.init_filters()), repeated(learner.init_memory(params)))
    sent = Broadcast(params, jax.random.key(0), learner.schedule(0))
    program, mapped = ClientProgram(learner, evaluation_episodes=1), CLIENT_MAPS["vectorised"](1)

    def turn() -> int:
        draws = [jax.tree.map(lambda x: x[0], learner.draws(generator)) for _ in clients]
        own = (start, played, jax.tree.map(lambda *one: np.stack(one), *draws))
        joined(mapped.run_chunks(ClientProgram.learn, program, sent, own, clients))
        return CLIENTS * size.ours

    return turn


def ask(peer: "subprocess.Popen[str]", question: str) -> str:
    """One line to the peer's process, one back."""
    assert peer.stdin and peer.stdout
    print(question, file=peer.stdin, flush=True)
    answer = peer.stdout.readline().strip()
    if not answer:
        raise RuntimeError("the Stable-Baselines3 process ended early")
    return answer


def peer_contender(peer: "subprocess.Popen[str]", index: int) -> Callable[[], int]:
    return lambda: int(ask(peer, str(index)))


def serve_peer(sizes: tuple[Size, ...]) -> None:
    """For every index on standard input, train the model of that size once more and print the gradient steps."""
    import torch

    torch.set_num_threads(1)
    models: dict[int, Any] = {}
    for line in sys.stdin:
        if line.strip() == "versions":
            print(installed_version("stable-baselines3"), installed_version("torch"), flush=True)
            continue
        size = sizes[int(line)]
        model = models.setdefault(int(line), None) or make_peer(size)
        models[int(line)] = model
        model.train(size.peers, size.batch)
        print(size.peers, flush=True)


def make_peer(size: Size) -> Any:
    """A model whose buffer holds as many transitions as a turn of ours, and that has made a few gradient steps."""
    import torch
    from stable_baselines3 import SAC

    networks = {"net_arch": [size.width, size.width], "activation_fn": torch.nn.Tanh}
    model = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=networks, learning_starts=400, device="cpu", seed=0)
    model.learn(450)
    return model


if __name__ == "__main__":
    main()
