"""The sentences at the top of a report say what the runs show, and no more than their seeds can."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import MakeRun, made_up_records
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.summary import Summary, summarise_level, summary_lines
from fedpohcs.core.presets import preset
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.folder import RunFolder

Shift = Callable[[int], float]


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Summary]:
    """Sums up schemes whose mean returns after 20 rounds are 14.5 + the shift of the seed."""

    def make(seeds: int, thresholds: tuple[float, ...] = (), **shifts: Shift) -> Summary:
        for selector, shift in shifts.items():
            for seed in range(seeds):
                config = replace(preset("tabular", selector=selector.replace("_", "-")), seed=seed, rounds=20)
                folder = RunFolder.create(tmp_path / f"{selector}-{seed}", config)
                for record in made_up_records(replace(config, seed=0)):
                    folder.append(_shifted(record, shift(seed)))
        return summarise_level(load_groups([tmp_path]), thresholds)

    return make


def _shifted(record: RoundRecord, by: float) -> RoundRecord:
    evaluation = record.evaluation
    return record._replace(evaluation=evaluation._replace(mean_return=evaluation.mean_return + by))


def test_one_seed_names_the_order_and_claims_nothing(compared: Callable[..., Summary]) -> None:
    found = compared(1, fedavg=lambda seed: 0.0, fedpohcs=lambda seed: 3.0)
    text = " ".join(found.sentences)
    assert found.best == "fedpohcs"
    assert "fedpohcs ends highest, with a mean return of 13.0 over rounds 11-20 (1 seed)." in text
    assert "That is 3.00 above fedavg (the second), on one seed. One seed cannot show which scheme is better" in text
    assert "p =" not in text and "[" not in text


def test_a_lead_that_all_of_six_seeds_share_is_unlikely_to_be_chance(compared: Callable[..., Summary]) -> None:
    text = " ".join(compared(6, fedavg=lambda seed: float(seed), fedpohcs=lambda seed: 3.0 + 1.1 * seed).sentences)
    low, high = map(float, re.search(r"Paired by seed, that is 3\.25 \[([\d.]+), ([\d.]+)\]", text).groups())
    assert 3 <= low < high <= 3.5  # differences of equal seeds are 3 to 3.5; of means of seeds, 0.5 to 6
    assert "ahead in 6 of 6 seeds, sign-flip p = 0.031. A lead like this is unlikely to be chance" in text


def test_a_lead_of_few_seeds_is_a_suggestion(compared: Callable[..., Summary]) -> None:
    text = " ".join(compared(4, fedavg=lambda seed: float(seed), fedpohcs=lambda seed: 3.0 + 1.1 * seed).sentences)
    assert "ahead in 4 of 4 seeds, sign-flip p = 0.12. That suggests a lead and does not prove it" in text
    assert "with 4 seeds p cannot be below 0.12" in text


def test_seeds_that_disagree_do_not_tell_schemes_apart(compared: Callable[..., Summary]) -> None:
    text = " ".join(compared(6, fedavg=lambda seed: 0.0, fedpohcs=lambda seed: -2.0 + seed).sentences)
    assert "ahead in 3 of 6 seeds" in text
    assert "The interval contains 0: these seeds do not tell the two apart." in text
    assert "unlikely" not in text


def test_a_return_that_was_there_before_training_is_no_news(compared: Callable[..., Summary]) -> None:
    shifts = {"fedavg": lambda seed: 0.0, "fedpohcs": lambda seed: 3.0}
    assert "a mean return of" not in " ".join(compared(1, (-1000.0,), **shifts).sentences).replace("with a mean", "")


def test_the_leader_is_compared_with_the_second_and_with_random_selection(compared: Callable[..., Summary]) -> None:
    shifts = {"fedavg": lambda seed: 0.0, "fedpohcs": lambda seed: 3.0 + seed, "power_of_choice": lambda seed: 2.0}
    found = compared(2, **shifts)
    text = " ".join(found.sentences)
    assert "above power-of-choice (the second)" in text
    assert "above fedavg (random selection)" in text
    assert (found.best, found.seed) == ("fedpohcs", 1)  # the best run is that of the highest seed


def test_the_highest_threshold_that_is_reached_at_all_counts(compared: Callable[..., Summary]) -> None:
    shifts = {"fedavg": lambda seed: 0.0, "fedpohcs": lambda seed: 3.0}
    text = " ".join(compared(1, thresholds=(1.0, 16.0, 40.0), **shifts).sentences)
    assert "fedpohcs is the first to reach a mean return of 16, in round 19 (fedavg: not at all)." in text


def test_small_differences_are_not_shown_as_0(compared: Callable[..., Summary]) -> None:
    text = " ".join(compared(1, fedavg=lambda seed: 0.0, fedpohcs=lambda seed: 0.007).sentences)
    assert "That is 0.007 above fedavg" in text


def test_the_worst_tenth_is_named_with_the_scheme_that_serves_it_best(compared: Callable[..., Summary]) -> None:
    text = " ".join(compared(1, fedavg=lambda seed: 0.0, fedpohcs=lambda seed: 3.0).sentences)
    assert "On the worst tenth of the clients fedpohcs returns 8.00." in text  # clients 10 and 11: 15.5 + 3 - 10.5


def test_runs_of_different_length_are_compared_on_the_rounds_that_all_have(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("runs/long", slope=1.0, selector="fedavg", rounds=30)
    make_run("runs/short", slope=2.0, selector="fedpohcs", rounds=30, stop_after=12)
    found = summarise_level(load_groups([tmp_path / "runs"]))
    assert found.best == "fedpohcs"  # 9.5 against 2 in rounds 3-12; at its end fedavg has 20
    assert "The runs have 12 to 30 rounds; rounds up to 12 are compared." in found.sentences


def test_before_the_first_round_there_is_nothing_to_compare(make_run: MakeRun) -> None:
    found = summarise_level(load_groups([make_run(rounds=5, stop_after=0)]))
    assert found.sentences == ("Not every run has trained a round yet, so there is nothing to compare.",)


def test_a_single_scheme_says_from_where_to_where(make_run: MakeRun) -> None:
    (line,) = summary_lines(load_groups([make_run(rounds=20, selector="fedavg")]))
    assert line.startswith(
        "tabular, medium: The mean return of fedavg rises from -5.50 to 10.0 over rounds 11-20 (1 seed)."
    )
    assert "This is one run; other seeds give other numbers." in line
