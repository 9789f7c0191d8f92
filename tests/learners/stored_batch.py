"""One small batch with everything that a local iteration reads, for JAX in float32 and for NumPy in float64.

The batch is stored, because later versions of NumPy may draw other random numbers. `make` computed it, and
`PYTHONPATH=src:tests python tests/learners/stored_batch.py` writes it again.

Two lanes of 40 rows hold 67 steps of seven episodes, of which four terminate and three reach the time limit of 12
steps. The other 13 rows are padding. Padding, and the observation after a terminal step, hold very large numbers, so
that a result that uses them is far off.
"""

import itertools
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from learners import numpy_ppo
from learners.reference import (
    AgentParams,
    Dense,
    Filters,
    Moments,
    OptimiserState,
    PolicyParams,
    PPOConfig,
    Schedule,
    Trajectory,
    float32,
    init_optimisers,
    optimisers_at,
)

PATH = Path(__file__).parent / "data" / "batch.npz"
KINDS = {"gaussian": 2, "categorical": 4}
"""Kinds of actions, and how many numbers the policy puts out."""

# Every limit is active for some samples and inactive for others; test_equality checks that.
SETTINGS = PPOConfig(
    hidden_sizes=(5, 4),
    epochs=2,
    critic_epochs=3,
    batch_size=28,  # 67 steps: the last minibatch has 11
    momentum=0.8,
    max_gradient_norm=0.5,
    discount=0.9,
    gae_discount=0.7,
    importance_cap=1.1,
    clip_range=0.05,
    kl_target=0.01,
    critic_learning_rate=0.01,
    observation_clip=1.5,
    reward_clip=2.0,
)
SCHEDULE = Schedule(float32(0.05), float32(0.02))  # neither is the default of the config


class Case(NamedTuple):
    """What the program takes."""

    params: AgentParams
    moved: PolicyParams  # another policy, for losses away from where they start
    filters: Filters
    optimisers: OptimiserState
    trajectory: Trajectory
    shuffles: np.ndarray


class Twin(NamedTuple):
    """The same for NumPy."""

    agent: numpy_ppo.Agent
    moved: numpy_ppo.Network
    observed: numpy_ppo.Statistics
    rewarded: numpy_ppo.Statistics
    trajectory: Trajectory
    shuffles: np.ndarray


@cache
def stored() -> dict[str, np.ndarray]:
    with np.load(PATH) as arrays:
        return dict(arrays)


def numbered(name: str) -> list[np.ndarray]:
    """The arrays of a network, in order."""
    arrays = stored()
    return [arrays[key] for key in sorted(arrays) if key.rpartition("/")[0] == name]


def layers(flat: list[np.ndarray]) -> tuple[Dense, ...]:
    return tuple(Dense(*pair) for pair in zip(flat[::2], flat[1::2], strict=True))


def policy(flat: list[np.ndarray]) -> PolicyParams:
    return PolicyParams(layers(flat[:-1]), flat[-1])


def case(kind: str) -> Case:
    arrays = stored()
    params = AgentParams(policy(numbered(f"{kind}/policy")), layers(numbered("critic")), arrays["beta"])
    optimisers = optimisers_at(
        init_optimisers(SETTINGS, params),
        trace=policy(numbered(f"{kind}/velocity")),
        count=arrays["adam/count"],
        mu=layers(numbered("adam/first")),
        nu=layers(numbered("adam/second")),
    )
    return Case(
        params=params,
        moved=policy(numbered(f"{kind}/moved")),
        filters=Filters(Moments(*numbered("observed")), Moments(*numbered("rewarded"))),
        optimisers=optimisers,
        trajectory=Trajectory(
            arrays["observation"],
            arrays[f"{kind}/action"],
            arrays["reward"],
            arrays["status"],
            arrays["next_observation"],
        ),
        shuffles=arrays["shuffles"],
    )


def exact(arrays: list[np.ndarray]) -> list[Any]:
    return [x.astype(np.float64) for x in arrays]


