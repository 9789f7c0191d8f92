"""Everything that is registered keeps its contract."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.core.config import from_dict
from fedpohcs.core.registries import AGGREGATORS, LEARNERS, METRICS, OPTIMISERS, SELECTORS, WORLDS
from fedpohcs.testing import (
    PROBES,
    check_aggregator,
    check_learner,
    check_metric,
    check_optimiser,
    check_probe,
    check_selector,
    check_world,
    quick_config,
)
from fedpohcs.testing.probes import Probe, played_values

NEEDS = {
    "hoppers": "mujoco",
    "half-cheetahs": "mujoco",
    "walkers": "mujoco",
    "hongkong": "libsumo",
    "gym": "gymnasium",
    "gymnax": "gymnax",
}
EXAMPLES = Path(__file__).parents[2] / "examples"
FEW = {"num_clients": 3, "num_candidates": 2, "num_selected": 1}
CONFIGS = {"gym": from_dict({"world": "gym", "level": "own", "env": "CartPole-v1", "federation": FEW})}


SLOW_KINDS = {"fedprox", "fedkl", "fmarl", "a2c", "npg", "trpo"}  # relatives of ppo; each takes 10 s or more
SLOW_KINDS |= {"dcpi", "ddpg", "td3"}  # relatives of dqn and sac
SLOW_KINDS |= {"gpomdp", "fedsvrpg-m", "mfpo", "fednpg-admm"}
SLOW_KINDS |= {"sarsa"}  # a relative of qavg


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW_KINDS)) for k in LEARNERS])
def test_a_learner_keeps_its_contract_and_solves_the_probes(kind: str) -> None:
    check_learner(kind)


def test_ppo_solves_the_probes_with_continuous_actions() -> None:
    for probe in PROBES:
        check_probe(quick_config("ppo"), probe, continuous=True)


@pytest.mark.parametrize("name", SELECTORS)
def test_a_selector_keeps_its_contract(name: str) -> None:
    check_selector(name)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_an_aggregator_keeps_its_contract(name: str) -> None:
    check_aggregator(name)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_server_optimiser_keeps_its_contract(name: str) -> None:
    check_optimiser(name)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_keeps_its_contract(name: str) -> None:
    check_metric(name)


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_keeps_its_contract(name: str) -> None:
    needed = NEEDS.get(name)
    if needed and find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    check_world(CONFIGS.get(name, name))


def test_a_fleet_of_unlike_poles_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    check_world(from_dict({"world": "gym", "level": "own", "env": "cartpoles:make_client", "federation": FEW}))


def test_known_values_of_a_probe_follow_from_its_rewards() -> None:
    assert PROBES["delayed"].best_values().tolist() == [0.5, 0.5, 1, 1]
    assert PROBES["observation"].best_values().tolist() == [-1, 1]
    assert PROBES["both"].best_choices() == [0, 1]
    late = Probe(((0.0, 4.0), (2.0, 0.0)), 2, "")
    assert late.best_values().tolist() == [2, 1, 4, 2]
    assert late.best_choices() == [None, None, 1, 0]
    assert played_values(late, np.array([0.5, 0.5, 0.5, 0.25])).tolist() == [1, 0.75, 2, 1.5]
