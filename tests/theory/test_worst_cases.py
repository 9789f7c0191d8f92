"""Worst cases: they reach their documented ratios, and no wrong constant in a bound escapes them."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedpohcs.cli import main
from fedpohcs.theory import bounds, claims, drawing, iteration, levels, operators, rates, sharper
from fedpohcs.theory.claims import CLAIMS
from fedpohcs.theory.instances import Case
from fedpohcs.theory.verify import check_worst_case, check_worst_cases
from fedpohcs.theory.worst_cases import WORST_CASES

Function = Callable[..., Any]


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    """Every worst case, with runs and levels that do not depend on the bounds already computed."""
    made = {label: Case(worst.make()) for label, worst in WORST_CASES.items()}
    assert not any(unexpected(made, CLAIMS).values())
    return made


def unexpected(cases: dict[str, Case], names: Iterable[str]) -> dict[str, list[str]]:
    """The worst cases of each claim that do not have their documented ratio."""
    return {name: [label for label in worst_of(name) if not as_documented(label, name, cases[label])] for name in names}


def worst_of(name: str) -> list[str]:
    return [label for label, worst in WORST_CASES.items() if name in worst.ratios]


def as_documented(label: str, name: str, case: Case) -> bool:
    (reached,) = check_worst_case(label, name, case).reached
    return reached.as_documented


def test_every_claim_has_a_worst_case_that_reaches_its_documented_ratio() -> None:
    findings = check_worst_cases(CLAIMS)
    assert set(findings) == set(CLAIMS)
    assert [line for finding in findings.values() for line in finding.complaints] == []


def test_every_false_claim_has_a_counterexample_and_no_other_claim_has_one() -> None:
    largest = {name: max(worst.ratios.get(name, 0) for worst in WORST_CASES.values()) for name in CLAIMS}
    assert {name for name, ratio in largest.items() if ratio > 1} == {n for n, c in CLAIMS.items() if not c.holds}


def test_the_page_has_every_ratio() -> None:
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| (.*) \|$", page, flags=re.MULTILINE)
    printed = {label: dict(re.findall(r"`([\w-]+)` ([\d.∞]+)", ratios)) for label, ratios in rows}
    documented = {label: dict(worst.ratios) for label, worst in WORST_CASES.items()}
    assert printed == {
        label: {name: "∞" if np.isinf(ratio) else f"{ratio:.4f}" for name, ratio in ratios.items()}
        for label, ratios in documented.items()
    }
    assert f"{len(WORST_CASES)} small instances" in page
    assert f"any of the {len(TERMS)} terms" in page
    assert re.findall(r"^\| `([\w-]+)`: ", page, flags=re.MULTILINE) == list(CLAIMS)


def code_of(function: Function, source: str) -> Any:
    """The compiled body of a function whose source was changed."""
    namespace = dict(function.__globals__)
    exec(compile(source, "<changed>", "exec"), namespace)
    return namespace[function.__name__].__code__


def scaled_term(function: Function, term: str, factor: float) -> Any:
    """The code of a bound in which one term is multiplied."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (keyword,) = (word for word in keywords_of_bound(tree) if word.arg == term)
    keyword.value = ast.BinOp(ast.Constant(factor), ast.Mult(), keyword.value)
    return code_of(function, ast.unparse(tree))


def keywords_of_bound(tree: ast.AST) -> list[ast.keyword]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [word for call in calls if getattr(call.func, "id", "") == "Bound" for word in call.keywords]


