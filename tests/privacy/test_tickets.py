"""Lottery tickets: clients that draw themselves, in proportion to a number that they do not send."""

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.presets import preset
from fedpohcs.privacy.client import PrivateClient
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.server import read_scalar
from fedpohcs.privacy.terms import run_parameters
from privacy.federation import IDS, Federation


def client_with(uniform) -> PrivateClient:
    identity = Ed25519PrivateKey.generate()
    members = {0: identity.public_key().public_bytes_raw()}
    config = replace(preset("tabular"), rounds=20_000, protection=ProtectionConfig(release="scores"))
    client = PrivateClient(0, run_parameters(config), identity, members)
    client.prepare(b"", uniform=uniform)
    return client


def ticket(client: PrivateClient, value: float) -> float:
    """A new ticket; a client draws one in a round."""
    number = client.ledger.latest + 1
    return read_scalar(client.number(number, "return_gradient", value, ticket=True), 0, ProtectionConfig())


def test_a_ticket_is_the_logarithm_of_a_waiting_time_worked_by_hand() -> None:
    """u = 1 - 1/e waits for the time 1 at rate 1, and for 1/8 at rate 8; tickets have eight significant bits."""
    client = client_with(lambda: 1 - 1 / math.e)
    assert ticket(client, 1.0) == pytest.approx(0, abs=1e-9)
    assert ticket(client, 8.0) == pytest.approx(-math.log(8), rel=2**-8)


def test_the_smallest_ticket_is_in_proportion_to_the_number() -> None:
    generator = np.random.default_rng(0)
    client = client_with(generator.random)
    values, times = [1.0, 2.0, 5.0], np.zeros(3)
    for _ in range(4000):
        times[np.argmin([ticket(client, value) for value in values])] += 1
    np.testing.assert_allclose(times / 4000, np.array(values) / 8, atol=0.03)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_number_that_is_not_positive_buys_the_worst_ticket(value: float) -> None:
    client = client_with(lambda: 0.0)
    assert ticket(client, value) > 500 > ticket(client, 1e-300)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_ticket_is_sent_for_a_number_that_is_not_finite(value: float) -> None:
    with pytest.raises(RefusedError):
        ticket(client_with(lambda: 0.5), value)


def test_a_round_has_one_ticket_however_often_it_is_asked_for() -> None:
    """Whoever averages many tickets of one number learns the number."""
    client = client_with(np.random.default_rng(0).random)
    assert len({client.number(7, "return_gradient", 2.0, ticket=True) for _ in range(50)}) == 1


def test_sealed_tickets_choose_k_clients_in_proportion_to_weight_times_number() -> None:
    """Of one: with probabilities q_n v_n over their sum."""
    numbers, weights = {0: 1.0, 1: 2.0, 2: 5.0}, (1.0, 1.4, 1.0)
    federation = Federation(3, IDS, form="ticket", prefers="low", num_selected=1, weights=weights).start()
    federation.numbers, times = numbers, np.zeros(3)
    for number in range(400):
        chosen = federation.select(number).chosen
        assert chosen is not None and len(chosen) == 1
        times[chosen[0]] += 1
    expected = np.array([1.0, 2.8, 5.0])
    np.testing.assert_allclose(times / 400, expected / expected.sum(), atol=0.08)
