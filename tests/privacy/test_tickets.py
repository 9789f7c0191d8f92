"""Lottery tickets: clients that draw themselves, in proportion to a number that they do not send."""

import math

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.execution.private import run_parameters
from fedpohcs.privacy.client import PrivateClient
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.server import read_scalar

EMPTY = WeightedAdvantage(np.empty(0, np.uint64), np.empty(0))


def client_with(uniform) -> PrivateClient:
    identity = Ed25519PrivateKey.generate()
    members = {0: identity.public_key().public_bytes_raw()}
    client = PrivateClient(0, run_parameters(preset("tabular")), identity, members)
    client.prepare(b"", EMPTY, uniform)
    return client


def ticket(client: PrivateClient, value: float) -> float:
    return read_scalar(client.ticket(value), 0, ProtectionConfig())


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
        client_with(lambda: 0.5).ticket(value)