NOTICED_BY: dict[Function, list[str]] = {
    bounds.api: ["proposition-1"],
    bounds.value_gap: ["lemma-4", "theorem-10-any"],
    bounds.mean_evaluation_error: ["equation-8", "theorem-10"],
    bounds.improvement_with_evaluation: ["lemma-5"],
    bounds.improvement_without_evaluation: ["lemma-6"],
    bounds.partial_improvement_without_evaluation: ["proposition-7"],
    bounds.partial_improvement_with_evaluation: ["proposition-9"],
    bounds.Family.fapi: ["theorem-10"],
    bounds.fapi_by_level: ["theorem-10-forms"],
    bounds.homogeneous: ["proposition-14"],
    sharper.value_gap: ["lemma-4-sharper"],
    sharper.improvement_with_evaluation: ["lemma-5-sharper"],
    sharper.improvement_without_evaluation: ["lemma-6-sharper"],
    sharper.partial_improvement_without_evaluation: ["proposition-7-sharper"],
    sharper.partial_improvement_with_evaluation: ["proposition-9-sharper"],
}
TERMS = [
    (function, word.arg, names)
    for function, names in NOTICED_BY.items()
    for word in keywords_of_bound(ast.parse(textwrap.dedent(inspect.getsource(function))))
]


def test_every_bound_with_terms_is_among_those_whose_terms_are_changed() -> None:
    functions = [f for module in (bounds, sharper) for f in vars(module).values() if inspect.isfunction(f)]
    with_terms = {f for f in functions if keywords_of_bound(ast.parse(inspect.getsource(f)))}
    assert with_terms <= set(NOTICED_BY)
    assert len(TERMS) == 55


@pytest.mark.parametrize(
    ("function", "term", "names"),
    TERMS,
    ids=[f"{function.__module__.split('.')[-1]}.{function.__name__}-{term}" for function, term, _ in TERMS],
)
def test_a_term_that_is_left_out_halved_or_doubled_is_noticed(
    function: Function, term: str, names: list[str], cases: dict[str, Case], monkeypatch
) -> None:
    for factor in (0.0, 0.5, 2.0):
        with monkeypatch.context() as patch:
            patch.setattr(function, "__code__", scaled_term(function, term, factor))
            found = unexpected(cases, names)
        assert all(found.values()), (factor, found)


class Mistake(NamedTuple):
    """A wrong piece of a function's source, in place of the right one, and the claims that notice it."""

    function: Function
    right: str
    wrong: str
    noticed_by: str


