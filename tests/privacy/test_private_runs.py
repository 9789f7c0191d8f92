"""Whole runs with private selection, and the settings they need."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.analysis.communication import traffic
from fedpohcs.cli import main
from fedpohcs.core.config import DefenceConfig, ExperimentConfig, ModellingConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.randomness import Purpose
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import CandidateMetrics
from fedpohcs.privacy.messages import Kind, parse
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import Training, resume_experiment, run_experiment, start_training
from fedpohcs.runs.loading import Run, load_run
from fedpohcs.server.selection import Question

COHORT = ProtectionConfig(sketch_size=1024, min_cohort=3)
SCORES = replace(COHORT, release="scores")
CONFIG = replace(preset("tabular"), rounds=3, privacy="masked", protection=COHORT)


def values(run: Run, role: str, metric: str, number: int) -> dict[int, float]:
    table = run.clients
    rows = (table["role"] == role) & (table["metric"] == metric) & (table["round"] == number)
    return dict(zip(table["client"][rows].tolist(), table["value"][rows].tolist(), strict=True))


def test_two_private_runs_and_a_resumed_one_write_the_same_bytes(tmp_path: Path) -> None:
    """Although every run has keys of its own: masks leave no trace in a score."""
    config = replace(CONFIG, protection=replace(COHORT, epsilon=20.0))
    run_experiment(config, tmp_path / "one")
    run_experiment(config, tmp_path / "two")
    run_experiment(replace(config, rounds=1), tmp_path / "three")
    resume_experiment(tmp_path / "three", rounds=3)
    for name in ("two", "three"):
        for file in ("rounds.csv", "clients.csv"):
            assert (tmp_path / "one" / file).read_bytes() == (tmp_path / name / file).read_bytes()


@pytest.mark.parametrize("selector", ["fedpohcs", "fedpohcs-one-phase"])
def test_masked_and_encrypted_runs_select_alike(selector: str, tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    config = replace(CONFIG, selector=selector, protection=SCORES)
    for privacy in ("masked", "he"):
        run_experiment(replace(config, privacy=privacy), tmp_path / privacy)
    masked, encrypted = (load_run(tmp_path / privacy) for privacy in ("masked", "he"))
    assert masked.rounds["selected"].tolist() == encrypted.rounds["selected"].tolist()
    assert values(masked, "candidate", "selection_metric", 2) == values(encrypted, "candidate", "selection_metric", 2)


@pytest.mark.parametrize("selector", ["fedpohcs", "power-of-choice", "gradient-norm", "gradient-sampling"])
@pytest.mark.parametrize("epsilon", [None, 20.0])
def test_runs_that_release_ids_alone_equal_those_that_release_scores(
    selector: str, epsilon: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same clients train, so policies and returns are the same to the byte; only scores are not recorded.

    Where candidates draw, they get the coin that the server would have tossed.
    """
    monkeypatch.setattr("fedpohcs.privacy.choice.common_coin", server_coin)
    protection = replace(COHORT, epsilon=epsilon, scalar_limit=100.0 if epsilon else None)
    for release in ("ids", "scores"):
        config = replace(CONFIG, selector=selector, protection=replace(protection, release=release))
        run_experiment(config, tmp_path / release)
    assert (tmp_path / "ids" / "rounds.csv").read_bytes() == (tmp_path / "scores" / "rounds.csv").read_bytes()
    ids, scores = (load_run(tmp_path / release).clients for release in ("ids", "scores"))
    assert "candidate" in scores["role"] and "candidate" not in ids["role"]


def server_coin(values: object, round_number: int) -> list[int]:
    """What the server seeds its generator with in the clear."""
    return [CONFIG.seed, Purpose.SELECTION, round_number, 0]


