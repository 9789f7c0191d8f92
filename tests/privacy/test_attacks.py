"""Attacks on private selection: a server that follows no rules, members that help it, members that lie.

docs/privacy.md has the figures of these attacks before there were plans and ledgers.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpohcs.privacy import masking
from fedpohcs.privacy.choice import Choice
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.ledger import MAX_SESSIONS
from fedpohcs.privacy.messages import HEADER, Kind, Message, pack_rows, parse
from fedpohcs.privacy.sealing import seal
from fedpohcs.privacy.sketch import count_sketch, sketch_seed
from fedpohcs.privacy.terms import Invitation
from privacy.federation import IDS, POLICY, RUN, SMALL, Federation, make_table, only


def answered(federation: Federation, client: int, message: bytes) -> bytes | None:
    """What a client says to any message of the server; None if it refuses."""
    try:
        return federation.clients[client].answer(message)
    except RefusedError:
        return None


def cohorts_with(client: int, num_clients: int) -> list[tuple[int, ...]]:
    ids = range(num_clients)
    found = itertools.chain.from_iterable(itertools.combinations(ids, size) for size in range(1, num_clients + 1))
    return [cohort for cohort in found if client in cohort]


def test_a_server_gets_one_sum_for_a_table_whatever_it_asks() -> None:
    """It asks for all 128 cohorts with client 1 in each of 12 sessions, before and after the honest question."""
    federation, sums, refused = Federation(8), set(), 0
    for session in range(12):
        try:
            federation.start()
        except RefusedError:
            refused += 1
            continue
        federation.prepare()
        for cohort in reversed(cohorts_with(0, 8)) if session % 2 else cohorts_with(0, 8):
            if answered(federation, 0, federation.invitation(0, 3, cohort)) is not None:
                sums.add(cohort)
    assert sums == {tuple(range(8))}
    assert refused == 2 == 12 - MAX_SESSIONS


@pytest.mark.parametrize("release", ["ids", "scores"])
def test_a_later_session_gets_no_answer_about_another_policy_or_an_earlier_round(release: Any) -> None:
    federation = Federation(config=replace(SMALL, release=release)).start()
    federation.select(4)
    federation.start()
    federation.prepare(bytes(32))
    assert answered(federation, 0, federation.invitation(0, 4)) is None
    federation.prepare()
    assert answered(federation, 0, federation.invitation(0, 3)) is None
    assert answered(federation, 0, federation.invitation(0, 4)) is not None


def test_a_run_that_goes_on_gets_the_answer_it_had_and_no_fresh_noise() -> None:
    federation = Federation(config=replace(SMALL, epsilon=0.5)).start()
    scores = [federation.select(4).scores]
    for _ in range(MAX_SESSIONS - 1):
        federation.start()
        scores.append(federation.select(4).scores)
    assert scores[0] and all(later == scores[0] for later in scores)


def test_no_answer_comes_after_the_last_round_of_the_plan() -> None:
    federation = Federation(rounds=3).start()
    assert [bool(federation.select(number).scores) for number in range(5)] == [True, True, True, False, False]
    assert "the plan has only 3 rounds" in federation.refusals


def test_a_server_and_a_member_do_not_find_the_table_of_another() -> None:
    """Their best estimate of another's sketch is the mean of all others. With weights of dust it was exact."""
    federation, errors = Federation(18, num_selected=6).start(), []
    federation.prepare()
    for number in range(12):
        federation.messages.clear()
        federation.select(number)
        messages = [parse(message) for message in federation.messages]
        total = next(message.body for message in messages if message.kind == Kind.TOTAL)
        invitation, spy = Invitation(number, federation.cohort(number)), federation.clients[0]
        context = invitation.context(spy._session, POLICY)
        slots = federation.parameters.num_slots
        mean = federation.parameters.fixed_point.decode(spy._secret_sum().read(total, context, invitation.cohort))
        sketches = [count_sketch(t, sketch_seed(RUN, number), slots) for t in federation.tables.values()]
        others = (18 * mean - sketches[0]) / 17
        np.testing.assert_allclose(others, np.mean(sketches[1:], axis=0), atol=1e-6)  # what T3 is told
        errors += [np.linalg.norm(others - one) / np.linalg.norm(one) for one in sketches[1:]]
    assert min(errors) > 0.5