LEMMA_4, SHARPER_4 = bounds.value_gap, sharper.value_gap
LEMMA_5, LEMMA_6 = bounds.improvement_with_evaluation, bounds.improvement_without_evaluation
SHARPER_6 = sharper.improvement_without_evaluation
PROP_7, PROP_9 = bounds.partial_improvement_without_evaluation, bounds.partial_improvement_with_evaluation
SHARPER_7, SHARPER_9 = sharper.partial_improvement_without_evaluation, sharper.partial_improvement_with_evaluation
CONSTANTS, FAPI = bounds.fapi_constants, bounds.Family.fapi
ALL, SELECTED = "setting.weights * errors.epsilon", "selected * errors.epsilon"
WRONG_CONSTANTS = [
    Mistake(bounds.api, "2 * gamma * np.asarray(delta)", "gamma * np.asarray(delta)", "proposition-1"),
    Mistake(bounds.api, "np.asarray(epsilon) / (1 - gamma) ** 2", "np.asarray(epsilon) / (1 - gamma)", "proposition-1"),
    Mistake(LEMMA_4, "gamma * h**2", "gamma * h**2 / 4", "lemma-4 theorem-10-any"),
    Mistake(LEMMA_4, "gamma * h**2", "h**2", "lemma-4"),
    Mistake(LEMMA_4, "h**2 * setting.reward_bound", "h**2", "lemma-4"),
    Mistake(LEMMA_4, "kappa_1", "kappa_2", "lemma-4"),
    Mistake(bounds.evaluation_error, "value_gap(setting) | ", "", "equation-8"),
    Mistake(bounds.mean_evaluation_error, "setting.weights * errors.delta", "errors.delta / 2", "equation-8"),
    Mistake(LEMMA_5, "2 * gamma * largest", "gamma * largest", "lemma-5 tighter"),
    Mistake(LEMMA_5, "kappa_1", "kappa_2", "tighter"),
    Mistake(LEMMA_5, ALL, "errors.epsilon / 2", "lemma-5"),
    Mistake(LEMMA_6, "2 * gamma**2", "0 * gamma**2", "lemma-6"),
    Mistake(LEMMA_6, "2 * gamma**2", "2 * gamma", "lemma-6"),
    Mistake(LEMMA_6, "kappa_2", "kappa_1", "tighter"),
    Mistake(LEMMA_6, "4 * gamma", "2 * gamma", "lemma-6 lemma-6-printed"),
    Mistake(LEMMA_6, "2 * gamma * errors", "gamma * errors", "lemma-6"),
    Mistake(LEMMA_6, "gamma * largest * setting", "largest * setting", "lemma-6-exact"),
    Mistake(PROP_7, "(gamma + gamma**2)", "gamma**2", "proposition-7 remark-8-nearest"),
    Mistake(PROP_7, "h * largest", "largest", "proposition-7-exact"),
    Mistake(PROP_7, "(selected * errors.delta).sum(-1) + ", "", "proposition-7"),
    Mistake(PROP_7, SELECTED, ALL, "proposition-7"),
    Mistake(PROP_9, "gamma * largest * mean_distance", "0 * mean_distance", "proposition-9"),
    Mistake(PROP_9, "mean_level(setting, selected)", "setting.levels.kappa_1", "proposition-9-exact"),
    Mistake(PROP_9, SELECTED, ALL, "proposition-9"),
    Mistake(FAPI, "imaginary=2 * gap", "imaginary=gap", "theorem-10"),
    Mistake(FAPI, "delta = gap + ", "delta = ", "theorem-10"),
    Mistake(
        bounds.Family.improvement,
        "full = self.with_evaluation if algorithm == 1",
        "full = self.with_evaluation if algorithm == 2",
        "lemma-5 lemma-6",
    ),
    Mistake(CONSTANTS, "2 * gamma * (gamma**2 - gamma + 1)", "gamma * (gamma**2 - gamma + 1)", "theorem-10-forms"),
    Mistake(CONSTANTS, "(gamma + gamma**2)", "(2 * gamma**2)", "theorem-10-forms"),
    Mistake(CONSTANTS, "gamma / (1 - gamma) ** 3", "gamma / (1 - gamma) ** 2", "theorem-10-forms"),
    Mistake(bounds.fapi_by_level, "2 * mean_delta", "mean_delta", "theorem-10-forms"),
    Mistake(bounds.homogeneous, "value_aggregation=2 * gamma", "value_aggregation=gamma", "proposition-14"),
    Mistake(bounds.homogeneous, "evaluation=2 * gamma", "evaluation=gamma", "proposition-14"),
    Mistake(bounds.homogeneous, "if selected is None else selected", "", "proposition-14-mended"),
    Mistake(bounds.selection_threshold, "2 * setting.discount", "setting.discount", "remark-8-needed"),
    Mistake(bounds.operator_difference, "setting.discount * ", "", "lemma-15"),
    Mistake(bounds.operator_difference, "* kappa", "* kappa / 2", "lemma-15"),
    Mistake(bounds.policy_difference, "np.sqrt(setting.num_actions)", "setting.num_actions", "lemma-16 lemma-5"),
    Mistake(bounds.policy_difference, "np.sqrt(setting.num_actions)", "np.sqrt(2)", "lemma-16 proposition-9"),
    Mistake(bounds.value_difference, "setting.horizon * ", "", "lemma-17"),
    Mistake(bounds.mean_distance, "setting.weights, ", "selected, ", "proposition-7"),
    Mistake(bounds.mean_level, "selected *", "setting.weights *", "proposition-9"),
    Mistake(sharper.operator_difference, "kappa / 2", "kappa / 3", "lemma-15-sharper lemma-5-sharper"),
    Mistake(sharper.policy_difference, "/ 2", "/ 3", "lemma-16-sharper proposition-9-sharper"),
    Mistake(sharper.value_difference, "kappa / 2", "kappa / 3", "lemma-17-sharper"),
    Mistake(SHARPER_4, "setting.discount**2", "setting.discount**3", "lemma-4-sharper"),
    Mistake(SHARPER_4, "np.minimum(first, second)", "second", "lemma-4-sharper"),
    Mistake(SHARPER_6, "4 * gamma", "2 * gamma", "lemma-6-sharper"),
    Mistake(SHARPER_7, "(selected + setting.weights)", "selected", "proposition-7-sharper"),
    Mistake(SHARPER_9, "2 * operator_difference", "operator_difference", "proposition-9-sharper"),
    Mistake(drawing.second_moment, "weights**2", "weights", "drawn-round drawn-pair drawn-table allocation"),
    Mistake(drawing.second_moment, " / probabilities", "", "drawn-round drawn-table allocation allocation-excess"),
    Mistake(drawing.second_moment, "lengths**2", "lengths", "drawn-table allocation allocation-excess"),
    Mistake(drawing.mean_square_error, " / num_drawn", "", "drawn-pair drawn-pair-sharper drawn-table"),
    Mistake(drawing.mean_square_error, "/ num_drawn", "/ num_drawn**2", "drawn-pair drawn-table"),
    Mistake(drawing.mean_square_error, " - (truth**2).sum(-1)", "", "drawn-round drawn-pair drawn-table"),
    Mistake(drawing.mean_square_error, "np.sqrt((vectors**2).sum(-1))", "(vectors**2).sum(-1)", "drawn-table"),
    Mistake(drawing.best_probabilities, "return weights * lengths", "return lengths", "allocation"),
    Mistake(drawing.largest_excess, "4 * a * b", "2 * a * b", "allocation-excess"),
    Mistake(drawing.largest_excess, "(a + b) ** 2", "(a + b)", "allocation-excess"),
    Mistake(drawing.largest_excess, "weights * lengths", "lengths", "allocation-excess"),
]
WRONG_STEPS = [
    Mistake(
        levels._dense_distances,
        "- mean[..., None, :, :, :]).sum(-1).max(",
        "- mean[..., None, :, :, :]).sum(-1).mean(",
        "lemma-5",
    ),
    Mistake(
        levels.levels_of, '"...i,...j,...ij->...", q, q, pairwise', '"...i,...ij->...", q, pairwise', "kappa-order-back"
    ),
    Mistake(
        operators.average_values,
        "evaluate(federation.clients, _for_clients(policy))",
        "evaluate(federation.imaginary, policy)[..., None, :]",
        "lemma-3 lemma-4",
    ),
    Mistake(
        iteration.measured_errors,
        "np.max(run.evaluation_errors[since:], axis=0)",
        "2 * run.evaluation_errors[0]",
        "proposition-1",
    ),
    Mistake(iteration._improve, "inject.into_policy(model.policy(theta), t)", "model.policy(theta)", "lemma-5"),
    Mistake(iteration.run_fapi, "inject.into_aggregate(model.values(w), t)", "model.values(w)", "lemma-6"),
    Mistake(iteration._measure_imaginary, "q.max(-1) - (run.policy * q).sum(-1)", "0 * q.max(-1)", "lemma-5 lemma-6"),
    Mistake(drawing.all_draws, "weights / probabilities", "weights", "drawn-mean drawn-improvement drawn-round"),
    Mistake(drawing.all_draws, "weights / probabilities", "1 / probabilities", "drawn-mean drawn-table"),
    Mistake(drawing.all_draws, "own / num_drawn", "own", "drawn-mean drawn-pair drawn-table"),
    Mistake(drawing.Draws.policies, "policy[..., None, :, :] +", "0 * policy[..., None, :, :] +", "drawn-mean"),
    Mistake(
        claims._average_at_least_imaginary,
        "case.average_values",
        "case.average_values + case.largest[:, None]",
        "lemma-3",
    ),
]