def twin(kind: str) -> Twin:
    trajectory = case(kind).trajectory
    adam = numpy_ppo.Adam(int(stored()["adam/count"]), exact(numbered("adam/first")), exact(numbered("adam/second")))
    return Twin(
        agent=numpy_ppo.Agent(
            exact(numbered(f"{kind}/policy")),
            exact(numbered("critic")),
            float(stored()["beta"]),
            exact(numbered(f"{kind}/velocity")),
            adam,
        ),
        moved=exact(numbered(f"{kind}/moved")),
        observed=numpy_ppo.Statistics(*exact(numbered("observed"))),
        rewarded=numpy_ppo.Statistics(*exact(numbered("rewarded"))),
        trajectory=jax.tree.map(lambda x: x if x.dtype.kind == "i" else x.astype(np.float64), trajectory),
        shuffles=stored()["shuffles"],
    )


# Writing the batch


def random_network(generator: np.random.Generator, sizes: list[int]) -> list[np.ndarray]:
    flat = []
    for inputs, outputs in itertools.pairwise(sizes):
        flat += [generator.normal(0, inputs**-0.5, (inputs, outputs)), generator.normal(0, 0.2, outputs)]
    return flat


def near(generator: np.random.Generator, network: list[np.ndarray], spread: float) -> list[np.ndarray]:
    return [x + spread * generator.normal(size=x.shape) for x in network]


def some_statuses() -> np.ndarray:
    """[40, 2]: a lane of four episodes and one of three, with ends of both kinds, then padding."""
    ends = [[(9, 2), (12, 3), (8, 2), (3, 2)], [(12, 3), (11, 2), (12, 3)]]
    status = np.zeros((40, 2), np.int8)
    for lane, episodes in enumerate(ends):
        begin = 0
        for length, ending in episodes:
            status[begin : begin + length, lane] = 1
            status[begin + length - 1, lane] = ending
            begin += length
    return status


def make() -> dict[str, Any]:
    generator = np.random.default_rng(20)
    status = some_statuses()
    padding, ended = status == 0, status == 2
    observation = generator.normal([1.0, -2.0, 0.0], [2.0, 0.5, 1.0], (40, 2, 3))
    following = np.roll(observation, -1, axis=0) + generator.normal(0, 0.1, observation.shape)
    following[ended | padding] = 1e3
    observation[padding] = -1e3
    reward = np.where(padding, -500.0, generator.normal(1.0, 3.0, (40, 2)))
    observed = [np.array(50.0), np.array([0.8, -1.8, 0.1]), 50 * np.array([4.4, 0.2, 1.3])]
    networks = {"critic": random_network(generator, [3, 5, 4, 1])}
    networks["adam/first"] = near(generator, [0 * x for x in networks["critic"]], 0.1)
    networks["adam/second"] = [x**2 for x in near(generator, [0 * x for x in networks["critic"]], 0.1)]
    arrays = {
        "observation": observation,
        "next_observation": following,
        "reward": reward,
        "status": status,
        "beta": np.array(0.7),
        "adam/count": np.array(7, np.int32),
        "shuffles": generator.permuted(np.broadcast_to(np.arange(80, dtype=np.int32), (5, 80)), axis=-1),
    }
    seen = numpy_ppo.seen_observation(SETTINGS, numpy_ppo.Statistics(*observed), observation).reshape(80, 3)
    for kind, outputs in KINDS.items():
        log_std = np.array([-0.3, 0.2]) if kind == "gaussian" else np.zeros(0)
        own = [*random_network(generator, [3, 5, 4, outputs]), log_std]
        networks[f"{kind}/policy"] = own
        networks[f"{kind}/moved"] = near(generator, own, 0.3)
        networks[f"{kind}/velocity"] = near(generator, [0 * x for x in own], 0.1)
        arrays[f"{kind}/action"] = some_actions(generator, numpy_ppo.distribution(own, seen)).reshape(40, 2, -1)
    arrays["gaussian/action"][padding] = 1e3
    arrays["categorical/action"] = np.where(padding, 0, arrays["categorical/action"][..., 0])
    networks |= {"observed": observed, "rewarded": [np.array(50.0), np.array(1.2), np.array(50 * 8.0)]}
    arrays |= {f"{name}/{number}": x for name, flat in networks.items() for number, x in enumerate(flat)}
    return {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in arrays.items()}


def some_actions(generator: np.random.Generator, acting: Any) -> np.ndarray:
    if isinstance(acting, numpy_ppo.Normal):
        return acting.mean + np.exp(acting.log_std) * generator.normal(size=acting.mean.shape)
    return np.array([generator.choice(len(p), p=p) for p in acting.probability], np.int32)


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    np.savez_compressed(PATH, **make())