def test_a_refused_total_ends_the_round() -> None:
    """A server that may try totals one after the other learns something from each refusal."""
    federation = Federation().start()
    federation.prepare()
    uploads = {c: answered(federation, c, federation.invitation(c)) for c in federation.clients}
    bodies = {c: parse(upload or b"") for c, upload in uploads.items()}
    total = masking.add_uploads([message.body for message in bodies.values()], federation.parameters.num_slots)
    tag = bodies[1].tag
    wrong = bytes([total[0] ^ 1]) + total[1:]
    assert answered(federation, 1, Message(Kind.TOTAL, 1, tag, wrong).to_bytes()) is None
    assert answered(federation, 1, Message(Kind.TOTAL, 1, tag, total).to_bytes()) is None
    assert answered(federation, 2, Message(Kind.TOTAL, 2, tag, total).to_bytes()) is not None
    assert answered(federation, 2, Message(Kind.TOTAL, 2, tag, total).to_bytes()) is None


def sealed_levels(federation: Federation, number: int = 0) -> tuple[bytes, dict[int, dict[int, bytes]]]:
    """The tag of a round, and what members have sealed: where a server begins that wants more than one choice."""
    federation.messages.clear()
    federation.down = only(Kind.BALLOT, lambda message: None, *federation.clients)
    federation.select(number)
    levels = [parse(message) for message in federation.messages if parse(message).kind == Kind.LEVELS]
    assert len(levels) == len(federation.clients)
    rows = {m.client: [m.body[p : p + 25] for p in range(4, len(m.body), 25)] for m in levels}
    return levels[0].tag, {c: {int.from_bytes(row[:4], "little"): row[4:] for row in own} for c, own in rows.items()}


def ballot(tag: bytes, levels: dict[int, dict[int, bytes]], to: int, of: list[int]) -> bytes:
    body = pack_rows("I21s", ((sender, levels[sender][to]) for sender in of if sender != to))
    return Message(Kind.BALLOT, to, tag, body).to_bytes()


def test_members_choose_once_and_among_all_so_that_ballots_do_not_show_the_order() -> None:
    """Six members with a choice of ballots could tell the server the best two of any four: the whole order."""
    federation, everyone = Federation(config=IDS).start(), list(range(6))
    tag, levels = sealed_levels(federation)
    for to in everyone:
        if to < 3:
            of = [c for c in everyone if c != (to + 1) % 6]
            assert answered(federation, to, ballot(tag, levels, to, of)) is None
        else:
            assert answered(federation, to, ballot(tag, levels, to, everyone)) is not None
        assert answered(federation, to, ballot(tag, levels, to, everyone)) is None  # a second ballot


def test_a_sealed_value_of_another_round_or_sender_is_refused() -> None:
    federation, everyone = Federation(config=IDS).start(), list(range(6))
    _, old = sealed_levels(federation, 0)
    tag, levels = sealed_levels(federation, 1)
    assert answered(federation, 1, ballot(tag, {**levels, 2: old[2]}, 1, everyone)) is None
    assert answered(federation, 3, ballot(tag, {**levels, 2: levels[4]}, 3, everyone)) is None


def test_a_member_cannot_speak_for_another_member() -> None:
    """It knows the group key and its own pair keys; a value of client 3 for client 2 takes the key of those two."""
    federation, everyone = Federation(config=IDS).start(), list(range(6))
    tag, levels = sealed_levels(federation)
    spy, context = federation.clients[0], Invitation(0, federation.cohort()).context(federation.server._session, POLICY)
    for key in (spy._member().group_key, spy._pair_key(1), spy._pair_key(2)):
        forged = {**levels[2], 1: seal(masking.round_keys(key, context).seal, 2, b"\1\0\0\0\0")}
        assert answered(federation, 1, ballot(tag, {**levels, 2: forged}, 1, everyone)) is None
        federation = Federation(config=IDS).start()
        tag, levels = sealed_levels(federation)


def test_what_the_server_sees_where_ids_are_released_does_not_depend_on_the_scores() -> None:
    """Two worlds with the same choice: every message has the same kind and length, and no clear bytes but ids."""
    seen = []
    for scale in (1.0, 1.001):
        federation = Federation(4, IDS, num_selected=4).start()
        federation.tables = {c: make_table(c, scale=0.1 * scale**c) for c in federation.clients}
        assert federation.select().chosen == (0, 1, 2, 3)
        seen.append([(parse(m).kind, parse(m).client, len(m)) for m in federation.messages])
    assert seen[0] == seen[1]
    assert Kind.SCORE not in {kind for kind, _, _ in seen[0]}