def changed(mistake: Mistake) -> Any:
    source = textwrap.dedent(inspect.getsource(mistake.function))
    assert source.count(mistake.right) == 1, "the table is out of step with the code"
    return code_of(mistake.function, source.replace(mistake.right, mistake.wrong))


def label(mistake: Mistake) -> str:
    module = mistake.function.__module__.split(".")[-1]
    return f"{module}.{mistake.function.__name__}: {mistake.wrong or 'without ' + mistake.right}"


@pytest.mark.parametrize("mistake", WRONG_CONSTANTS, ids=label)
def test_a_wrong_constant_is_noticed(mistake: Mistake, cases: dict[str, Case], monkeypatch) -> None:
    monkeypatch.setattr(mistake.function, "__code__", changed(mistake))
    found = unexpected(cases, mistake.noticed_by.split())
    assert all(found.values()), found


@pytest.mark.parametrize("mistake", WRONG_STEPS, ids=label)
def test_a_wrong_step_of_a_check_is_noticed(mistake: Mistake, monkeypatch) -> None:
    monkeypatch.setattr(mistake.function, "__code__", changed(mistake))
    findings = check_worst_cases(mistake.noticed_by.split())
    assert all(finding.complaints for finding in findings.values())


def verify(tmp_path: Path, *arguments: str) -> int:
    few = ["--instances", "40", "--climb-steps", "0", "--out", str(tmp_path)]
    return main(["theory", "verify", *few, *arguments])


