"""Returns that PPO of Stable-Baselines3 reaches on one environment, with as many steps as a preset `gym/NAME`.

It needs stable-baselines3, in an environment of its own, and nothing of this package:

    python -m venv peers && peers/bin/pip install stable-baselines3
    peers/bin/python benchmarks/gym_peers.py

Settings are those of RL Baselines3 Zoo, with its schedules over the steps given here. Steps are those that the stored
curves of docs/data/gym.csv took in training, all clients together. Policies are evaluated by 100 episodes with drawn
actions, as this package evaluates them, and by 100 with the most likely action. Beside them stands what client 0 of the
preset, which has the usual physics, reached at the end of the stored curves.
"""

import csv
import statistics
import sys
from importlib.util import find_spec
from typing import Any

from _common import HERE, Figure, argument_parser, machine_facts, write_results

STORED = HERE.parent / "docs" / "data" / "gym.csv"
EPISODES = 100


def settings_of(env: str) -> tuple[int, dict[str, Any]]:
    """Number of environments and keywords of `PPO`."""
    from stable_baselines3.common.utils import LinearSchedule

    def falling(start: float) -> Any:
        return LinearSchedule(start, 0.0, 1.0)

    return {
        "CartPole-v1": (
            8,
            {
                "n_steps": 32,
                "batch_size": 256,
                "gae_lambda": 0.8,
                "gamma": 0.98,
                "n_epochs": 20,
                "ent_coef": 0.0,
                "learning_rate": falling(1e-3),
                "clip_range": falling(0.2),
            },
        ),
        "Pendulum-v1": (
            4,
            {
                "n_steps": 1024,
                "gae_lambda": 0.95,
                "gamma": 0.9,
                "n_epochs": 10,
                "ent_coef": 0.0,
                "learning_rate": 1e-3,
                "clip_range": 0.2,
                "use_sde": True,
                "sde_sample_freq": 4,
            },
        ),
    }[env]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--envs", default="CartPole-v1,Pendulum-v1", help="registered ids, joined by commas")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0 on")
    arguments = parser.parse_args()
    if find_spec("stable_baselines3") is None:
        sys.exit("gym_peers: skipped, because stable-baselines3 is not installed; the script says how to get it")
    facts, figures, samples = machine_facts(), [], {}
    for env in arguments.envs.split(","):
        steps, ours = stored(env)
        seeds = range(1 if arguments.quick else arguments.seeds)
        reached = [trained_returns(env, 4096 if arguments.quick else steps, seed) for seed in seeds]
        samples[env] = {"steps": steps, "drawn and most likely": reached, "client 0": ours}
        for column, name in enumerate(("drawn", "most likely")):
            mean = statistics.mean(row[column] for row in reached)
            figures.append(Figure(f"{env}: Stable-Baselines3, {name} actions", mean, "return"))
        figures.append(Figure(f"{env}: client 0", statistics.mean(ours), "return"))
    write_results("gym_peers", facts, figures, samples, quick=arguments.quick)


def stored(env: str) -> tuple[int, list[float]]:
    """Training steps of a stored curve, and the final returns of client 0 by seed."""
    with STORED.open() as file:
        rows = [row for row in csv.DictReader(file) if row["preset"] == f"gym/{env}"]
    last = {row["seed"]: row for row in rows}  # rounds ascend
    return max(int(row["train_steps"]) for row in rows), [float(row["usual_return"]) for row in last.values()]


def trained_returns(env: str, steps: int, seed: int) -> tuple[float, float]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    count, settings = settings_of(env)
    model = PPO("MlpPolicy", make_vec_env(env, count, seed=seed), seed=seed, device="cpu", **settings)
    model.learn(steps)
    test = make_vec_env(env, 8, seed=1000 + seed)
    drawn, likely = (evaluate_policy(model, test, EPISODES, deterministic=greedy)[0] for greedy in (False, True))
    return float(drawn), float(likely)


if __name__ == "__main__":
    main()
