"""Local training on Mountain Cars in environment steps per second: beside Stable-Baselines3's PPO and the limit.

Measured, in turns:
- `fedpohcs`: `InProcessExecutor.train`, 6 clients x 5 local iterations at paper size, all cores, from the initial
  weights; only real steps count;
- `c loop`: the same local iterations by hand in C (`car_loop.c`, compiled here), one client after the other on each
  core. It updates no filters, draws simpler random numbers and keeps the old distribution, which is in its favour;
- `sb3, N env`: PPO with its defaults (batch 64, 10 epochs), N environments in one process, one rollout and one update;
- `sb3 light, N env`: the same with batches of 128 and one epoch. Here both do one epoch for the policy, but fedpohcs
  three for the critic and Stable-Baselines3 only one, which is in its favour.

Stable-Baselines3 runs in a process of its own, which waits while it is not its turn, on one PyTorch thread, as a second
one does not help networks so small. Its interpreter is `--sb3-python`; by default this one, if it has the package.

Goals: fedpohcs >= 0.6 of the c loop, >= 200 times `sb3, 1 env` and >= 30 times `sb3, 16 env` (medians of the ratios of
each turn). Without a C compiler there is no c loop.
"""

import importlib.util
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from _common import (
    Figure,
    Goal,
    argument_parser,
    benchmark_config,
    installed_version,
    interleaved_rates,
    machine_facts,
    median_ratio,
    write_results,
)
from _limits import C_LOOP, Training, client_rows, with_limit

OURS = "fedpohcs"
PEERS: dict[str, dict[str, Any]] = {
    "sb3, 1 env": {"num_envs": 1},
    "sb3, 16 env": {"num_envs": 16},
    "sb3 light, 1 env": {"num_envs": 1, "batch_size": 128, "n_epochs": 1},
    "sb3 light, 16 env": {"num_envs": 16, "batch_size": 128, "n_epochs": 1},
}
GOALS = {"sb3, 1 env": Goal(">=", 200, "times"), "sb3, 16 env": Goal(">=", 30, "times")}
LIMIT_GOAL = Goal(">=", 0.6, "")
QUICK_ROLLOUT = 128  # steps per environment, instead of the default


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--sb3-python", help="interpreter that has stable_baselines3 and gymnasium")
    parser.add_argument("--worker", action="store_true", help="answer on standard output as the peer")
    arguments = parser.parse_args()
    if arguments.worker:
        serve_peer(arguments.quick)
    else:
        compare(arguments.sb3_python or default_interpreter(), arguments.quick)


def default_interpreter() -> str | None:
    return sys.executable if importlib.util.find_spec("stable_baselines3") else None


def compare(interpreter: str | None, quick: bool) -> None:
    facts = machine_facts()
    contenders = our_contenders(quick)
    peer = None
    if interpreter:
        peer = Peer(interpreter, quick)
        facts["versions"] |= {"sb3_and_torch": peer.ask("versions")}
        contenders |= {name: peer.contender(name) for name in PEERS}
    else:
        print("No Stable-Baselines3: python -m venv sb3 && sb3/bin/pip install stable-baselines3, then --sb3-python")
    rates = interleaved_rates(contenders, repetitions=2 if quick else 7)
    if peer:
        peer.close()
    write_results("training", facts, headline(rates), {"steps_per_second": rates}, quick=quick)


def our_contenders(quick: bool) -> dict[str, Callable[[], int]]:
    """The executor, and the limit."""
    import numpy as np

    from fedpohcs.execution.devices import configure_jax

    config = benchmark_config(quick=quick)
    configure_jax(config.groups)
    from fedpohcs.execution.in_process import InProcessExecutor

    executor = InProcessExecutor(config, record=False)
    params = executor.initial_params()
    clients = np.linspace(0, config.federation.num_clients - 1, config.federation.num_selected).astype(int)
    rows = client_rows(executor.world, executor.state.filters)[clients]
    contenders: dict[str, Callable[[], int]] = {OURS: lambda: int(executor.train(params, 0, clients).steps.sum())}
    with_limit(contenders, lambda: Training(executor.learner, params, rows))
    return contenders


class Peer:
    """The other process: asked with one line, it answers with one."""

    def __init__(self, interpreter: str, quick: bool) -> None:
        command = [interpreter, __file__, "--worker", *(["--quick"] if quick else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: str) -> str:
        assert self._process.stdin and self._process.stdout
        print(question, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("the Stable-Baselines3 process ended early")
        return answer

    def contender(self, name: str) -> Callable[[], int]:
        return lambda: int(self.ask(name))

    def close(self) -> None:
        self._process.communicate()


def serve_peer(quick: bool) -> None:
    """For every name on standard input, train once more with the model of that name and print the steps taken."""
    import torch

    torch.set_num_threads(1)
    models: dict[str, Any] = {}
    for line in sys.stdin:
        name = line.strip()
        if name == "versions":
            print(installed_version("stable-baselines3"), installed_version("torch"), flush=True)
            continue
        model = models.get(name) or make_peer_model(**PEERS[name], quick=quick)
        models[name] = model
        before = model.num_timesteps
        model.learn(model.n_steps * model.n_envs, reset_num_timesteps=False)
        print(model.num_timesteps - before, flush=True)


def make_peer_model(num_envs: int, quick: bool, **settings: Any) -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    if quick:
        settings["n_steps"] = QUICK_ROLLOUT
    environments = make_vec_env("MountainCarContinuous-v0", n_envs=num_envs, seed=0)
    return PPO("MlpPolicy", environments, seed=0, device="cpu", verbose=0, **settings)


def headline(rates: dict[str, list[float]]) -> list[Figure]:
    figures = [Figure(name, statistics.median(values), "steps/s") for name, values in rates.items()]
    for name in (name for name in PEERS if name in rates):
        ratio = median_ratio(rates[OURS], rates[name])
        figures.append(Figure(f"{OURS} / {name}", ratio, "times", GOALS.get(name)))
    if C_LOOP in rates:
        figures.append(Figure(f"{OURS} / {C_LOOP}", median_ratio(rates[OURS], rates[C_LOOP]), "", LIMIT_GOAL))
    return figures


if __name__ == "__main__":
    main()
