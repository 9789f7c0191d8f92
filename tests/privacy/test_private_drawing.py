"""Members that draw among themselves, in proportion to numbers that the server does not see."""

import struct
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

pytest.importorskip("cryptography")

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.types import CandidateMetrics
from fedpohcs.privacy.choice import LARGEST, Choice, choose, common_coin, draw
from fedpohcs.privacy.client import RANKED
from fedpohcs.privacy.messages import Kind, Message, pack_rows, parse
from fedpohcs.privacy.sealing import seal
from fedpohcs.privacy.terms import Ask, Invitation, Parameters
from fedpohcs.server.selection import Question
from fedpohcs.server.selection.checks import make_selector
from fedpohcs.server.selection.sampling import inclusion_probabilities
from privacy.federation import IDS, POLICY, RUN, Federation, only

NUMBERS = {0: 1.0, 1: 2.0, 2: 5.0, 3: 3.0, 4: 0.5, 5: 30.0}
WEIGHTS = (1.0, 1.4, 1.0, 1.0, 1.0, 1.0)
K = 3


def drawing(numbers: dict[int, float] = NUMBERS, config: ProtectionConfig = IDS, **ask: Any) -> Federation:
    size = len(numbers)
    ask = {"form": "number", "prefers": "proportional", "num_selected": K, "weights": WEIGHTS[:size], **ask}
    federation = Federation(size, config, **ask).start()
    federation.numbers = dict(numbers)
    return federation


def sealed(number: float, *nonce: float) -> bytes:
    return b"\1" + struct.pack("<f2d", number, *nonce)


def central(numbers: dict[int, float], weights: tuple[float, ...], number: int, coin: int) -> Choice:
    """What the selector draws in the clear with the same coin; weights relative to the smallest."""
    clients = np.array(sorted(numbers))
    question = Question(clients, number, len(weights), np.array(weights), np.random.default_rng(coin))
    metrics = CandidateMetrics(clients, {"return_gradient": np.array([numbers[n] for n in clients.tolist()])})
    selection, _ = make_selector("gradient-sampling").select(question, metrics, None)
    weight = np.zeros(len(selection.client)) if selection.weight is None else selection.weight
    return Choice(tuple(selection.client.tolist()), tuple((weight / min(weight[weight > 0], default=1.0)).tolist()))


@given(st.dictionaries(st.integers(0, 17), st.floats(0, 1e6, width=32), min_size=1), st.integers(1, 18), st.integers(0))
def test_the_choice_is_that_of_drawing_in_the_clear_with_the_same_coin(
    numbers: dict[int, float], number: int, coin: int
) -> None:
    weights = tuple(1 + n / 40 for n in range(18))
    ask = Ask(num_selected=number, weights=weights, form="number", prefers="proportional")
    ours = draw(numbers, Parameters("masked", RUN, ProtectionConfig(score_bits=24), ask), coin)
    theirs = central(numbers, weights, number, coin)
    assert ours.clients == theirs.clients
    np.testing.assert_allclose(ours.weights, np.minimum(theirs.weights, LARGEST), rtol=2**-22)


def test_a_draw_is_made_of_the_sealed_numbers_and_the_nonces_of_all() -> None:
    federation = drawing(config=replace(IDS, score_bits=8))
    outcome = federation.select(4)
    values = {n: b"\1" + party.ledger.answers[4, RANKED] for n, party in federation.clients.items()}
    assert [struct.unpack("<f", value[1:5])[0] for value in values.values()] == [*NUMBERS.values()]
    assert len({value[5:] for value in values.values()}) == 6
    expected = central(NUMBERS, WEIGHTS, K, common_coin(values, 4))
    assert outcome.chosen == expected.clients
    np.testing.assert_allclose(outcome.weights, expected.weights, rtol=2**-8)


def test_inclusion_frequencies_are_those_of_central_drawing() -> None:
    """By a chi-square test of 300 rounds of the protocol."""
    federation, rounds, times = drawing(), 300, np.zeros(6)
    for number in range(rounds):
        times[list(federation.select(number).chosen or ())] += 1
    expected = inclusion_probabilities(np.array(WEIGHTS) * [*NUMBERS.values()], K)
    assert expected[5] == 1 == times[5] / rounds
    below = expected[:5]  # given K draws, counts vary less than multinomial ones, so this test errs to the safe side
    assert chisquare(times[:5], rounds * below).pvalue > 0.01


