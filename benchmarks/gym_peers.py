"""The presets `gym/NAME` beside PPO of Stable-Baselines3 with RL Zoo's settings. For docs/how-to/gymnasium.md.

    python benchmarks/gym_peers.py --folder FOLDER --presets CartPole-v1,Acrobot-v1

For each preset and seed the federation is trained first. Then Stable-Baselines3 is trained on single environments with
the usual physics, with as many steps as the federation made in training. Both are evaluated alike: 10 episodes of
client 0, actions drawn. The share that is printed is how much of the peer's improvement over the untrained federation
the federation reached. Environments that would take hours have a smaller budget, for both: see BUDGETS.

FOLDER holds the run folders, the peer's results, and a Python environment of its own for the peer, which is made when
it is missing. What is there already is not trained again, and an interrupted run goes on. docs/data/gym.csv gets the
curves of what is complete. `--part` does one part alone: processes that train side by side must not collect.
"""

import csv
import json
import math
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _common import HERE

CURVES = HERE.parent / "docs" / "data" / "gym.csv"
COLUMNS = ("preset", "library", "seed", "steps", "mean_return", "min_return", "usual_return")
PACKAGES = (["torch==2.13.0"], ["stable-baselines3", "gymnasium[box2d,mujoco,classic-control]"])
EPISODES = 10
EVALUATIONS = 20  # of the peer, spread evenly over its steps

LANDER = {"n_envs": 16, "n_steps": 1024, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01}
CLASSIC = {"normalize": True, "n_envs": 16, "n_epochs": 4, "gamma": 0.99}
MUJOCO = {"normalize": True, "n_steps": 512, "net": {"log_std_init": -2, "ortho_init": False, "width": 256}}


class Budget(NamedTuple):
    """What is trained of a preset."""

    rounds: int | None = None  # None: those of the preset
    evaluation_every: int = 1  # of the federation, in rounds
    peer_steps: int | None = None  # None: those of the federation


BUDGETS = {
    # ten epochs for every 8 steps: a quarter of an hour for the steps of the federation
    "MountainCarContinuous-v0": Budget(peer_steps=60_000),
    "LunarLanderContinuous-v3": Budget(rounds=8),
    "Hopper-v5": Budget(rounds=16, evaluation_every=8),
    "Walker2d-v5": Budget(rounds=10, evaluation_every=5),
    "HalfCheetah-v5": Budget(evaluation_every=6),
}
PARTS = ("all", "federation", "peer", "collect")

RL_ZOO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        **{"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20},
        **{"learning_rate": "linear 0.001", "clip_range": "linear 0.2"},
    },
    "Acrobot-v1": {**CLASSIC, "n_steps": 256, "gae_lambda": 0.94},
    "Pendulum-v1": {
        **{"n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "learning_rate": 1e-3},
        **{"use_sde": True, "sde_sample_freq": 4},
    },
    "MountainCar-v0": {**CLASSIC, "n_steps": 16, "gae_lambda": 0.98},
    "MountainCarContinuous-v0": {
        **{"normalize": True, "n_envs": 1, "n_steps": 8, "batch_size": 256, "gae_lambda": 0.9, "gamma": 0.9999},
        **{"n_epochs": 10, "learning_rate": 7.77e-5, "clip_range": 0.1, "ent_coef": 0.00429, "max_grad_norm": 5},
        **{"vf_coef": 0.19, "use_sde": True, "net": {"log_std_init": -3.29, "ortho_init": False}},
    },
    "LunarLander-v3": LANDER,
    "LunarLanderContinuous-v3": LANDER,
    "BipedalWalker-v3": {
        **{"normalize": True, "n_envs": 32, "n_steps": 2048, "gae_lambda": 0.95, "gamma": 0.999, "n_epochs": 10},
        **{"learning_rate": 3e-4, "clip_range": 0.18},
    },
    "Hopper-v5": {
        **MUJOCO,
        **{"batch_size": 32, "gae_lambda": 0.99, "gamma": 0.999, "n_epochs": 5, "learning_rate": 9.80828e-5},
        **{"ent_coef": 0.00229519, "max_grad_norm": 0.7, "vf_coef": 0.835671},
    },
    "Walker2d-v5": {
        **MUJOCO,
        **{"batch_size": 32, "gae_lambda": 0.95, "gamma": 0.99, "n_epochs": 20, "learning_rate": 5.05041e-5},
        **{"ent_coef": 0.000585045, "max_grad_norm": 1, "vf_coef": 0.871923, "clip_range": 0.1},
    },
    "HalfCheetah-v5": {
        **MUJOCO,
        **{"batch_size": 64, "gae_lambda": 0.92, "gamma": 0.98, "n_epochs": 20, "learning_rate": 2.0633e-5},
        **{"ent_coef": 0.000401762, "max_grad_norm": 0.8, "vf_coef": 0.58096, "clip_range": 0.1},
    },
}
"""RL Zoo's settings of PPO; those of the walkers are for earlier versions of the same environments."""


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for run folders and the peer's environment")
    parser.add_argument("--presets", default=",".join(RL_ZOO), help="names of environments, joined by commas")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--part", default="all", choices=PARTS)
    parser.add_argument("--peer", help="of the peer's own process: settings as JSON")
    arguments = parser.parse_args()
    if arguments.peer:
        train_peer(**json.loads(arguments.peer))
        return
    for name in arguments.presets.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            compare(arguments, name, seed)
    if arguments.part in ("all", "collect"):
        print_shares()


