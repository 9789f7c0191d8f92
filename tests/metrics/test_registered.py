"""What every registered metric must do, and what happens to one that does not."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpohcs.cli import main
from fedpohcs.core.array_rules import BadReplyError
from fedpohcs.core.config import AttackConfig, ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import METRICS, SELECTORS
from fedpohcs.core.types import CandidateMetrics
from fedpohcs.execution.attacked import AttackedExecutor
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.metrics.base import Metric, MetricContext, each
from fedpohcs.metrics.packing import check_value, expected_arrays, num_bytes, pack, unpack_columns
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import run_experiment
from fedpohcs.server.replies import sound_metrics
from fedpohcs.server.selection import Selector, by_score

FEDERATION = FederationConfig(num_clients=6, num_candidates=4, num_selected=2, evaluation_episodes=3)
CONFIG = replace(preset("tabular"), rounds=1, federation=FEDERATION)
PREDICTED = replace(CONFIG, modelling=replace(CONFIG.modelling, missing="predicted"))
CLIENTS = np.array([4, 1, 5])
NAMES = tuple(METRICS)


def measured(config: ExperimentConfig, *names: str) -> tuple[InProcessExecutor, CandidateMetrics]:
    executor = InProcessExecutor(config)
    params = executor.initial_params()
    executor.evaluate(params, 0, np.arange(6))
    return executor, executor.measure(params, 0, CLIENTS, frozenset(names))


@pytest.fixture(scope="module", params=[CONFIG, PREDICTED], ids=["zero", "predicted"])
def everything(request: pytest.FixtureRequest) -> tuple[InProcessExecutor, CandidateMetrics]:
    return measured(request.param, *NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_client_has_a_value_that_keeps_the_rules_and_returns_from_its_arrays(name: str, everything) -> None:
    executor, metrics = everything
    column, config, params = metrics.column(name), executor.config, executor.initial_params()
    assert len(column) == len(CLIENTS)
    for value in column:
        check_value(name, value, config, params)
        assert pack(name, value).keys() == expected_arrays([name], config, params).keys()
    rows: list[Any] = [pack(name, value) for value in column]
    again = unpack_columns([name], rows)[name]
    for value, other in zip(column, again, strict=True):
        one, two = pack(name, value), pack(name, other)
        for array in one:
            np.testing.assert_array_equal(one[array], two[array], strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_values_belong_to_clients_and_not_to_their_place(name: str) -> None:
    _, together = measured(CONFIG, name)
    _, apart = measured(replace(CONFIG, executor="one-by-one"), name)
    rows = [[pack(name, value) for value in one.column(name)] for one in (together, apart)]
    for mine, theirs in zip(*rows, strict=True):
        for array in mine:
            np.testing.assert_allclose(mine[array], theirs[array], rtol=1e-3, atol=1e-6)
    first, second = (np.concatenate([np.ravel(x) for x in arrays.values()]) for arrays in rows[0][:2])
    assert name == "episode_length" or first.shape != second.shape or (first != second).any()


@pytest.mark.parametrize("name", NAMES)
def test_a_client_whose_value_is_not_finite_is_left_out_and_named(name: str, everything) -> None:
    executor, metrics = everything
    column = metrics.column(name)
    arrays: Any = pack(name, column[1])
    wrong = next(array for array, x in arrays.items() if x.dtype.kind == "f")
    spoiled = unpack_columns([name], [arrays | {wrong: np.full_like(arrays[wrong], np.nan)}])[name][0]
    values = [spoiled if row == 1 else value for row, value in enumerate(column)]
    given = CandidateMetrics(CLIENTS, {name: METRICS[name].join(values)})
    found = sound_metrics(given, CLIENTS, executor.config, executor.initial_params())
    assert found.client.tolist() == [4, 5]
    assert [(bad.client, bad.rule, bad.array) for bad in found.bad] == [(1, "finite", wrong)]
    assert len(found.column(name)) == 2


def test_bytes_are_those_of_the_arrays(everything) -> None:
    _, metrics = everything
    sizes = {name: num_bytes(name, metrics.column(name)[0]) for name in NAMES}
    table = metrics.column("weighted_advantage")[0]
    fill = 0 if table.fill is None else sum(array.nbytes for array in table.fill)
    assert sizes.pop("weighted_advantage") == 16 * len(table.pair) + fill
    assert sizes.pop("policy_gradient") == 4 * (6 * 3 + 3)  # one linear layer
    assert set(sizes.values()) == {8}


def test_a_predictor_must_come_with_a_table_that_is_not_empty_and_not_without_being_asked_for(everything) -> None:
    executor, metrics = everything
    config, params = executor.config, executor.initial_params()
    table = metrics.column("weighted_advantage")[0]
    other = PREDICTED if config.modelling.missing == "zero" else CONFIG
    with pytest.raises(BadReplyError) as refused:
        check_value("weighted_advantage", table, other, params)
    assert refused.value.rule == "names"
    empty = table._replace(pair=table.pair[:0], value=table.value[:0], fill=None)
    check_value("weighted_advantage", empty, config, params)


@pytest.mark.parametrize("name", ["episode_length", "return_gradient", "gradient_scale", "return_std"])
def test_what_tables_are_made_of_does_not_change_what_other_metrics_read(name: str) -> None:
    modelling = replace(CONFIG.modelling, episodes=3, steps_per_episode=9)
    _, cut = measured(replace(CONFIG, modelling=modelling), name)
    _, whole = measured(CONFIG, name)
    assert cut.column(name).tolist() == whole.column(name).tolist()


def test_the_length_of_an_episode_counts_all_of_its_steps() -> None:
    _, metrics = measured(CONFIG, "episode_length")
    assert metrics.column("episode_length").tolist() == [50, 50, 50]


@pytest.mark.parametrize(("name", "plays"), [("mean_return", True), ("episode_length", True), ("own", False)])
def test_a_policy_that_was_not_evaluated_is_played_for_metrics_that_read_what_was_played(
    name: str, plays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS, "own", Metric(each(lambda context, client: 1.0), reads=None))
    executor = InProcessExecutor(replace(CONFIG, federation=replace(FEDERATION, evaluation_every=2)))
    params = executor.initial_params()
    executor.evaluate(params, 0, np.arange(6))
    before = executor.latest_returns(CLIENTS)
    executor.measure(params, 1, CLIENTS, frozenset({name}))
    assert (executor.latest_returns(CLIENTS) != before).all() == plays
    assert len(executor.episodes_of(4, modelled=True)) == (2 if name == "episode_length" else 1)


def test_reading_a_metric_that_was_not_required_is_refused_by_name() -> None:
    metrics = CandidateMetrics(CLIENTS, {"mean_return": np.zeros(3)})
    with pytest.raises(UserError, match=r"metric \(='gradient_norm'\) was not measured, only mean_return.*`requires`"):
        metrics.column("gradient_norm")


def selector_reading(*names: str) -> Callable[[], Selector]:
    """Selects by the first metric, which must be a number."""
    chosen = by_score("score", names[0], lambda question, metrics: {"score": metrics.column(names[0])})
    return lambda: chosen._replace(requires=frozenset(names))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], ExperimentConfig]:
    """Registers a metric of one's own and a selector that reads it; gives a config with both."""

    def register(metric: Any, *more: str) -> ExperimentConfig:
        monkeypatch.setitem(METRICS, "own", metric)
        monkeypatch.setitem(SELECTORS, "own", selector_reading("own", *more))
        return replace(CONFIG, selector="own")

    return register