def test_pairs_are_drawn_as_often_as_in_the_clear() -> None:
    parameters, generator = drawing().parameters, np.random.default_rng(0)
    ours, theirs = Counter(), Counter()
    for number in range(3000):
        values = {n: sealed(v, *generator.random(2)) for n, v in NUMBERS.items()}
        ours.update(combinations(choose(values, parameters, number).clients, 2))
        theirs.update(combinations(central(NUMBERS, WEIGHTS, K, int(generator.integers(2**62))).clients, 2))
    for pair in combinations(range(6), 2):
        gap = abs(ours[pair] - theirs[pair]) / 3000
        assert gap < 4 * np.sqrt(max(ours[pair], 25) * 2) / 3000


def test_the_weighted_choice_is_right_on_average() -> None:
    """Horvitz and Thompson: the mean of weights over their sum is each share, also where a client is always drawn."""
    parameters, total, generator = (
        drawing(config=replace(IDS, score_bits=16)).parameters,
        np.zeros(6),
        np.random.default_rng(1),
    )
    for number in range(3000):
        choice = choose({n: sealed(v, *generator.random(2)) for n, v in NUMBERS.items()}, parameters, number)
        total[list(choice.clients)] += np.array(choice.weights) / sum(choice.weights)
    size = np.array(WEIGHTS) * [*NUMBERS.values()]
    np.testing.assert_allclose(total / 3000, size / size.sum(), atol=0.01)


def test_weights_are_equal_unless_a_client_is_always_drawn_and_then_it_counts_for_its_size() -> None:
    """5 of 6 clients of size 1, and one of size 10: it takes one of 3 places, and two places stand for 5 clients."""
    numbers = dict.fromkeys(range(6), 1.0)
    assert drawing(numbers, weights=(1.0,) * 6).select().weights == (1.0, 1.0, 1.0)
    outcome = drawing(numbers | {0: 10.0}, config=replace(IDS, score_bits=8), weights=(1.0,) * 6).select()
    assert outcome.weights == (4.0, 1.0, 1.0)
    assert outcome.chosen is not None and outcome.chosen[0] == 0


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_client_without_a_number_is_not_drawn_and_the_others_are(number: float) -> None:
    federation = drawing(NUMBERS | {5: number})
    for round_number in range(20):
        chosen = federation.select(round_number).chosen
        assert chosen is not None and len(chosen) == K and 5 not in chosen


def test_numbers_that_are_not_positive_are_drawn_alike_and_weigh_nothing() -> None:
    federation, times = drawing({n: -float(n) for n in range(6)}, weights=(1.0,) * 6), np.zeros(6)
    for number in range(200):
        outcome = federation.select(number)
        times[list(outcome.chosen or ())] += 1
        assert outcome.weights == (0.0, 0.0, 0.0)
    np.testing.assert_allclose(times / 200, 0.5, atol=0.15)


def test_a_number_of_any_size_fits_into_a_message() -> None:
    outcome = drawing(NUMBERS | {5: 1e300, 4: 1e-300}).select()
    assert 5 in (outcome.chosen or ()) and max(outcome.weights) < np.inf


def test_without_any_number_there_is_no_choice() -> None:
    assert drawing(dict.fromkeys(range(6), np.nan)).select().problem == "too few candidates agree on a choice"


# Attacks on the draw


def test_the_server_cannot_foresee_a_draw_from_all_that_it_knows() -> None:
    """Session, policy, cohort and even the numbers may be the same: the nonces differ, and with them the choice."""
    numbers = dict.fromkeys(range(6), 1.0)
    choices = {drawing(numbers, weights=(1.0,) * 6).select(7).chosen for _ in range(12)}
    assert len(choices) > 3


def test_a_draw_shows_the_server_no_number_and_no_nonce() -> None:
    federation = drawing()
    federation.select()
    sent = b"".join(federation.messages)
    for party in federation.clients.values():
        value = party.ledger.answers[0, RANKED]
        assert value[:4] not in sent or value[:4] in struct.pack("<3f", 1.0, 2.0, 0.5)  # bytes of weights and ids
        assert value[4:12] not in sent and value[12:] not in sent
    lengths = {(parse(m).kind, len(m)) for m in federation.messages if parse(m).kind in (Kind.LEVELS, Kind.CHOICE)}
    assert lengths == {(Kind.LEVELS, 20 + 5 * 41), (Kind.CHOICE, 20 + K * 8 + 64)}


