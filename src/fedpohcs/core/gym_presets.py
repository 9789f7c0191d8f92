"""Registered Gymnasium environments as named federations of eight clients whose physics differ.

Client 0 has the usual physics. The quantity that the others vary is in `worlds.physics`. docs/how-to/gymnasium.md says
what was measured with each preset.
"""

from dataclasses import replace
from typing import Any

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.presets import gym
from fedpohcs.core.scenario import scenario_class

LONG_HORIZON = {"local_iterations": 4, "discount": 0.999, "gae_discount": 0.98}
"""Of landers, whose reward comes at the end of an episode of some hundred steps."""


def cart_pole(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """CartPole-v1 with poles of different length."""
    return _federation("CartPole-v1", level, selector, rounds=10)


def acrobot(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """Acrobot-v1 with outer links of different mass."""
    return _federation("Acrobot-v1", level, selector, rounds=15)


def pendulum(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """Pendulum-v1 under different gravity."""
    return _federation("Pendulum-v1", level, selector, rounds=20, discount=0.9)


def mountain_car(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """MountainCar-v0 with engines of different force.

    Observations are filtered: the speed of a car is below 0.07, too small for a network to notice beside its position.
    """
    return _federation("MountainCar-v0", level, selector, rounds=20, filter_observations=True)


def mountain_car_continuous(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """MountainCarContinuous-v0 with engines of different power; observations are filtered, as in `mountain_car`.

    A large entropy bonus in the first rounds makes actions extreme, until some cars arrive. Without it a policy that
    never sees the goal learns not to move, because effort costs.
    """
    return _federation(
        "MountainCarContinuous-v0",
        level,
        selector,
        rounds=12,
        filter_observations=True,
        entropy_coefficient=1.0,
        entropy_decay_rounds=4,
    )


def lunar_lander(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """LunarLander-v3 under different gravity."""
    return _federation("LunarLander-v3", level, selector, rounds=15, **LONG_HORIZON)


def lunar_lander_continuous(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """LunarLanderContinuous-v3 under different gravity."""
    return _federation("LunarLanderContinuous-v3", level, selector, rounds=15, **LONG_HORIZON)


def bipedal_walker(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """BipedalWalker-v3 under different gravity."""
    return _federation("BipedalWalker-v3", level, selector, rounds=100, learning_rate=3e-4)


def hopper(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """Hopper-v5 under different gravity."""
    return _federation("Hopper-v5", level, selector, rounds=50, learning_rate=3e-4)


def walker(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """Walker2d-v5 under different gravity."""
    return _federation("Walker2d-v5", level, selector, rounds=50, learning_rate=3e-4)


def half_cheetah(level: str = "varied", selector: str = "fedpohcs") -> ExperimentConfig:
    """HalfCheetah-v5 under different gravity; one episode of 1000 steps per local iteration.

    Discounts are RL Zoo's. With two local iterations of three episodes, as in `gym`, the return was still below 0 after
    192,000 steps.
    """
    return _federation(
        "HalfCheetah-v5",
        level,
        selector,
        rounds=12,
        filter_observations=True,
        local_iterations=6,
        steps_per_iteration=999,
        discount=0.98,
        gae_discount=0.92,
    )


def _federation(env: str, level: str, selector: str, rounds: int, **learner: Any) -> ExperimentConfig:
    """The preset `gym` with this environment, and what differs from its learner."""
    config, settings = gym(level, selector), {"env": env}
    return replace(
        config,
        rounds=rounds,
        scenario=scenario_class("gym", settings)(**settings),
        federation=FederationConfig(num_clients=8, num_candidates=8, num_selected=4),
        learner=replace(config.learner, **learner),
    )