def latest_reward(context: MetricContext, client: int) -> float:
    """The last reward of the last episode."""
    return context.episodes(client)[-1].reward[-1, -1]


def test_a_metric_of_ones_own_selects(registered: Callable[[Any], ExperimentConfig]) -> None:
    config = registered(Metric(each(lambda context, client: float(client))))
    record = run_experiment(config).records[1]
    assert record.selection.client.tolist() == sorted(record.candidates.tolist())[-2:]
    assert set(record.upload_bytes.values()) == {8}


def raises(context: MetricContext, client: int) -> float:
    if client != 0:
        raise RuntimeError("no\nsuch thing")
    return 0.0


def raises_at_once(context: MetricContext, clients: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError("by zero")


def only_for(client: int, value: float) -> Callable[[MetricContext, int], float]:
    return lambda context, other: value if other == client else 1.0


WRONG = {
    "raises for a client": (Metric(each(raises)), r"failed for client \d: RuntimeError: no such thing"),
    "raises": (Metric(raises_at_once), "failed: ZeroDivisionError: by zero"),
    "too few rows": (
        Metric(lambda context, clients: np.zeros(len(clients) - 1)),
        "one value per client, not 3 for 4",
    ),
    "one number": (Metric(lambda context, clients: 1.0), "failed: TypeError"),
    "never finite": (Metric(each(lambda context, client: math.nan)), r"no value .* of client \d .* is not finite"),
    "not numbers": (Metric(each(lambda context, client: "much")), "failed: ValueError: could not convert"),
    "vectors for numbers": (Metric(each(lambda context, client: [1.0, 2.0])), r"has the shape \(2,\), not \(\)"),
    "no metric": (latest_reward, "instance of fedpohcs.metrics.base.Metric, not function"),
    "no such episodes": (Metric(each(latest_reward), reads=None), r"episodes of client \d, which recorded none"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_metric_ends_the_run_in_one_line_that_names_it(kind: str, registered, capsys, tmp_path) -> None:
    metric, message = WRONG[kind]
    config = registered(metric)
    with pytest.raises(UserError, match=rf"^metric \(='own'\) .*{message}"):
        run_experiment(config)
    small = ["--clients", "6", "--federation.num-candidates", "4", "--federation.num-selected", "2", "--rounds", "1"]
    assert main(["train", "tabular", "--selector", "own", *small, "--out", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("fedpohcs: metric (='own')")


def test_one_client_whose_own_metric_is_not_finite_is_left_out_and_the_run_goes_on(registered) -> None:
    config = registered(Metric(each(only_for(3, math.inf))))
    records = run_experiment(replace(config, rounds=4)).records[1:]
    bad = [(bad.client, bad.rule, bad.array) for record in records for bad in record.bad_replies]
    assert bad and set(bad) == {(3, "finite", "own")}
    assert not any(3 in record.selection.client for record in records)


def test_an_unknown_metric_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SELECTORS, "own", selector_reading("mean_retrun"))
    with pytest.raises(UserError, match=r"requires \(='mean_retrun'\) is not known. Did you mean 'mean_return'"):
        check_config(replace(CONFIG, selector="own"))


@pytest.mark.parametrize("name", ["a,b", "a/b", "selection_metric"])
def test_a_name_that_would_be_misread_in_a_message_or_a_column_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS, name, METRICS["mean_return"])
    monkeypatch.setitem(SELECTORS, "own", selector_reading(name))
    with pytest.raises(UserError, match="must be a name of letters, digits and underscores"):
        check_config(replace(CONFIG, selector="own"))


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (
            ("policy_gradient",),
            r"selector \(='own'\) reads the metric 'policy_gradient', which privacy 'masked' cannot",
        ),
        (
            ("own", "weighted_advantage"),
            "reads 2 tables, own and weighted_advantage, of which privacy 'masked' can hide",
        ),
    ],
)
def test_what_privacy_cannot_hide_is_refused_with_metric_and_selector(
    requires: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS, "own", METRICS["weighted_advantage"])
    monkeypatch.setitem(SELECTORS, "own", lambda: selector_reading(*requires)()._replace(private=True))
    with pytest.raises(UserError, match=message):
        check_config(replace(CONFIG, selector="own", privacy="masked"))


def test_lies_about_scores_go_the_way_each_metric_is_read() -> None:
    honest, truth = measured(CONFIG, *NAMES)
    attacked = AttackedExecutor(honest, replace(CONFIG, attack=AttackConfig("lying-score", (1,), scale=100.0)))
    told = attacked.measure(honest.initial_params(), 0, CLIENTS, frozenset(NAMES))
    for name, direction in (("mean_return", -1), ("return_std", 1), ("episode_length", 1), ("gradient_norm", 1)):
        before, after = truth.column(name), told.column(name)
        assert after.tolist() == [before[0], direction * 100 * max(abs(before[1]), 1.0), before[2]]
    np.testing.assert_array_equal(truth.column("policy_gradient"), told.column("policy_gradient"))
    tables = (metrics.column("weighted_advantage")[1].value for metrics in (truth, told))
    np.testing.assert_array_equal(*tables)


@pytest.mark.parametrize(
    ("attack", "requires", "refused"),
    [
        ("lying-score", ("return_std", "weighted_advantage"), False),
        ("lying-score", ("policy_gradient",), True),
        ("lying-score", ("weighted_advantage",), True),
        ("inflated-table", ("weighted_advantage",), False),
        ("inflated-table", ("return_std",), True),
    ],
)
def test_an_attack_on_what_no_client_sends_is_refused(
    attack: str, requires: tuple[str, ...], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SELECTORS, "own", selector_reading(*requires))
    config = replace(CONFIG, selector="own", attack=AttackConfig(attack, (1,)))
    if refused:
        with pytest.raises(UserError, match="which no client sends with selector own"):
            check_config(config)
    else:
        check_config(config)