def compare(arguments: Namespace, name: str, seed: int) -> None:
    """Train both, as far as that is not done and asked for, and add their curves to the data."""
    run, result = arguments.folder / "runs" / name / f"seed-{seed}", arguments.folder / "peer" / f"{name}-{seed}.json"
    if arguments.part in ("all", "federation"):
        train_federation(run, name, seed)
    if arguments.part in ("all", "peer") and not result.exists():
        steps = BUDGETS.get(name, Budget()).peer_steps or federation_curve(run, name, seed)[-1]["steps"]
        start_peer(arguments.folder, {"env": name, "seed": seed, "steps": steps, "result": str(result)})
    if arguments.part in ("all", "collect") and (run / "policy.npz").is_file() and result.is_file():
        peer = [
            {"preset": f"gym/{name}", "library": "stable-baselines3", "seed": seed, "steps": steps, "usual_return": x}
            for steps, x in json.loads(result.read_text())
        ]
        store(name, seed, [*federation_curve(run, name, seed), *peer])


def train_federation(run: Path, name: str, seed: int) -> None:
    """Train the preset within its budget, or what is missing of that."""
    from dataclasses import replace

    from fedpohcs import load_run, preset
    from fedpohcs.cli.grid import complete_run
    from fedpohcs.runs.layout import is_run

    budget, config = BUDGETS.get(name, Budget()), preset(f"gym/{name}")
    federation = replace(config.federation, evaluation_every=budget.evaluation_every)
    config = replace(config, seed=seed, rounds=budget.rounds or config.rounds, federation=federation)
    if is_run(run) and load_run(run).config != config:
        sys.exit(f"{run} was trained with other settings than gym/{name} has now. Remove it, and the peer's result.")
    complete_run(run, config)


def federation_curve(run: Path, name: str, seed: int) -> list[dict[str, Any]]:
    """Steps in training, and returns over all clients and of client 0, after every evaluated round."""
    from fedpohcs import load_run

    stored = load_run(run)
    columns = (
        stored.rounds["train_steps"].cumsum(),
        *(stored.rounds[column] for column in ("mean_return", "min_return")),
        stored.client_returns[:, 0],
    )
    rows = [
        (f"gym/{name}", "fedpohcs", seed, int(steps), *map(float, rest)) for steps, *rest in zip(*columns, strict=True)
    ]
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows if not math.isnan(row[-1])]


def start_peer(folder: Path, task: dict[str, Any]) -> None:
    """Train the peer in a process with its own packages."""
    Path(task["result"]).parent.mkdir(parents=True, exist_ok=True)
    command = [peer_python(folder), __file__, "--folder", folder, "--peer", json.dumps(task)]
    subprocess.run(list(map(str, command)), check=True)


def peer_python(folder: Path) -> Path:
    """The Python of the peer's environment, made if it is missing."""
    python = folder / "peer-environment" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
        for packages in PACKAGES:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def train_peer(env: str, seed: int, steps: int, result: str) -> None:
    """Train Stable-Baselines3 and write [steps, mean return] of its evaluations."""
    import torch  # pyright: ignore[reportMissingImports]  these are in the peer's environment alone
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.vec_env import VecNormalize  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    settings = dict(RL_ZOO[env])
    num_envs, normalised, net = settings.pop("n_envs", 1), settings.pop("normalize", False), settings.pop("net", {})
    for name in ("learning_rate", "clip_range"):
        if isinstance(settings.get(name), str):
            start = float(settings[name].split()[1])
            settings[name] = lambda remaining, start=start: remaining * start
    if width := net.pop("width", None):
        net = {**net, "activation_fn": torch.nn.ReLU, "net_arch": {"pi": [width] * 2, "vf": [width] * 2}}
    training = make_vec_env(env, num_envs, seed=seed)
    watched = make_vec_env(env, EPISODES, seed=10_000 + seed)
    if normalised:
        training = VecNormalize(training, gamma=settings["gamma"])
    model = PPO("MlpPolicy", training, seed=seed, device="cpu", policy_kwargs=net, **settings)
    curve = [(0, evaluated(model, watched))]
    model.learn(steps, callback=lambda *_: watch(model, watched, steps, curve))
    if curve[-1][0] < steps:
        curve.append((model.num_timesteps, evaluated(model, watched)))
    Path(result).write_text(json.dumps(curve))


