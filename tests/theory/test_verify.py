"""The search for violations, its files, the rates of networks, and the commands."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.cli import main
from fedpohcs.cli.theory import FIGURES
from fedpohcs.core.errors import UserError
from fedpohcs.theory import bounds, rates, worlds
from fedpohcs.theory.claims import CLAIMS, ratios
from fedpohcs.theory.instances import Case, Size, draw, groups, instance_of, load_instance, take, vary
from fedpohcs.theory.verify import check_stored, save_worst, search_violations, verify_claims


@pytest.fixture(scope="module")
def findings():
    return verify_claims(400, climb_steps=2, seed=1)


def test_every_claim_is_violated_or_not_as_documented(findings) -> None:
    assert [line for finding in findings for line in finding.complaints] == []


def test_every_false_claim_but_one_is_violated_at_random(findings) -> None:
    known = {finding.name: sum(reached.ratio > 1 for reached in finding.reached) for finding in findings}
    false = [finding for finding in findings if not finding.claim.holds]
    escaped = {finding.name for finding in false if finding.violations == known[finding.name]}
    assert escaped <= {"remark-8-enough"}  # a few in ten thousand


def test_lemma_3_is_violated_more_often_than_not(findings) -> None:
    (lemma,) = (finding for finding in findings if finding.name == "lemma-3")
    assert lemma.violations > lemma.instances / 2


def test_a_search_gives_the_same_findings_again() -> None:
    names = ["lemma-3", "lemma-4", "lemma-5"]
    first, second = (verify_claims(60, climb_steps=2, names=names) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one[:4] == other[:4]
        assert all(np.array_equal(one.worst[key], other.worst[key]) for key in one.worst)


def test_climbing_never_loses_tightness_and_mostly_gains_some() -> None:
    pairs = [[search_violations(["lemma-4"], 100, seed, steps)[0].tightest for steps in (0, 15)] for seed in range(3)]
    assert all(climbed >= start for start, climbed in pairs)
    assert sum(climbed > start for start, climbed in pairs) >= 2


def test_a_stored_instance_gives_the_same_ratio_again(findings, tmp_path: Path) -> None:
    paths = save_worst(findings, tmp_path)
    assert set(paths) == set(CLAIMS)
    for finding in findings:
        again = check_stored(paths[finding.name])
        assert again.name == finding.name
        assert np.isclose(again.tightest, finding.tightest, rtol=1e-6)
        assert bool(again.violations) == (finding.violations > 0)


def test_instances_are_as_many_and_as_large_as_asked_for() -> None:
    drawn = list(groups(1003, seed=0))
    assert sum(len(group["discount"]) for group in drawn) == 1003
    assert all(np.all(np.array(group["transitions"].shape[1:4]) <= [6, 8, 4]) for group in drawn)


def test_an_instance_has_only_the_errors_that_are_given() -> None:
    federation = worlds.random_federation(2, 3, 2)
    assert not Case(instance_of(federation)).has_errors[0]
    for name in ("delta", "epsilon"):
        assert Case(instance_of(federation, **{name: [0.0, 0.1]})).has_errors[0]
    for name in ("value_aggregation", "policy_aggregation"):
        assert Case(instance_of(federation, **{name: 0.1})).has_errors[0]
    with pytest.raises(UserError, match=r"arrays .*'deltas'.* must be among transitions"):
        instance_of(federation, deltas=[0.0, 0.1])


def test_a_third_of_the_instances_have_aggregation_errors_and_a_tenth_no_error() -> None:
    case = Case(draw(np.random.default_rng(0), Size(3, 3, 2), 2000))
    aggregates = (case["value_aggregation"] > 0) | (case["policy_aggregation"] > 0)
    assert 0.2 < aggregates.mean() < 0.35
    assert 0.1 < 1 - case.has_errors.mean() < 0.2


def test_varied_instances_are_valid_and_new() -> None:
    generator = np.random.default_rng(0)
    instances = draw(generator, Size(3, 4, 2), 20)
    for _ in range(20):
        varied = vary(generator, instances)
        assert not np.array_equal(varied["transitions"], instances["transitions"])
        instances = varied
        Case(instances)  # refuses what is not a federation
        assert np.all(instances["participation"].sum(-1) > 0)
        assert np.all(np.abs(instances["noise"]) <= 1)


def test_rounding_is_no_violation_and_no_tightness() -> None:
    case = Case(draw(np.random.default_rng(0), Size(2, 2, 1), 3))
    ratio, violated = ratios(case, (np.array([1e-12, 1 + 1e-12, np.nan]), np.array([0.0, 1.0, 1.0])))
    assert not violated.any()
    assert ratio[0] == 0
    assert np.isnan(ratio[2])


def test_a_real_excess_is_a_violation() -> None:
    case = Case(draw(np.random.default_rng(0), Size(2, 2, 1), 1))
    ratio, violated = ratios(case, (np.array([1.001]), np.array([1.0])))
    assert violated.all()
    assert np.isclose(ratio[0], 1.001)


def test_files_that_are_no_instances_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be a file"):
        load_instance(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(UserError, match="is not a file that"):
        load_instance(tmp_path / "text.npz")
    np.savez(tmp_path / "half.npz", claim=np.array("lemma-3"), rewards=np.zeros(2))
    with pytest.raises(UserError, match="lacks client_policies, delta"):
        load_instance(tmp_path / "half.npz")


def test_rates_in_the_width_are_those_of_the_proofs() -> None:
    stated = rates.exponent(rates.WIDTHS, rates.by_width(rates.linearisation_error))
    large = rates.exponent(rates.WIDTHS, rates.by_width(rates.linearisation_error, large=True))
    assert abs(stated) < 0.02  # no decay at all with variance 1 / (d m)
    assert abs(large + 1 / 6) < 0.02


def test_the_aggregation_error_of_opposite_clients_is_half_the_linearisation_error() -> None:
    at = rates.start(np.random.default_rng(0), 512)
    assert np.isclose(2 * rates.value_aggregation_error(at, 0.2), rates.linearisation_error(at, 0.2))


def test_the_worst_move_stays_in_the_ball_and_beats_random_ones() -> None:
    generator = np.random.default_rng(0)
    at = rates.start(generator, 256)
    move = rates.worst_move(at, 0.3)
    assert np.linalg.norm(move) <= 0.3 + 1e-12
    worst = rates.linearisation_error(at, 0.3)
    for _ in range(50):
        other = generator.normal(size=move.shape)
        weights = at.weights + 0.3 * other / np.linalg.norm(other)
        x = at.input[None]
        error = rates.network(weights, at.signs, x) - rates.linearised(weights, at.weights, at.signs, x)
        assert abs(error[0]) < worst


@pytest.mark.parametrize("radius", [0.01, 0.1, 1.0])
def test_policy_aggregation_and_output_differences_obey_their_explicit_bounds(radius: float) -> None:
    for seed in range(20):
        at = rates.start(np.random.default_rng(seed), 128)
        assert rates.policy_aggregation_error(at, radius) <= np.sqrt(8 * radius)
        assert rates.same_action_difference(at, radius) <= 2 * radius + 1e-12


def test_outputs_at_two_actions_differ_even_in_an_empty_ball() -> None:
    """Against the first rate of Lemma 19."""
    errors = [rates.other_action_difference(rates.start(np.random.default_rng(s), 64), 1e-9) for s in range(10)]
    assert np.mean(errors) > 0.01


def test_verify_prints_a_table_and_stores_the_worst_instances(tmp_path: Path, capsys) -> None:
    arguments = ["theory", "verify", "--instances", "60", "--climb-steps", "1", "--claims", "lemma-3,lemma-4"]
    assert main([*arguments, "--out", str(tmp_path), "--format", "markdown"]) == 0
    printed = capsys.readouterr().out
    assert "| Lemma 3" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"lemma-3.npz", "lemma-4.npz"}
    assert main(["theory", "verify", "--instance", str(tmp_path / "lemma-3.npz")]) == 0
    assert "violated" in capsys.readouterr().out


def test_verify_fails_if_a_claim_that_holds_is_violated(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(CLAIMS, "lemma-3", CLAIMS["lemma-3"]._replace(holds=True))
    few = ["--instances", "60", "--climb-steps", "0", "--out", str(tmp_path)]
    assert main(["theory", "verify", *few, "--claims", "lemma-3"]) == 1
    assert "not as documented: lemma-3 (Lemma 3) is documented to hold, but" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["theory"],
        ["theory", "prove"],
        ["theory", "verify", "--claims", "lemma-99"],
        ["theory", "verify", "--instances", "0"],
        ["theory", "verify", "--instance", "nothing.npz"],
        ["theory", "plot", "--figures", "nothing"],
    ],
)
def test_bad_input_exits_with_2_and_writes_nothing(arguments, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert list(tmp_path.iterdir()) == []


def test_plot_writes_png_and_svg(tmp_path: Path) -> None:
    assert main(["theory", "plot", "--figures", "error-bound", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"error-bound.png", "error-bound.svg"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_picture_is_drawn(name: str, tmp_path: Path) -> None:
    assert main(["theory", "plot", "--figures", name, "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_taking_instances_keeps_their_arrays_together() -> None:
    instances = draw(np.random.default_rng(0), Size(2, 3, 2), 5)
    some = take(instances, np.array([3, 1]))
    assert all(np.array_equal(some[name][0], instances[name][3]) for name in instances)


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(examples) == 5
    for code in examples:
        exec(compile(code, "theory.md", "exec"), {})


def test_every_bound_of_the_page_exists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    section = page.partition("## The bounds")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+)`", section.partition("| --- | --- |")[2])
    assert len(named) >= 18
    assert [name for name in named if not callable(getattr(bounds, name, None))] == []
