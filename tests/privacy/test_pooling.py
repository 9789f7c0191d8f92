"""Sums that a server can read, of numbers that it cannot: what a client answers, and what it refuses."""

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.pooling import SCALE, WORD, Pledge, PoolingClient, make_roster, read_sum, roster_clients

NUMBERS = np.random.default_rng(0).normal(size=(5, 7)) * [1e6, 1e-3, 1, 1e12, -4, 0, 1e20]
IDENTITIES = [Ed25519PrivateKey.generate() for _ in range(5)]
MEMBERS = {client: identity.public_key().public_bytes_raw() for client, identity in enumerate(IDENTITIES)}


def party(client: int, name: bytes = b"run", least: int = 3) -> PoolingClient:
    return PoolingClient(client, name, IDENTITIES[client], MEMBERS, least)


def announced(clients: range | list[int]) -> tuple[dict[int, Pledge], bytes]:
    """What the clients keep, and the roster."""
    pairs = {client: party(client).announce(None) for client in clients}
    return {client: pledge for client, (pledge, _) in pairs.items()}, make_roster({c: x for c, (_, x) in pairs.items()})


def uploads(pledges: dict[int, Pledge], roster: bytes, round_number: int = 9) -> list[bytes]:
    return [party(n).upload(pledge, roster, round_number, NUMBERS[n].tolist())[1] for n, pledge in pledges.items()]


def test_the_server_reads_the_sum_and_nothing_from_fewer_uploads() -> None:
    sent = uploads(*announced(range(5)))
    np.testing.assert_allclose(read_sum(sent, 7), NUMBERS.sum(0), rtol=1e-12, atol=1e-11)
    for subset in (sent[:1], sent[:4], sent[1:]):
        read = np.abs(read_sum(subset, 7))
        assert (read > 2**60).sum() >= 6  # numbers of 128 bits, uniform, divided by 2**40


def test_every_sum_has_its_own_masks() -> None:
    pledges, roster = announced(range(3))
    kept, first = party(0).upload(pledges[0], roster, 4, [1.0])
    _, second = party(0).upload(kept, roster, 5, [1.0])
    difference = (int.from_bytes(first, "little") - int.from_bytes(second, "little")) % 2 ** (8 * WORD)
    assert min(difference, 2 ** (8 * WORD) - difference) > SCALE


def test_a_repeated_request_gets_the_same_bytes_even_if_the_numbers_have_changed() -> None:
    pledges, roster = announced(range(3))
    kept, first = party(1).upload(pledges[1], roster, 4, [1.0, 2.0])
    assert party(1).upload(kept, roster, 4, [3.0, 2.0]) == (kept, first)


@pytest.mark.parametrize("others", [[0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 3, 4]])
def test_a_client_is_never_in_sums_over_different_sets_of_clients(others: list[int]) -> None:
    pledges, _ = announced(range(5))
    everyone = {n: party(n).announce(pledge)[1] for n, pledge in pledges.items()}
    kept, _ = party(0).upload(pledges[0], make_roster({n: everyone[n] for n in range(4)}), 4, [1.0])
    with pytest.raises(RefusedError, match="was in a sum over others before: 0, 1, 2, 3"):
        party(0).upload(kept, make_roster({n: everyone[n] for n in others}), 5, [1.0])


def test_bad_rosters_are_refused() -> None:
    pledges, roster = announced(range(4))
    _, own = party(0).announce(pledges[0])
    stranger = Ed25519PrivateKey.generate()
    _, forged = PoolingClient(2, b"run", stranger, MEMBERS, 3).announce(None)
    _, other_run = party(2, b"another run").announce(None)
    _, another_key = party(0).announce(None)
    _, second = party(1).announce(pledges[1])
    bad = {
        "only 2 clients of at least 3": make_roster({0: own, 1: second}),
        "client 2 is not signed by it": make_roster({0: own, 1: second, 2: forged}),
        "of client 2 is not signed": make_roster({0: own, 1: second, 2: other_run}),
        "lacks this client's key": make_roster({0: another_key, 1: second, 2: party(2).announce(None)[1]}),
        "client 7 is not a member": make_roster({0: own, 1: second, 7: second}),
        "ends within a list": roster[:-1],
        "different clients in ascending order": roster + b"x",
    }
    for complaint, message in bad.items():
        with pytest.raises(RefusedError, match=complaint):
            party(0).upload(pledges[0], message, 4, [1.0])
    kept, _ = party(0).upload(pledges[0], roster, 4, [1.0])
    with pytest.raises(RefusedError, match="in a sum of round 4 before"):
        party(0).upload(kept, roster, 3, [1.0])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30])
def test_numbers_that_would_spoil_the_sum_are_not_sent(number: float) -> None:
    pledges, roster = announced(range(3))
    with pytest.raises(RefusedError, match="is not below"):
        party(0).upload(pledges[0], roster, 4, [number])


def test_answers_of_another_length_are_left_out() -> None:
    _, sound = party(3).announce(None)
    assert roster_clients(make_roster({1: b"", 2: sound + b"x", 3: sound})) == [3]
    with pytest.raises(RefusedError, match="wrong length"):
        read_sum([bytes(WORD)], 2)
