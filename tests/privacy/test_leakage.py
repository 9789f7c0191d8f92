"""What the server could see: nothing but scores."""

import os
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.stats import chisquare, rankdata

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.privacy.messages import Kind, parse
from fedpohcs.privacy.sketch import count_sketch, sketch_seed
from privacy.federation import IDS, RUN, Federation

WINDOW = 8


@pytest.fixture(autouse=True)
def repeatable_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys from a seed, so that tests of chance cannot fail by chance."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(0).bytes)


def windows(data: bytes) -> set[bytes]:
    """All runs of 8 bytes; without those of few different bytes, such as zeros, which say nothing."""
    runs = {data[start : start + WINDOW] for start in range(len(data) - WINDOW + 1)}
    return {run for run in runs if len(set(run)) >= 5}


def secrets(federation: Federation, rounds: Iterable[int]) -> set[bytes]:
    """Every window of every table, sketch, sum and key, in the forms in which the parties hold them."""
    found = set()
    fixed, slots = federation.parameters.fixed_point, federation.parameters.num_slots
    for number in rounds:
        sketches = [count_sketch(t, sketch_seed(RUN, number), slots) for t in federation.tables.values()]
        integers = [fixed.encode(sketch, 1 / len(sketches)) for sketch in sketches]
        for vector in (*sketches, np.mean(sketches, axis=0), *integers, np.sum(integers, axis=0)):
            found |= windows(vector.tobytes()) | windows(vector.astype(np.float32).tobytes())
            found |= windows(vector.astype(np.int32).tobytes())
    for table in federation.tables.values():
        found |= windows(table.pair.tobytes()) | windows(table.value.tobytes())
    for party in federation.clients.values():
        membership = party.state()
        assert membership is not None
        for key in (membership.secret, membership.group_key, *party._pair_keys.values()):
            found |= windows(key)
        found |= windows(membership.extra) - windows(federation.server._public)
    return found


@pytest.mark.parametrize("privacy", ["masked", "he"])
def test_no_message_holds_eight_bytes_of_a_table_a_sum_or_a_key(privacy: str) -> None:
    if privacy == "he":
        pytest.importorskip("tenseal")
    rounds = range(3 if privacy == "masked" else 1)  # a ciphertext is long
    federation = Federation(3, IDS, privacy).start()
    for number in rounds:
        assert federation.select(number).chosen
    forbidden = secrets(federation, rounds)
    assert len(forbidden) > 10_000
    sent = set().union(*map(windows, federation.messages))
    assert not forbidden & sent


def test_the_scan_finds_a_table_that_is_sent_in_the_clear() -> None:
    federation = Federation(5).start()
    federation.select()
    assert windows(federation.tables[3].value.tobytes()) & secrets(federation, [0])


def uploads_of(federation: Federation, number: int) -> list[np.ndarray]:
    federation.messages.clear()
    federation.select(number)
    messages = map(parse, federation.messages)
    return [np.frombuffer(message.body, np.uint8) for message in messages if message.kind == Kind.UPLOAD]


def test_a_thousand_uploads_and_their_totals_are_uniform_noise() -> None:
    federation = Federation(10, ProtectionConfig(sketch_size=1024, release="scores")).start()
    rejected, counts = 0, np.zeros(256)
    for number in range(100):
        for upload in uploads_of(federation, number):
            count = np.bincount(upload, minlength=256)
            counts += count
            rejected += chisquare(count).pvalue < 0.01
        totals = {m.body for m in map(parse, federation.messages) if m.kind == Kind.TOTAL}
        assert len(totals) == 1
        assert chisquare(np.bincount(np.frombuffer(totals.pop(), np.uint8), minlength=256)).pvalue > 1e-4
    assert chisquare(counts).pvalue > 0.001
    assert rejected < 25  # 10 expected of 1,000


def area_under_curve(score: np.ndarray, label: np.ndarray) -> float:
    ranks, positive = rankdata(score), label.sum()
    return (ranks[label].sum() - positive * (positive + 1) / 2) / (positive * (~label).sum())


def classifier_area(samples: np.ndarray, label: np.ndarray) -> float:
    """How well ridge regression, fitted on one half of the samples, tells the other half apart."""
    half = len(samples) // 2
    samples = samples[:, samples[:half].std(0) > 0]
    samples = (samples - samples[:half].mean(0)) / samples[:half].std(0)
    gram = samples[:half].T @ samples[:half] + half * 0.01 * np.eye(samples.shape[1])
    direction = np.linalg.solve(gram, samples[:half].T @ (2.0 * label[:half] - 1))
    return area_under_curve(samples[half:] @ direction, label[half:])


def test_two_worlds_with_equal_scores_cannot_be_told_apart_from_uploads() -> None:
    """The second world is the first with every sign changed: all Delta_n are the same. Tables vary from day to day."""
    config = ProtectionConfig(sketch_size=64, min_cohort=3, release="scores")
    federation = Federation(3, config).start()
    day = np.random.default_rng(5)
    base = dict(federation.tables)
    masked, clear, label = [], [], []
    for number in range(3000):
        mirrored = bool(day.integers(2))
        for client, table in base.items():
            value = table.value + 0.05 * day.standard_normal(len(table.value))
            federation.tables[client] = WeightedAdvantage(table.pair, -value if mirrored else value)
        uploads = uploads_of(federation, number)
        masked.append(np.concatenate([upload[: 4 * 48].view(np.uint32)[:24] / 2**32 for upload in uploads]))
        clear.append(count_sketch(federation.tables[0], 1, 48))
        label.append(mirrored)
    label = np.array(label)
    assert classifier_area(np.array(clear), label) > 0.99  # the classifier can tell them apart in the clear
    assert abs(classifier_area(np.array(masked), label) - 0.5) < 0.06  # four standard deviations of chance
