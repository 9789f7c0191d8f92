"""What the protocol computes, and what it refuses."""

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.privacy import masking
from fedpohcs.privacy.client import PrivateClient
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.messages import HEADER, Kind, Message, parse
from fedpohcs.privacy.server import Gathering
from fedpohcs.privacy.terms import Invitation, read_invitation
from privacy.federation import IDS, POLICY, SMALL, Federation, deliver, make_table, only


@pytest.fixture(autouse=True)
def repeatable_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keys from a seed, so that tests of chance cannot fail by chance."""
    generator = np.random.default_rng(0)
    monkeypatch.setattr(os, "urandom", generator.bytes)
    yield


@pytest.mark.parametrize("privacy", ["masked", "he"])
def test_scores_are_those_of_the_sketches_in_the_clear(privacy: str) -> None:
    if privacy == "he":
        pytest.importorskip("tenseal")
    federation = Federation(privacy=privacy, weights=(1.0, 1.1, 1.2, 1.3, 1.4, 1.5), num_candidates=5).start()
    for number in range(3):
        outcome = federation.select(number)
        assert not outcome.problem
        expected = federation.expected(number)
        assert outcome.scores.keys() == expected.keys()
        for client, score in outcome.scores.items():
            assert abs(score - expected[client]) < 1e-6


def test_everything_a_candidate_uploads_in_a_round_fits_its_words() -> None:
    config = ProtectionConfig()
    federation = Federation(5, config).start()
    federation.messages.clear()
    federation.select()
    sent = Counter[int]()
    for message in map(parse, federation.messages):
        if message.kind in (Kind.UPLOAD, Kind.SCORE):
            sent[message.client] += len(message.to_bytes())
    assert max(sent.values()) <= 4 * config.sketch_size == 2**16


@pytest.mark.parametrize("kind", [Kind.INVITATION, Kind.TOTAL, Kind.BALLOT])
def test_ids_alone_are_the_choice_by_scores(kind: Kind) -> None:
    """Also if a third of the lists does not come; one that is lost before that leaves the round without a choice."""
    federation = Federation(config=IDS).start()
    federation.down = only(kind, lambda message: None, 3)
    outcome = federation.select()
    best = sorted(federation.expected().items(), key=lambda row: -row[1])[:2]
    assert outcome.chosen == (tuple(sorted(c for c, _ in best)) if kind == Kind.BALLOT else None)
    assert not outcome.scores
    names = {Kind.INVITATION: "lost before the sum: client 3", Kind.TOTAL: "lost before the choice: client 3"}
    assert outcome.problem == names.get(kind, "")
    federation.down = deliver
    assert federation.select(1).chosen  # the next round is not harmed


def test_a_client_lost_before_its_upload_leaves_the_round_without_scores() -> None:
    federation = Federation().start()
    federation.down = only(Kind.INVITATION, lambda message: None, 2)
    assert federation.select() == ({}, None, (), "lost before the sum: client 2", (2,))
    federation.down = deliver
    assert len(federation.select(1).scores) == 6


def test_a_client_lost_after_its_upload_is_not_selectable_where_scores_are_released() -> None:
    federation = Federation().start()
    federation.down = only(Kind.TOTAL, lambda message: None, 3)
    outcome = federation.select()
    assert outcome.scores == pytest.approx({c: s for c, s in federation.expected().items() if c != 3}, abs=1e-6)


def test_candidates_outside_the_session_are_left_out_up_to_a_third() -> None:
    federation = Federation(9)
    federation.server.open_session(range(3, 9))
    assert federation.select().scores == pytest.approx(federation.expected(0, range(3, 9)), abs=1e-6)
    federation.server.open_session(range(4, 9))
    assert "only 5 candidates of at least 6" in federation.select(1).problem


def test_a_replayed_invitation_is_refused() -> None:
    federation = Federation().start()
    federation.prepare()
    invitation = federation.invitation(1)
    federation.clients[1].answer(invitation)
    with pytest.raises(RefusedError, match="answered before"):
        federation.clients[1].answer(invitation)


def test_an_earlier_round_is_refused() -> None:
    federation = Federation().start()
    federation.select(5)
    with pytest.raises(RefusedError, match="answered before"):
        federation.clients[1].answer(federation.invitation(1, 4))


def test_a_replayed_upload_is_counted_once_and_never_in_another_round() -> None:
    federation = Federation().start()
    federation.prepare()
    first, second = (gather(federation, number) for number in (0, 1))
    upload = federation.clients[1].answer(first.invitations()[1])
    first.take_upload(1, upload)
    for gathering, reason in ((first, "already"), (second, "context")):
        with pytest.raises(RefusedError, match=reason):
            gathering.take_upload(1, upload)
    with pytest.raises(RefusedError, match="of client 1,"):
        first.take_upload(2, upload)


@pytest.mark.parametrize(
    ("cohort", "reason"),
    [
        ((0, 1), "only 2 members"),
        ((0, 2, 3, 4, 5), "not in the cohort"),
        ((0, 1, 2, 99), "not in the roster"),
        ((1, 0, 2), "ascending"),
        ((0, 1, 1, 2), "different clients"),
        ((0, 1, 2, 3, 4), "not the one that the plan draws"),
    ],
)
def test_an_invitation_against_the_rules_is_refused(cohort: tuple[int, ...], reason: str) -> None:
    federation = Federation().start()
    federation.prepare()
    with pytest.raises(RefusedError, match=reason):
        federation.clients[1].answer(federation.invitation(1, cohort=cohort))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_table_that_is_not_finite_is_never_uploaded_and_its_client_is_left_out(value: float) -> None:
    federation = Federation().start()
    federation.tables[2].value[7] = value
    assert federation.select().problem == "lost before the sum: client 2"
    assert any("not finite" in refusal for refusal in federation.refusals)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.9), "much more or much less"),
        ((1.0, 1.0, 1.0, 1.0, 1.0, 0.4), "much more or much less"),
        ((0.505, 0.505, 0.505, 1.495, 1.495, 1.495), ""),
        ((0.6, 1.0, 1.0, 1.0, 1.0, 1.4), ""),
    ],
)
def test_a_plan_in_which_one_member_is_nearly_the_mean_is_refused(weights: tuple[float, ...], reason: str) -> None:
    """The scores of the others would then tell how far they are from that one."""
    federation = Federation(weights=weights).start()
    outcome = federation.select()
    assert bool(outcome.scores) == (not reason)
    assert not reason or all(reason in refusal for refusal in federation.refusals)


def drop(uploads: list[bytes]) -> list[bytes]:
    return uploads[1:]


def double(uploads: list[bytes]) -> list[bytes]:
    return [*uploads, uploads[0]]


def swap(uploads: list[bytes]) -> list[bytes]:
    return [uploads[1], *uploads[1:]]


def flip_top_bit(uploads: list[bytes]) -> list[bytes]:
    altered = bytearray(uploads[0])
    altered[4 * 20 + 3] ^= 0x80
    return [bytes(altered), *uploads[1:]]


def flip_low_bit(uploads: list[bytes]) -> list[bytes]:
    return [bytes([uploads[0][0] ^ 1]) + uploads[0][1:], *uploads[1:]]


@pytest.mark.parametrize("tamper", [drop, double, swap, flip_top_bit, flip_low_bit])
@pytest.mark.parametrize("privacy", ["masked", "he"])
def test_a_total_that_is_not_the_sum_of_the_uploads_is_refused_by_everyone(
    tamper: Callable, privacy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if privacy == "he":
        homomorphic = pytest.importorskip("fedpohcs.privacy.homomorphic")
        add = homomorphic.add_encrypted
        if tamper in (flip_top_bit, flip_low_bit):  # a ciphertext does not parse when altered: add to the number in it

            def tampered(uploads: list[bytes], public: bytes) -> bytes:
                return add([*uploads, encrypted_unit(homomorphic, public, tamper is flip_top_bit)], public)
        else:

            def tampered(uploads: list[bytes], public: bytes) -> bytes:
                return add(tamper(uploads), public)

        monkeypatch.setattr(homomorphic, "add_encrypted", tampered)
    else:
        add_masked = masking.add_uploads
        monkeypatch.setattr(masking, "add_uploads", lambda uploads, slots: add_masked(tamper(uploads), slots))
    federation = Federation(privacy=privacy).start()
    outcome = federation.select()
    assert outcome.problem == "every candidate refused the total"
    assert len(federation.refusals) == 6
    assert not any(party.state().waiting for party in federation.clients.values())  # a refused total ends the round


def encrypted_unit(homomorphic, public: bytes, large: bool) -> bytes:
    numbers = [0] * (SMALL.sketch_size - 16 + 2)
    numbers[3] = 2**30 if large else 1
    return homomorphic._joined([homomorphic.ts.bfv_vector(homomorphic._context(public), numbers).serialize()])


def test_a_thousand_altered_totals_are_noticed() -> None:
    federation = Federation().start()
    generator = np.random.default_rng(1)
    noticed = 0

    def alter(message: bytes) -> bytes:
        altered = bytearray(message)
        place = generator.integers(HEADER.size, len(message))
        altered[place] ^= 1 << generator.integers(8)
        return bytes(altered)

    federation.down = only(Kind.TOTAL, alter, *federation.clients)
    for number in range(167):
        assert not federation.select(number).scores
        noticed += len(federation.refusals)
        federation.refusals.clear()
    assert noticed == 1002


def test_clients_that_were_handed_two_policies_give_no_score() -> None:
    federation = Federation().start()
    federation.prepare()
    federation.clients[4].prepare(bytes(32), federation.tables[4])
    assert federation.server.select(0, POLICY, federation.cohort()).problem == "lost before the sum: client 4"
    # A server that counts it all the same gets a sum in which masks remain.
    federation.prepare()
    federation.clients[4].prepare(bytes(32), federation.tables[4])
    invitations = gather(federation, 1).invitations()
    replies = {c: party.answer(invitations[c]) for c, party in federation.clients.items()}
    uploads = [parse(reply).body for reply in replies.values()]
    total = masking.add_uploads(uploads, federation.parameters.num_slots)
    for client, reply in replies.items():
        header = parse(reply)
        message = Message(Kind.TOTAL, client, header.tag, total).to_bytes()
        with pytest.raises(RefusedError, match="not the cohort's"):
            federation.clients[client].answer(message)


def test_a_client_with_another_group_key_refuses_the_total_and_spoils_it_for_the_others() -> None:
    federation = Federation().start()
    stranger = federation.clients[3]
    membership = stranger.state()
    assert membership is not None
    stranger.restore(membership._replace(group_key=bytes(32)))
    assert not federation.select().scores
    assert len(federation.refusals) == 6


def test_a_sealed_group_key_that_was_altered_is_refused() -> None:
    federation = Federation()
    federation.down = only(Kind.KEY, lambda message: message[:-1] + bytes([message[-1] ^ 1]), 2)
    federation.start()
    assert federation.server.ready == {0, 1, 3, 4, 5}
    assert "the group key is not from the first member" in federation.refusals


def test_the_next_member_leads_when_the_first_one_is_lost() -> None:
    federation = Federation()
    federation.down = only(Kind.ROSTER, lambda message: None, 0)
    federation.start()
    assert federation.server.ready == {1, 2, 3, 4, 5}
    assert federation.select().scores == pytest.approx(federation.expected(0, [1, 2, 3, 4, 5]), abs=1e-6)


def forge(message: bytes) -> bytes:
    return message[: HEADER.size] + os.urandom(32) + message[HEADER.size + 32 :]


def test_a_client_whose_key_was_altered_on_the_way_is_left_out() -> None:
    federation = Federation()
    federation.up = only(Kind.ANNOUNCEMENT, forge, 2)
    federation.start()
    assert federation.server.ready == {0, 1, 3, 4, 5}
    assert federation.server.refusals == ["the key of client 2 is not signed by it"]


def test_clients_send_nothing_in_a_cohort_with_a_forged_key_or_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server would do to learn the masks of client 2, or to be a member itself. Client 0 makes the group key."""
    identity = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    for stranger, reason in ((2, "the key of client 2 is not signed by it"), (3, "client 3 is not a member")):
        federation = Federation(4)
        federation.members.pop(3)
        federation.clients[3] = PrivateClient(3, federation.parameters, identity, federation.members)
        federation.up = only(Kind.ANNOUNCEMENT, forge, stranger)
        monkeypatch.setattr(federation.server, "_announcements", lambda clients, f=federation: unchecked(f, clients))
        with pytest.raises(RefusedError, match="fewer than 3 clients joined"):
            federation.server.open_session([0, 1, stranger])
        assert reason in federation.refusals
        joined = federation.clients[1]  # a colluding member 1 could give it the group key all the same
        joined.restore((joined.state() or joined._member())._replace(group_key=bytes(32)))
        federation.prepare()
        with pytest.raises(RefusedError, match=reason):
            joined.answer(federation.invitation(1, cohort=(0, 1, stranger)))


