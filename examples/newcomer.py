"""A newcomer's walk: your own Gymnasium environment, one policy for all clients, exported, and used with NumPy alone.

Run it in its folder: python newcomer.py
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np

NUM_ROOMS = 6
ROUNDS = 8


# Step 1: the environment, and how clients differ.
class Room(gymnasium.Env):
    """A room with a heat pump. The goal is 20 degrees; the reward is minus the squared error in tens of degrees."""

    observation_space = gymnasium.spaces.Box(-60.0, 60.0, (2,))  # degrees inside and outside
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))  # full cooling to full heating
    steps_per_episode = 48

    def __init__(self, leak: float) -> None:
        """`leak` is the share of the difference to the outside that is lost per step."""
        self.leak = leak

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.inside, self.outside = self.np_random.uniform(10, 30), self.np_random.uniform(-10, 30)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        power = float(np.clip(action, -1, 1)[0])
        self.inside += 3 * power - self.leak * (self.inside - self.outside)
        self.steps += 1
        return self.observe(), -(((self.inside - 20) / 10) ** 2), False, self.steps == self.steps_per_episode, {}

    def observe(self) -> np.ndarray:
        return np.array([self.inside, self.outside], np.float32)


def make_room(client: int) -> gymnasium.Env:
    """The room of one client; rooms with a higher id are insulated worse."""
    return Room(leak=0.02 + 0.1 * client / (NUM_ROOMS - 1))


# Step 2: train one policy for all rooms.
def train(folder: Path, rounds: int = ROUNDS) -> list[float]:
    """Write the run to `folder` and return the mean return after every round; round 0 is before training."""
    from dataclasses import replace

    from fedpohcs import FederationConfig, GymConfig, preset, run_experiment

    config = preset("gym", selector="fedavg")
    config = replace(
        config,
        scenario=GymConfig(env="newcomer:make_room"),  # this file, found because it is run from its folder
        rounds=rounds,
        federation=FederationConfig(NUM_ROOMS, num_candidates=4, num_selected=2, evaluation_episodes=5),
        learner=replace(config.learner, local_iterations=2, steps_per_iteration=960, hidden_sizes=(32, 32)),
    )
    return run_experiment(config, folder).mean_returns


# Step 3: export the best policy of the run, for NumPy and for any ONNX runtime.
def export(run: Path) -> tuple[Path, Path]:
    """Write both files beside the run."""
    from fedpohcs.runs.export import export_policy

    files = run.with_suffix(".npz"), run.with_suffix(".onnx")
    for file in files:
        export_policy(f"{run}@best", file)
    return files


# Step 4: act on a device. It needs NumPy and one file of this package, fedpohcs/runs/policy.py, and no JAX.
def act(file: Path, room: gymnasium.Env, client: int | None = None, seed: int = 0) -> float:
    """Play one episode with the exported policy and return the sum of the rewards.

    `client` is the id of a room that took part. None stands for a room that never trained.
    """
    from fedpohcs.runs.policy import load_policy

    policy = load_policy(file)
    (observation, _), total, ended = room.reset(seed=seed), 0.0, False
    while not ended:
        observation, reward, terminated, truncated, _ = room.step(policy.act(observation, client))
        total, ended = total + reward, terminated or truncated
    return total


def main(folder: Path) -> tuple[list[float], Path, Path]:
    """All four steps."""
    returns = train(folder / "rooms")
    print(f"mean return of {NUM_ROOMS} rooms: {returns[0]:.1f} before training, {max(returns):.1f} in the best round")
    arrays, graph = export(folder / "rooms")
    print(f"exported: {arrays} and {graph}")
    print(f"room 3 with NumPy alone: {act(arrays, make_room(3), client=3):.1f}")
    print(f"a room that never trained: {act(arrays, Room(leak=0.15)):.1f}")
    return returns, arrays, graph


if __name__ == "__main__":  # worker processes import this file and must not train
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/newcomer"))