def test_a_member_that_chooses_its_nonce_gains_nothing() -> None:
    """Client 4 sends the same nonce every time: one honest nonce makes the coin random."""
    federation, times = drawing(), 0
    federation.clients[4]._nonce = lambda: bytes(16)  # type: ignore[method-assign]
    for number in range(200):
        times += 4 in (federation.select(number).chosen or ())
    expected = inclusion_probabilities(np.array(WEIGHTS) * [*NUMBERS.values()], K)[4]
    assert times / 200 == pytest.approx(expected, abs=4 * np.sqrt(expected / 200))


def test_a_member_that_seals_other_values_for_some_changes_no_choice() -> None:
    """Client 1 shows clients 4 and 5 another nonce: these two compute another choice, and two thirds do not."""
    federation, truth = drawing(), {}

    def equivocate(client: int, message: bytes) -> bytes:
        header = parse(message)
        if client != 1 or header.kind != Kind.LEVELS:
            return message
        liar, context = (
            federation.clients[1],
            Invitation(number, federation.cohort()).context(federation.server._session, POLICY),
        )
        truth.update(
            {n: b"\1" + party.ledger.answers[number, RANKED] for n, party in federation.clients.items() if n == 1}
        )
        rows = []
        for n in (0, 2, 3, 4, 5):
            value = truth[1] if n < 4 else truth[1][:5] + bytes(16)
            rows.append((n, seal(liar._keys_of(federation.cohort(), context)[n].seal, 1, value)))
        return Message(Kind.LEVELS, 1, header.tag, pack_rows("I37s", rows)).to_bytes()

    federation.up, disagreed = equivocate, 0
    for number in range(10):
        outcome = federation.select(number)
        values = {n: b"\1" + party.ledger.answers[number, RANKED] for n, party in federation.clients.items()}
        assert outcome.chosen == choose(values, federation.parameters, number).clients
        lie = choose({**values, 1: values[1][:5] + bytes(16)}, federation.parameters, number).clients
        disagreed += lie != outcome.chosen
    assert disagreed > 3


@pytest.mark.parametrize("changed", [(0, 1, 2), (0, 1, 2, 3, 4, 5)])
def test_a_weight_that_two_thirds_did_not_sign_does_not_count(changed: tuple[int, ...]) -> None:
    federation = drawing()

    def heavier(message: bytes) -> bytes:
        header = parse(message)
        body = header.body[:8] + struct.pack("<f", 9.0) + header.body[12:]  # the weight of the first client
        return Message(Kind.CHOICE, header.client, header.tag, body).to_bytes()

    federation.up = only(Kind.CHOICE, heavier, *changed)
    assert federation.select().problem == "too few candidates agree on a choice"
    assert len(federation.server.refusals) == (6 if len(changed) == 6 else 0)  # of the common list all are checked


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_a_signed_weight_that_is_no_weight_is_refused(weight: float) -> None:
    federation = drawing()

    def sign(client: int, message: bytes) -> bytes:
        header = parse(message)
        if header.kind != Kind.CHOICE:
            return message
        context = Invitation(0, federation.cohort()).context(federation.server._session, POLICY)
        choice = Choice((0, 1, 2), (1.0, weight, 1.0))
        body = choice.body() + federation.clients[client]._identity.sign(choice.signed(context))
        return Message(Kind.CHOICE, client, header.tag, body).to_bytes()

    federation.up = sign
    assert federation.select().problem == "too few candidates agree on a choice"
    assert "the list of client 0 is no choice of 3 candidates" in federation.server.refusals


@pytest.mark.parametrize(("kind", "lost"), [(Kind.INVITATION, (3,)), (Kind.BALLOT, ())])
def test_a_member_that_is_lost_leaves_no_choice_before_the_ballots_and_the_same_choice_after(
    kind: Kind, lost: tuple[int, ...]
) -> None:
    federation = drawing()
    federation.down = only(kind, lambda message: None, 3)
    outcome = federation.select()
    assert outcome.lost == lost and (outcome.chosen is None) == bool(lost)
    values = {
        n: b"\1" + p.ledger.answers[0, RANKED] for n, p in federation.clients.items() if (0, RANKED) in p.ledger.answers
    }
    if not lost:
        assert outcome.chosen == choose(values, federation.parameters, 0).clients


def test_a_round_that_comes_again_has_the_numbers_and_the_coin_it_had() -> None:
    """A server that could have the coin tossed again would learn from each choice."""
    federation, choices = drawing(), set()
    for _ in range(8):
        choices.add(federation.select(4).chosen)
        federation.start()
    assert len(choices) == 1
