"""Worlds of published tables: their steps follow the tables, and their populations are those of the levels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.worlds import make_world
from fedpohcs.worlds.kernels import UP, perturbed_chains, random_mdps, windy_cliffs
from fedpohcs.worlds.tables import PerturbedKernels, PerturbedKernelsConfig, RandomMDPs, RandomMDPsConfig, WindyCliffs

DRAWS = 20_000


def frequencies(world, client: int, state: int, action: int, num_states: int) -> tuple[np.ndarray, float]:
    """Shares of the next states, and the reward."""
    own = jax.tree.map(lambda x: x[client], world.population)
    noise = (np.arange(DRAWS, dtype=np.float32)[:, None] + 0.5) / DRAWS  # evenly spread: frequencies without variance
    moved = jax.vmap(lambda u: world.step(jnp.int32(state), jnp.int32(action), u, own))(noise)
    assert not np.asarray(moved.terminated).any()
    return np.bincount(np.asarray(moved.state), minlength=num_states) / DRAWS, float(moved.reward[0])


@pytest.mark.parametrize(("client", "state", "action"), [(0, 0, 0), (2, 3, 4), (1, 4, 2)])
def test_random_mdps_move_and_pay_by_their_tables(client: int, state: int, action: int) -> None:
    world, tables = RandomMDPs("medium", 3), random_mdps(3, heterogeneity=0.6)
    shares, reward = frequencies(world, client, state, action, 5)
    np.testing.assert_allclose(shares, tables.transitions[client, state, action], atol=2 / DRAWS)
    np.testing.assert_allclose(reward, tables.rewards[state, action], rtol=1e-6)


def test_cliffs_move_and_pay_by_their_tables_and_start_at_the_bottom_left() -> None:
    world, tables = WindyCliffs("high", 3), windy_cliffs([0.0, 0.5, 1.0])
    shares, reward = frequencies(world, 2, 5, UP, 16)
    np.testing.assert_allclose(shares, tables.transitions[2, 5, UP], atol=2 / DRAWS)
    assert reward == -1
    assert frequencies(world, 0, 3, UP, 16)[1] == 100
    own = jax.tree.map(lambda x: x[0], world.population)
    for uniform in (0.0, 0.5, 0.999):
        state, seen = world.reset(jnp.array([uniform]), own)
        assert int(state) == 0
        np.testing.assert_array_equal(seen, np.eye(16)[0])


def test_starts_of_random_mdps_are_uniform() -> None:
    world = RandomMDPs("high", 1)
    own = jax.tree.map(lambda x: x[0], world.population)
    noise = (np.arange(1000, dtype=np.float32)[:, None] + 0.5) / 1000
    states, seen = jax.vmap(lambda u: world.reset(u, own))(noise)
    np.testing.assert_array_equal(np.bincount(states), [200] * 5)
    np.testing.assert_array_equal(np.argmax(seen, axis=-1), states)


@pytest.mark.parametrize("action", [0, 7, 99])
def test_perturbed_kernels_shift_the_next_state_and_show_its_class_only(action: int) -> None:
    settings = PerturbedKernelsConfig(reward_noise=0.5)
    world = PerturbedKernels("medium", 2, settings=settings)
    tables = perturbed_chains(2, transition_noise=0.5, reward_noise=0.5)
    shares, reward = frequencies(world, 1, 42, action, 100)
    np.testing.assert_allclose(shares, tables.transitions[1, 42, action], atol=2 / DRAWS)
    np.testing.assert_allclose(reward, tables.rewards[1, 42, action], rtol=1e-6)
    own = jax.tree.map(lambda x: x[1], world.population)
    moved = world.step(jnp.int32(42), jnp.int32(action), jnp.array([0.3]), own)
    np.testing.assert_array_equal(moved.observation, np.eye(5)[int(moved.state) % 5])


def test_levels_and_settings_choose_the_tables() -> None:
    def rows(world) -> np.ndarray:
        return np.asarray(world.population.following)

    assert (rows(RandomMDPs("none", 3)) == rows(RandomMDPs("none", 3))[:1]).all()
    assert (rows(RandomMDPs("low", 3)) != rows(RandomMDPs("low", 3))[:1]).any()
    other = RandomMDPs("high", 3, settings=RandomMDPsConfig(tables_seed=1))
    assert (rows(other) != rows(RandomMDPs("high", 3))).any()
    apart = RandomMDPs("high", 3, settings=RandomMDPsConfig(orthogonal=True)).tables.transitions > 0
    common = random_mdps(1, heterogeneity=0.0, orthogonal=True).transitions > 0
    assert not (apart & common).any()
    own = PerturbedKernels("none", 3, settings=PerturbedKernelsConfig(transition_noise=0.5))
    np.testing.assert_array_equal(rows(own), rows(PerturbedKernels("medium", 3)))


def test_held_out_clients_leave_the_others_and_lie_between_or_beyond_them() -> None:
    for kind in (RandomMDPs, PerturbedKernels):
        few, more = kind("high", 2), kind("high", 2, 3)
        np.testing.assert_array_equal(more.population.following[:2], few.population.following)
        assert len(more.population.following) == 5
    assert WindyCliffs("none", 3).tables.transitions[0, 0, UP, 4] == 1 - 0.5 / 3
    beyond = WindyCliffs("low", 2, 2, placement="beyond").tables.transitions[:, 0, UP, 0]
    np.testing.assert_allclose(beyond * 3, [0.4, 0.6, 0.375, 0.625])
    between = WindyCliffs("high", 2, 1).tables.transitions[:, 0, UP, 0]
    np.testing.assert_allclose(between * 3, [0, 1, 0.5])


def test_no_wind_is_beyond_all_of_them() -> None:
    message = "federation.held_out_placement .*beyond.* has no winds to offer at the level 'high'"
    with pytest.raises(UserError, match=message):
        WindyCliffs("high", 5, 4, placement="beyond")


@pytest.mark.parametrize("name", ["random-mdps", "windy-cliffs", "perturbed-kernels"])
def test_presets_make_their_worlds_with_all_clients_selected(name: str) -> None:
    config = preset(name)
    world = make_world(config)
    federation = config.federation
    assert federation.num_selected == federation.num_candidates == federation.num_clients
    rows = len(jax.tree.leaves(world.population)[0])
    assert rows == federation.num_clients + federation.held_out_clients