def unchecked(federation: Federation, clients: set[int]) -> list[tuple[int, bytes, bytes]]:
    hello = {c: Message(Kind.HELLO, c, bytes(8), federation.parameters.digest).to_bytes() for c in sorted(clients)}
    replies = {c: parse(reply).body for c, reply in federation.exchange(hello).items()}
    return [(c, body[:32], body[32:]) for c, body in replies.items()]


def test_a_server_with_other_parameters_is_refused() -> None:
    federation = Federation()
    federation.server.parameters = dataclasses.replace(
        federation.parameters, config=dataclasses.replace(SMALL, min_cohort=4)
    )
    with pytest.raises(RefusedError):
        federation.start()
    assert set(federation.refusals) == {"the server has other parameters"}


def test_every_truncated_message_is_refused() -> None:
    federation = Federation(4).start()
    federation.select()
    fresh = Federation(4)
    for message in federation.messages:
        for end in {0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 3, len(message) - 1} - {len(message)}:
            header = parse(message)
            with pytest.raises(RefusedError):
                fresh.clients[header.client].answer(message[:end])
            if header.kind in (Kind.UPLOAD, Kind.SCORE) and end < len(message):
                with pytest.raises(RefusedError):
                    gather(federation).take_upload(header.client, message[:end])


def test_a_client_goes_on_from_its_stored_state_and_still_refuses_a_replay() -> None:
    federation = Federation().start()
    federation.prepare()
    invitation = federation.invitation(1)
    before = federation.clients[1]
    before.answer(invitation)
    after = PrivateClient(1, federation.parameters, before._identity, federation.members, before.ledger)
    after.restore(before.state())
    after.prepare(POLICY, federation.tables[1])
    with pytest.raises(RefusedError, match="answered before"):
        after.answer(invitation)
    federation.clients[1] = after
    assert federation.select(1).scores == pytest.approx(federation.expected(1), abs=1e-6)