def test_verify_fails_if_a_false_claim_is_not_violated(tmp_path: Path, monkeypatch, capsys) -> None:
    mistake = WRONG_STEPS[-1]
    assert mistake.noticed_by == "lemma-3"
    monkeypatch.setattr(mistake.function, "__code__", changed(mistake))
    assert verify(tmp_path, "--claims", "lemma-3,lemma-4") == 1
    line = "not as documented: lemma-3 (Lemma 3) is documented as false, but no instance violates it."
    assert line in capsys.readouterr().out.splitlines()


def test_verify_fails_if_a_constant_is_too_small(tmp_path: Path, monkeypatch, capsys) -> None:
    mistake = WRONG_CONSTANTS[0]
    monkeypatch.setattr(mistake.function, "__code__", changed(mistake))
    assert verify(tmp_path, "--claims", "proposition-1") == 1
    assert "proposition-1 (Prop. 1) is documented to hold, but 1 of 42 instances violate it." in capsys.readouterr().out


def test_verify_fails_if_a_constant_is_too_large(tmp_path: Path, monkeypatch, capsys) -> None:
    mistake = Mistake(bounds.value_gap, "gamma * h**2", "2 * gamma * h**2", "lemma-4")
    monkeypatch.setattr(mistake.function, "__code__", changed(mistake))
    assert verify(tmp_path, "--claims", "lemma-4") == 1
    printed = capsys.readouterr().out
    assert "lemma-4 (Lemma 4) has measured / bound 0.123729 at its worst case rare-detour" in printed
    assert "is documented to hold" not in printed


def test_a_rate_with_another_exponent_than_the_printed_one_is_named(monkeypatch) -> None:
    monkeypatch.setattr(bounds, "policy_aggregation_rate", np.asarray)
    (statement,) = (known for known in rates.STATEMENTS if "policy" in known.text)
    assert rates._measured(statement, seed=0).complaints == [
        "Lemma 12 (policy aggregation, in the radius R) states the exponent 1.00, printed is 0.50."
    ]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (lambda at, radius: len(at.signs) ** -0.5, "is documented to be violated, and is not."),
        (lambda at, radius: len(at.signs) ** 0.5, "has a worst case with the exponent 0.50, documented is 0.00."),
    ],
)
def test_a_rate_that_is_not_as_documented_is_named(error: Function, line: str) -> None:
    (first, *_) = rates.STATEMENTS
    found = rates._measured(first._replace(error=error), seed=0).complaints
    assert f"Lemma 18 (linearisation, in the width m) {line}" in found