def watch(model: Any, watched: Any, steps: int, curve: list[tuple[int, float]]) -> bool:
    """Evaluate where it is due, at most so often that the last evaluation comes after the last update."""
    if model.num_timesteps - curve[-1][0] >= steps / EVALUATIONS and model.num_timesteps < steps:
        curve.append((model.num_timesteps, evaluated(model, watched)))
    return True


def evaluated(model: Any, watched: Any) -> float:
    """Mean return of one episode in each of the watched environments, with drawn actions."""
    normalise = model.get_vec_normalize_env()
    observation, returns, running = watched.reset(), [0.0] * EPISODES, [True] * EPISODES
    while any(running):
        seen = normalise.normalize_obs(observation) if normalise else observation
        action = model.predict(seen, deterministic=False)[0]
        observation, reward, done, _ = watched.step(action)
        for lane in range(EPISODES):
            returns[lane] += float(reward[lane]) * running[lane]
            running[lane] = running[lane] and not done[lane]
    return statistics.mean(returns)


def store(name: str, seed: int, rows: list[dict[str, Any]]) -> None:
    """Replace the rows of one preset and seed; sorted, so that the order of training does not matter."""
    old = [row for row in read(CURVES) if (row["preset"], row["seed"]) != (f"gym/{name}", str(seed))]
    order = list(RL_ZOO)
    shown = [{key: f"{x:.2f}" if isinstance(x, float) else str(x) for key, x in row.items()} for row in rows]
    ranked = sorted(
        [*old, *shown],
        key=lambda row: (order.index(row["preset"][4:]), row["library"], int(row["seed"]), int(row["steps"])),
    )
    with CURVES.open("w", newline="") as file:
        writer = csv.DictWriter(file, list[str](COLUMNS), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(ranked)


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def print_shares() -> None:
    """The table of docs/how-to/gymnasium.md: returns after the last step, and the share of the peer's improvement."""
    rows = read(CURVES)
    print("\n| " + " | ".join(HEADINGS) + " |\n" + "| --- " * len(HEADINGS) + "|")
    for name in dict.fromkeys(row["preset"] for row in rows):
        ours, peer = ([row for row in rows if (row["preset"], row["library"]) == (name, x)] for x in LIBRARIES)
        print("| " + " | ".join(summary(name, ours, peer)) + " |")


def summary(name: str, ours: list[dict[str, str]], peer: list[dict[str, str]]) -> Iterator[str]:
    """A row of the table."""
    start = statistics.mean(float(row["usual_return"]) for row in ours if row["steps"] == "0")
    own, others = last(ours, "usual_return"), last(peer, "usual_return")
    trained, trained_peer = (round(statistics.mean(last(rows, "steps")), -3) for rows in (ours, peer))
    same = math.isclose(trained, trained_peer, rel_tol=0.02)
    yield from (f"`{name}`", str(len(own)))
    yield f"{trained:,.0f}" if same else f"{trained:,.0f}; peer {trained_peer:,.0f}"
    yield from (shown(start), spread(own), spread(others))
    yield f"{(statistics.mean(own) - start) / (statistics.mean(others) - start):.0%}".replace("%", " %")
    yield from (spread(last(ours, column)) for column in ("mean_return", "min_return"))


HEADINGS = ("Preset", "Seeds", "Steps", "Client 0 untrained", "Client 0", "Stable-Baselines3", "Share")
HEADINGS += ("Mean of eight clients", "Worst client")
LIBRARIES = ("fedpohcs", "stable-baselines3")


def last(rows: list[dict[str, str]], column: str) -> list[float]:
    """The value of each seed after the last step."""
    return list({row["seed"]: float(row[column]) for row in rows}.values())  # rows are sorted by steps


def spread(values: list[float]) -> str:
    return f"{shown(statistics.mean(values))} ({shown(min(values))} to {shown(max(values))})"


def shown(value: float) -> str:
    return f"{value:.0f}".replace("-", "\N{MINUS SIGN}")


if __name__ == "__main__":
    main()
