"""Draws are named by seed, purpose, round and client: a draw of another name is another draw."""

import itertools

import jax
import numpy as np
import pytest

from fedpohcs.core.randomness import Purpose, device_key, host_generator

NAMES = list(itertools.product((0, 1), (Purpose.TRAINING, Purpose.SHUFFLING), (0, 1), (0, 1)))


def test_every_name_has_numbers_of_its_own_on_the_host() -> None:
    drawn = {name: tuple(host_generator(*name).integers(2**62, size=4)) for name in NAMES}
    assert len(set(drawn.values())) == len(NAMES)
    assert drawn == {name: tuple(host_generator(*name).integers(2**62, size=4)) for name in reversed(NAMES)}


def test_every_seed_purpose_and_round_has_a_key_of_its_own_on_the_device() -> None:
    names = {name[:3] for name in NAMES}
    keys = {tuple(jax.random.key_data(device_key(*name)).tolist()) for name in names}
    assert len(keys) == len(names)


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**63 + 5])
def test_draws_are_those_of_numpy_and_jax_for_the_same_name(seed: int) -> None:
    name = (seed, Purpose.SHUFFLING, 3, 2**31)
    host = np.random.default_rng([*name, 1]).bit_generator.state
    assert host_generator(*name, 1).bit_generator.state == host
    if seed < 2**63:  # more is refused by JAX
        device = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), Purpose.EVALUATION), 9)
        assert (jax.random.key_data(device_key(seed, Purpose.EVALUATION, 9)) == jax.random.key_data(device)).all()


@pytest.mark.parametrize(
    ("purpose", "number"), [(Purpose.CANDIDATES, 1), (Purpose.SHUFFLING, 4), (Purpose.EVALUATION, 5)]
)
def test_the_numbers_of_purposes_are_part_of_the_results_and_stay(purpose: Purpose, number: int) -> None:
    assert purpose == number
    assert len({int(one) for one in Purpose}) == len(Purpose)