def test_no_mask_is_used_twice_over_a_hundred_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each restart repeats the rounds of the one before, as a run does that is resumed from an old checkpoint."""
    masks, blinds = Counter[bytes](), Counter[bytes]()
    stream, derived, blinding = masking.stream, masking.derived, set[bytes]()

    def noted(key: bytes, label: bytes, context: bytes) -> bytes:
        made = derived(key, label, context)
        blinding.update([made] if label == b"blind" else [])
        return made

    def counted(key: bytes, length: int) -> np.ndarray:
        drawn = stream(key, length)
        if length == masking.payload_bytes(SMALL.num_words - 16):
            (blinds if key in blinding else masks)[drawn[:32].tobytes()] += 1
        return drawn

    monkeypatch.setattr(masking, "derived", noted)
    monkeypatch.setattr(masking, "stream", counted)
    for restart in range(100):
        federation = Federation(4).start()
        federation.tables[0] = make_table(1000 + restart)
        for number in range(2):
            assert len(federation.select(number).scores) == 4
    assert len(masks) == 100 * 2 * 6 and set(masks.values()) == {2}  # the two ends of a pair
    assert len(blinds) == 100 * 2 and set(blinds.values()) == {5}  # one adds it, four take it away


def test_a_clipped_sketch_is_announced() -> None:
    federation = Federation().start()
    federation.tables[0] = make_table(0, scale=500.0)
    with pytest.warns(UserWarning, match="value_limit"):
        federation.select()


def test_empty_tables_all_score_zero() -> None:
    federation = Federation().start()
    federation.tables = dict.fromkeys(federation.clients, WeightedAdvantage(np.empty(0, np.uint64), np.empty(0)))
    assert set(federation.select().scores.values()) == {0.0}


@pytest.mark.parametrize("privacy", ["masked", "he"])
def test_random_and_altered_messages_neither_crash_a_party_nor_count(privacy: str) -> None:
    if privacy == "he":
        pytest.importorskip("tenseal")
    generator = np.random.default_rng(2)
    federation = Federation(4, privacy=privacy, rounds=2**31).start()
    federation.select()
    originals = list(federation.messages)
    for _ in range(10_000):
        data = fuzzed(originals, generator)
        client = int(generator.integers(4))
        before = federation.clients[client].state()
        for party in (federation.clients[client].answer, lambda d: gather(federation, 7).take_upload(1, d)):
            try:
                party(data)
            except RefusedError:
                continue
            assert parse(data).kind in (Kind.HELLO, Kind.INVITATION)  # to which any server may ask for an answer
            federation.clients[client].restore(before)
    assert len(federation.select(2**31 - 1).scores) == 4  # nobody was harmed


def test_a_selection_with_one_fuzzed_message_gives_right_scores_or_none() -> None:
    generator = np.random.default_rng(3)
    federation = Federation(5).start()
    for number in range(300):
        target = int(generator.integers(15))
        seen = 0

        def tamper(client: int, message: bytes) -> bytes:
            nonlocal seen
            seen += 1
            hit = seen - 1 == target and parse(message).kind != Kind.SCORE  # noqa: B023
            return fuzzed([message], generator) if hit else message

        federation.down = federation.up = tamper
        outcome = federation.select(number)
        truth = federation.expected(number)
        assert all(abs(score - truth[c]) < 1e-6 for c, score in outcome.scores.items())


def fuzzed(originals: list[bytes], generator: np.random.Generator) -> bytes:
    """Random bytes, or a message that was cut, made longer, or had some bytes changed."""
    original = originals[generator.integers(len(originals))]
    way = generator.integers(5)
    if way == 0:
        return generator.bytes(int(generator.integers(0, 300)))
    if way == 1:
        return original[: generator.integers(len(original))]
    if way == 2:
        return original + generator.bytes(int(generator.integers(1, 30)))
    if way == 3:
        return original[: HEADER.size] + generator.bytes(len(original) - HEADER.size + 1)
    altered = bytearray(original)
    for _ in range(int(generator.integers(1, 4))):
        altered[generator.integers(len(altered))] ^= int(generator.integers(1, 256))
    return bytes(altered)


def test_an_invitation_comes_back_from_its_bytes() -> None:
    invitation = Invitation(3, (0, 7))
    assert read_invitation(invitation.body()) == invitation


def gather(federation: Federation, round_number: int = 0) -> Gathering:
    invitation = Invitation(round_number, federation.cohort(round_number))
    server = federation.server
    return Gathering(federation.parameters, invitation, invitation.context(server._session, POLICY), server._public)
