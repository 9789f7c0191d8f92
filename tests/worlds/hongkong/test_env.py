import numpy as np
import pytest

pytest.importorskip("libsumo")
pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env

from fedpohcs.worlds.hongkong.env import TrafficEnv
from fedpohcs.worlds.hongkong.settings import TrafficConfig


@pytest.mark.parametrize("area", ["central", "clear-water-bay"])
def test_gymnasium_finds_nothing_to_complain_about(area: str) -> None:
    env = TrafficEnv(area, TrafficConfig(horizon=60))
    try:
        check_env(env, skip_render_check=True)
    finally:
        env.close()


def test_the_horizon_truncates() -> None:
    env = TrafficEnv(config=TrafficConfig(horizon=7))
    try:
        env.reset(seed=0)
        flags = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(7)]
    finally:
        env.close()
    assert flags == [(False, False)] * 6 + [(False, True)]