def test_private_drawing_learns_as_drawing_in_the_clear_with_the_same_coin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of 24 bits are exact here, so that the returns of whole runs are equal to the byte."""
    monkeypatch.setattr("fedpohcs.privacy.choice.common_coin", server_coin)
    config = replace(CONFIG, selector="gradient-sampling", rounds=4, protection=replace(COHORT, score_bits=24))
    run_experiment(config, tmp_path / "masked")
    run_experiment(replace(config, privacy="none"), tmp_path / "none")
    masked, clear = (load_run(tmp_path / name).rounds for name in ("masked", "none"))
    for column in ("mean_return", "selected"):
        assert masked[column].tolist() == clear[column].tolist()


def test_a_precise_run_selects_as_the_exact_metric_on_all_pairs(tmp_path: Path) -> None:
    private = replace(CONFIG, protection=ProtectionConfig(precise=True, score_bits=16))
    exact = replace(CONFIG, privacy="none", federation=replace(CONFIG.federation, compared_pairs="all"))
    for name, config in (("private", private), ("exact", exact)):
        run_experiment(config, tmp_path / name)
    ours, theirs = (load_run(tmp_path / name) for name in ("private", "exact"))
    assert ours.rounds["selected"].tolist() == theirs.rounds["selected"].tolist()


def test_costs_of_a_private_round_are_recorded_and_counted(tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=1, protection=replace(COHORT, epsilon=2.0))
    run_experiment(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    up, down = (values(run, "asked", f"{way}_bytes", 1) for way in ("upload", "download"))
    assert len(up) == len(down) == 6
    levels, choice = 20 + 5 * 25, 20 + 3 * 8 + 64
    assert set(up.values()) == {16 + 4 * (COHORT.sketch_size - 16) + 16 + levels + choice}
    assert set(values(run, "asked", "attempts", 1).values()) == {1.0}
    assert set(values(run, "asked", "privacy_loss", 1).values()) == {2.0}
    weights = 4 * (6 * 3 + 3 + 6 + 1 + 1)
    assert traffic(run).measure[1] == 6 * weights + sum(up.values()) + sum(down.values())


def test_the_privacy_loss_grows_with_every_answer_also_after_a_restart(tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=2, protection=replace(COHORT, epsilon=0.5))
    run_experiment(config, tmp_path / "run")
    resume_experiment(tmp_path / "run", rounds=4)
    run = load_run(tmp_path / "run")
    answers: dict[int, int] = {}
    for number in range(1, 5):
        for client, loss in values(run, "asked", "privacy_loss", number).items():
            answers[client] = answers.get(client, 0) + 1
            assert loss == 0.5 * answers[client]
    assert max(answers.values()) > 1


def test_one_phase_asks_only_those_that_trained_and_remembers_the_other_scores(tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, selector="fedpohcs-one-phase", protection=SCORES), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert [len(values(run, "asked", "upload_bytes", number)) for number in (1, 2, 3)] == [12, 3, 3]
    known = {}
    for number in (1, 2, 3):
        scores = values(run, "candidate", "selection_metric", number)
        asked = values(run, "asked", "upload_bytes", number)
        for client, score in scores.items():
            assert not np.isnan(score)
            if client in known and client not in asked:
                assert known[client] == score
        known |= scores


@pytest.mark.parametrize(("selector", "metric"), [("power-of-choice", "loss"), ("gradient-norm", "gradient_norm")])
def test_scalars_are_rounded_and_cost_twenty_bytes(selector: str, metric: str, tmp_path: Path) -> None:
    protection = replace(SCORES, scalar_limit=127.0)
    run_experiment(replace(CONFIG, selector=selector, rounds=1, protection=protection), tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert set(values(run, "asked", "upload_bytes", 1).values()) == {20.0}
    scores = values(run, "candidate", metric, 1)
    assert all(score == round(score) for score in scores.values())  # 8 bits over plus and minus 127 are whole numbers
    if selector == "power-of-choice":
        truth = values(run, "evaluated", "mean_return", 0)
        assert all(abs(score + truth[client]) <= 0.5 for client, score in scores.items())


def test_scalars_without_a_limit_keep_their_leading_bits(tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, selector="power-of-choice", rounds=1, protection=SCORES), tmp_path / "run")
    run = load_run(tmp_path / "run")
    truth = values(run, "evaluated", "mean_return", 0)
    scores = values(run, "candidate", "loss", 1)
    assert all(0 < abs(score / truth[client] + 1) <= 2**-8 for client, score in scores.items())


def lose(training: Training, kind: Kind, lost: set[int]) -> None:
    exchange = training.executor.wire.exchange

    def lossy(messages: dict[int, bytes]) -> dict[int, bytes]:
        return exchange({c: m for c, m in messages.items() if parse(m).kind != kind or c not in lost})

    training.executor.wire.exchange = lossy


@pytest.mark.parametrize("kind", [Kind.INVITATION, Kind.TOTAL])
@pytest.mark.parametrize("selector", ["fedpohcs", "gradient-sampling"])
def test_a_round_without_a_private_choice_selects_at_random_and_says_so(kind: Kind, selector: str) -> None:
    training = start_training(replace(CONFIG, selector=selector))
    lose(training, kind if selector == "fedpohcs" else Kind.INVITATION, set(range(12)))
    rounds = training.remaining_rounds()
    next(rounds)
    with pytest.warns(UserWarning, match="round 1 has no private selection and selects at random: (lost|every)"):
        record = next(rounds)
    assert all(np.isnan(scores).all() for scores in record.selection.scores.values())
    assert len(record.selection.client) == 3
    assert set(record.selection.client.tolist()) <= set(record.candidates.tolist())


def test_without_any_score_the_choice_is_random() -> None:
    candidates, counts = np.arange(6), np.zeros(6)
    metrics = CandidateMetrics(candidates, {"selection_metric": np.full(6, np.nan)}, private=True)
    for seed in range(600):
        question = Question(candidates, 2, 6, np.ones(6), np.random.default_rng(seed))
        counts[SELECTORS["fedpohcs"]().select(question, metrics, None)[0].client] += 1
    np.testing.assert_allclose(counts / 600, 1 / 3, atol=0.07)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selector": "potential-only"}, "Use fedpohcs or fedpohcs-one-phase"),
        ({"selector": "heterogeneity-only"}, "needs the tables themselves"),
        ({"protection": ProtectionConfig(min_cohort=7)}, "num_candidates.*min_cohort"),
        (
            {"selector": "fedpohcs-one-phase", "protection": ProtectionConfig(release="scores")},
            "num_selected.*min_cohort",
        ),
        ({"selector": "fedpohcs-one-phase"}, "needs the values of its metrics.*--protection.release scores"),
        ({"defence": DefenceConfig(max_selections=6)}, "max_selections.*candidates choose among all"),
        (
            {"federation": replace(CONFIG.federation, client_weights=(1.6, *[1.0] * 11))},
            "client_weights.*factor of 1.5.*reveals its table",
        ),
        ({"selector": "gradient-norm", "protection": ProtectionConfig(epsilon=1.0)}, "scalar_limit.*no bound"),
    ],
)
def test_what_private_selection_cannot_do_is_refused_before_anything_is_written(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_config(replace(CONFIG, **changes))


@pytest.mark.parametrize("selector", ["fedavg", "full"])
def test_selectors_that_ask_nobody_run_with_privacy_too(selector: str) -> None:
    assert len(run_experiment(replace(CONFIG, selector=selector, rounds=1)).records) == 2


def test_predicted_entries_are_refused() -> None:
    with pytest.raises(UserError, match=r"modelling\.missing"):
        ExperimentConfig(privacy="masked", modelling=ModellingConfig(missing="predicted"))


@pytest.mark.parametrize(("privacy", "extra"), [("masked", "privacy"), ("he", "he")])
def test_a_missing_package_is_named_with_its_extra(
    privacy: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    missing = {"cryptography", "tenseal"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in missing else find(name, *rest))
    assert main(["train", "tabular", "--privacy", privacy, "--out", str(tmp_path / "run")]) == 2
    assert f"pip install 'fedpohcs[{extra}]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