def sign_another_choice(federation: Federation, liar: int) -> Any:
    """The reply of a member that signs a choice of its own."""

    def lie(message: bytes) -> bytes:
        header = parse(message)
        context = Invitation(0, federation.cohort()).context(federation.server._session, POLICY)
        choice = Choice((liar, 5) if liar < 5 else (0, liar), (1.0, 1.0))
        signature = federation.clients[liar]._identity.sign(choice.signed(context))
        return Message(Kind.CHOICE, liar, header.tag, choice.body() + signature).to_bytes()

    return lie


def test_up_to_a_third_of_false_choices_change_nothing() -> None:
    right = Federation(config=IDS).start().select().chosen
    federation = Federation(config=IDS).start()
    lies = {liar: sign_another_choice(federation, liar) for liar in (0, 1, 2)}

    def lie(client: int, message: bytes) -> bytes:
        return lies[client](message) if client in liars and parse(message).kind == Kind.CHOICE else message

    federation.up, liars = lie, {0, 1}
    assert federation.select().chosen == right
    federation.start()
    liars = {0, 1, 2}
    assert federation.select().problem == "too few candidates agree on a choice"


def test_a_choice_that_the_server_made_up_or_a_member_did_not_sign_does_not_count() -> None:
    federation = Federation(config=IDS).start()
    federation.up = only(Kind.CHOICE, lambda message: message[:-1] + bytes([message[-1] ^ 1]), 0, 1, 2)
    assert federation.select().problem == "too few candidates agree on a choice"
    assert "the list of client 0 is not signed by it" in federation.server.refusals


@pytest.mark.parametrize("kind", [Kind.UPLOAD, Kind.LEVELS, Kind.CHOICE])
def test_a_member_that_sends_garbage_cannot_change_the_choice(kind: Kind) -> None:
    right = Federation(config=IDS).start().select().chosen
    federation = Federation(config=IDS).start()
    generator = np.random.default_rng(0)

    def garbage(message: bytes) -> bytes:
        return message[: HEADER.size + 8] + generator.bytes(len(message) - HEADER.size - 8)

    federation.up = only(kind, garbage, 4)
    assert federation.select().chosen in (None, right)


def test_epsilon_is_spent_however_often_it_is_asked_for() -> None:
    """4,000 questions, of which a client answers as many as its total allows; the rest is the same or nothing."""
    config = replace(SMALL, epsilon=1.0, total_epsilon=5.0, scalar_limit=100.0)
    federation = Federation(config=config, form="number").start()
    client = federation.clients[0]
    client.prepare(POLICY)
    seen = set()
    for question in range(4000):
        try:
            seen.add((question // 4, client.number(question // 4, "mean_return", 42.0)))
        except RefusedError as reason:
            assert str(reason) == "epsilon is spent"
    assert len(seen) == 5


def test_a_client_that_has_spent_its_epsilon_takes_part_in_sums_and_is_not_chosen() -> None:
    config = replace(IDS, epsilon=50.0, total_epsilon=50.0)
    federation = Federation(config=config, num_selected=3).start()
    for client in (0, 2, 4):
        federation.clients[client].ledger.answer(0, "", lambda: bytes(4))
    assert federation.select(1).chosen == (1, 3, 5)


def test_a_single_number_is_never_sent_in_the_clear_where_ids_are_released() -> None:
    federation = Federation(config=IDS, form="number").start()
    federation.prepare()
    with pytest.raises(RefusedError, match="sealed"):
        federation.clients[0].number(0, "mean_return", 1.0)


def test_a_number_that_is_not_finite_abstains_and_the_others_choose() -> None:
    federation = Federation(config=IDS, form="number", prefers="low").start()
    federation.numbers = {0: 5.0, 1: np.nan, 2: 3.0, 3: 4.0, 4: np.inf, 5: 9.0}
    assert federation.select().chosen == (2, 3)


def test_equal_values_go_to_the_lower_id() -> None:
    federation = Federation(config=IDS, form="number", prefers="high", num_selected=3).start()
    federation.numbers = dict.fromkeys(range(6), 1.0) | {4: 2.0}
    assert federation.select().chosen == (0, 1, 4)
