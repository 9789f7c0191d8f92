"""What every registered world must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.registries import WORLDS
from fedpohcs.worlds import make_world, world_class, world_levels
from fedpohcs.worlds.base import ContinuousActions, TracedWorld

TRACED = [name for name in WORLDS if issubclass(world_class(name), TracedWorld)]


def config(name: str, level: str, num_clients: int) -> ExperimentConfig:
    federation = FederationConfig(num_clients=num_clients, num_candidates=1, num_selected=1)
    return ExperimentConfig(world=name, level=level, federation=federation)


@pytest.mark.parametrize(("name", "level"), [(name, level) for name in TRACED for level in world_levels(name)])
def test_a_world_resets_and_steps_for_all_clients_at_once(name: str, level: str) -> None:
    world = make_world(config(name, level, 7))
    noise = jnp.full((7, world.reset_noise), 0.3)
    state, observation = jax.vmap(world.reset)(noise, world.population)
    continuous = isinstance(world.actions, ContinuousActions)
    action = jnp.zeros((7, world.actions.size)) if continuous else jnp.zeros(7, int)
    moved = jax.vmap(world.step)(state, action, jnp.full((7, world.step_noise), 0.3), world.population)
    assert observation.shape == moved.observation.shape == (7, world.observation_size)
    assert moved.reward.shape == moved.terminated.shape == (7,)
    assert np.isfinite(moved.observation).all()
    assert moved.terminated.dtype == bool


@pytest.mark.parametrize("name", TRACED)
def test_worlds_of_a_class_compare_equal_so_that_programs_are_shared(name: str) -> None:
    one, *_, other = (make_world(config(name, level, 3)) for level in world_levels(name))
    assert one == other
    assert hash(one) == hash(other)


def test_an_unknown_level_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"level \(='medum'\) is not known. Did you mean 'medium'\?"):
        make_world(config("mountain-cars", "medum", 3))


def test_identical_clients_at_level_none_and_independent_ones_at_high() -> None:
    same = make_world(config("tabular", "none", 3)).transitions
    apart = make_world(config("tabular", "high", 3)).transitions
    assert (same[0] == same[1]).all()
    assert np.abs(apart[0] - apart[1]).sum(axis=-1).max() > 0.5
    np.testing.assert_allclose(apart.sum(axis=-1), 1)
