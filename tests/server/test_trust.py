"""Byzantine clients and what limits them: attacks, clipped tables, capped selections, and what is written of them."""

import hashlib
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.tables import statistics_tables
from fedpohcs.analysis.trust import trust_figures
from fedpohcs.cli import main
from fedpohcs.core.algorithms import with_algorithm
from fedpohcs.core.config import AttackConfig, DefenceConfig, ExperimentConfig, FederationConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.registries import AGGREGATORS, ATTACKS, SELECTORS
from fedpohcs.core.toml import read_toml
from fedpohcs.core.trees import take_clients
from fedpohcs.core.types import CandidateMetrics, WeightedAdvantage
from fedpohcs.execution.attacked import Attack, AttackContext, AttackedExecutor
from fedpohcs.execution.in_process import InProcessExecutor
from fedpohcs.runs.checkpoints import checkpoint_files
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment, start_training
from fedpohcs.runs.loading import Run, load_run
from fedpohcs.server.defences import defended, remember
from fedpohcs.server.selection import Question, heterogeneity_scores

FEDERATION = FederationConfig(num_clients=12, num_candidates=8, num_selected=3, evaluation_episodes=8)
CONFIG = replace(preset("tabular", selector="fedpohcs"), rounds=4, federation=FEDERATION)
CAP = DefenceConfig(max_selections=2, window=4)
COHORT = ProtectionConfig(sketch_size=1024, min_cohort=3, release="scores")


def tables(*scales: float) -> tuple[WeightedAdvantage, ...]:
    generator = np.random.default_rng(0)
    rows = [1 + generator.normal(size=30) for _ in scales]
    return tuple(
        WeightedAdvantage(np.arange(30, dtype=np.uint64), scale * row / np.linalg.norm(row))
        for scale, row in zip(scales, rows, strict=True)
    )


def question(count: int, **changes: object) -> Question:
    asked = Question(np.arange(count), 2, count, np.full(count, 1 / count), np.random.default_rng(0))
    return asked._replace(**changes)


def of_role(run: Run, role: str, metric: str) -> dict[tuple[int, int], float]:
    table = run.clients
    rows = (table["role"] == role) & (table["metric"] == metric)
    keys = zip(table["round"][rows].tolist(), table["client"][rows].tolist(), strict=True)
    return dict(zip(keys, table["value"][rows].tolist(), strict=True))


def selections(run: Run) -> list[set[int]]:
    return [{int(client) for client in ids.split()} for ids in run.rounds["selected"][1:]]


def test_an_inflated_table_buys_a_selection_and_the_clip_takes_it_back() -> None:
    honest, inflated = tables(1, 1, 1, 1, 0.2), tables(1, 1, 1, 1, 20)
    clients = np.arange(5)

    def rank(given: tuple[WeightedAdvantage, ...], clip: float | None) -> list[int]:
        scores = heterogeneity_scores(question(5, table_clip=clip), clients, given)
        return np.argsort(-scores["selection_metric"]).tolist()

    assert rank(honest, None)[-1] == 4
    assert rank(inflated, None)[0] == 4
    assert rank(inflated, 1.0)[0] != 4


def test_only_tables_above_the_limit_are_scaled_and_that_is_told() -> None:
    scores = heterogeneity_scores(question(5, table_clip=1.5), np.arange(5), tables(1, 1, 1, 1.2, 6))
    np.testing.assert_allclose(scores["table_scale"], [1, 1, 1, 1, 0.25], atol=1e-12)
    np.testing.assert_allclose(scores["learning_potential"][-1], 1.5)
    given = tables(1, 1, 1, 1.2, 1.3)
    clipped, plain = (heterogeneity_scores(question(5, table_clip=c), np.arange(5), given) for c in (1.5, None))
    assert "table_scale" not in plain
    for name, values in plain.items():
        np.testing.assert_array_equal(clipped[name], values)


def test_tables_of_which_most_are_empty_are_not_clipped() -> None:
    scores = heterogeneity_scores(question(5, table_clip=1.5), np.arange(5), tables(0, 0, 0, 1, 6))
    np.testing.assert_array_equal(scores["table_scale"], np.ones(5))


@settings(max_examples=50, deadline=None)
@given(most=st.integers(1, 3), window=st.integers(1, 7), seed=st.integers(0, 1000))
def test_nobody_is_selected_more_often_than_the_cap_in_any_window(most: int, window: int, seed: int) -> None:
    defence = DefenceConfig(max_selections=most, window=window)
    generator, recent, chosen = np.random.default_rng(seed), (), []
    for _ in range(25):
        candidates = np.sort(generator.choice(8, 6, replace=False))
        left, capped = defended(question(8, candidates=candidates), recent, defence)
        np.testing.assert_array_equal(np.union1d(left.candidates, capped), candidates)
        chosen.append(left.candidates[: left.num_selected])  # the lowest ids always want to train
        recent = remember(recent, chosen[-1], defence)
        assert len(recent) <= window - 1
    for start in range(len(chosen)):
        times = np.bincount(np.concatenate(chosen[start : start + window]), minlength=8)
        assert times.max() <= most


def test_a_capped_candidate_is_free_again_when_the_window_has_passed() -> None:
    defence, recent = DefenceConfig(max_selections=1, window=3), ()
    seen = []
    for _ in range(6):
        left, _ = defended(question(1, num_selected=1), recent, defence)
        seen.append(len(left.candidates))
        recent = remember(recent, left.candidates, defence)
    assert seen == [1, 0, 0, 1, 0, 0]


COMPILES = {"optimal-sampling", "optimal-sampling-approximate", "gradient-agreement", "divfl", "oort"}
"""Their metrics are compiled anew for every number of candidates, which the cap changes from round to round."""


@pytest.mark.parametrize("selector", [name for name in SELECTORS if name not in {"full", *COMPILES}])
def test_the_cap_holds_with_every_selector_and_is_written(selector: str, tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, selector=selector, rounds=6, defence=CAP), tmp_path / "run")
    run = load_run(tmp_path / "run")
    chosen = selections(run)
    capped = of_role(run, "capped", "capped")
    for number, window in enumerate(zip(*(chosen[i:] for i in range(CAP.window)), strict=False), start=1):
        times = np.bincount([client for some in window for client in some], minlength=12)
        assert times.max() <= CAP.max_selections, number
    assert capped
    for number, client in capped:
        before = chosen[max(0, number - CAP.window) : number - 1]
        assert sum(client in some for some in before) == CAP.max_selections
        assert str(client) not in run.rounds["candidates"][number].split()


def test_a_round_in_which_everybody_is_capped_keeps_the_policy_and_goes_on(tmp_path: Path) -> None:
    federation = FederationConfig(num_clients=4, num_candidates=2, num_selected=1, evaluation_episodes=4)
    for selector in ("fedavg", "gradient-norm", "fedpohcs", "fedpohcs-one-phase"):
        defence = DefenceConfig(max_selections=1, window=4)
        config = replace(CONFIG, selector=selector, rounds=12, federation=federation, defence=defence)
        training = start_training(config)
        empty, before = 0, None
        for record in training.remaining_rounds():
            if before is not None and not len(record.selection.client):
                empty += 1
                jax.tree.map(np.testing.assert_array_equal, before, training.state.params)
            before = training.state.params
        assert empty and training.state.round == 12


@pytest.mark.parametrize("selector", ["fedpohcs", "fedpohcs-one-phase"])
@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attacked_and_defended_run_that_stopped_writes_the_same_bytes(
    kind: str, selector: str, tmp_path: Path
) -> None:
    private = ATTACKS[kind].about == "score"
    config = replace(
        CONFIG,
        selector=selector,
        federation=replace(FEDERATION, aggregator="trimmed-mean"),
        attack=AttackConfig(kind, (1, 5, 7)),
        defence=CAP if private else replace(CAP, table_clip=1.5),
        privacy="masked" if private else "none",
        protection=COHORT,
    )
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=2), tmp_path / "stopped")
    resume_experiment(tmp_path / "stopped", rounds=4)
    for file in ("config.json", "rounds.csv", "clients.csv"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes()
    assert load_run(tmp_path / "whole").config.attack == config.attack


def test_a_checkpoint_of_before_there_was_a_cap_is_still_read(tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, rounds=2), tmp_path / "run")
    run_experiment(replace(CONFIG, rounds=3), tmp_path / "whole")
    for path in checkpoint_files(tmp_path / "run"):
        _, _, body = path.read_bytes().partition(b"\n")
        text, _, arrays = body.partition(b"\n")
        head = json.loads(text)
        server = head["state"]["fields"][0]
        assert server["type"] == "server-state"
        server["fields"] = server["fields"][:3]
        for section in ("defence", "attack"):
            del head["config"][section]
        body = json.dumps(head).encode() + b"\n" + arrays
        first = f"fedpohcs-checkpoint-1 {hashlib.sha256(body).hexdigest()} {len(body)}\n"
        path.write_bytes(first.encode() + body)
    resume_experiment(tmp_path / "run", rounds=3)
    assert (tmp_path / "run" / "rounds.csv").read_bytes() == (tmp_path / "whole" / "rounds.csv").read_bytes()


def attacked(config: ExperimentConfig) -> tuple[InProcessExecutor, AttackedExecutor]:
    honest = InProcessExecutor(config)
    start = honest.initial_params()
    honest.evaluate(start, 0, np.arange(12))
    return honest, AttackedExecutor(honest, config)


def test_only_byzantine_clients_inflate_their_tables() -> None:
    config = replace(CONFIG, attack=AttackConfig("inflated-table", (2, 4), scale=7.0))
    honest, byzantine = attacked(config)
    clients, start = np.array([1, 2, 3, 4]), honest.initial_params()
    told = [
        e.measure(start, 0, clients, {"weighted_advantage", "mean_return", "gradient_norm"})
        for e in (honest, byzantine)
    ]
    for row, client in enumerate(clients.tolist()):
        truth, claim = (metrics.column("weighted_advantage")[row] for metrics in told)
        np.testing.assert_array_equal(claim.pair, truth.pair)
        np.testing.assert_array_equal(claim.value, truth.value * (7.0 if client in (2, 4) else 1.0))
    for name in ("mean_return", "gradient_norm"):
        np.testing.assert_array_equal(told[0].column(name), told[1].column(name))


@pytest.mark.parametrize("selector", ["power-of-choice", "gradient-norm"])
@pytest.mark.parametrize("privacy", ["none", "masked"])
def test_who_lies_about_its_score_is_selected_whenever_it_is_a_candidate(
    selector: str, privacy: str, tmp_path: Path
) -> None:
    config = replace(
        CONFIG, selector=selector, privacy=privacy, protection=COHORT, attack=AttackConfig("lying-score", (6,), 1000.0)
    )
    run_experiment(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    asked = [number for number, ids in enumerate(run.rounds["candidates"]) if "6" in ids.split()]
    assert asked
    assert all(6 in selections(run)[number - 1] for number in asked)


@pytest.mark.parametrize("selector", ["fedpohcs", "fedpohcs-one-phase"])
def test_a_forged_score_in_masked_selection_is_no_larger_than_what_the_server_reads(
    selector: str, tmp_path: Path
) -> None:
    attack = AttackConfig("lying-score", (6,))
    config = replace(CONFIG, selector=selector, privacy="masked", protection=COHORT, attack=attack)
    run_experiment(config, tmp_path / "run")
    scores = of_role(load_run(tmp_path / "run"), "candidate", "selection_metric")
    claims = [score for (_, client), score in scores.items() if client == 6]
    assert claims and set(claims) == {1.0}
    assert max(score for (_, client), score in scores.items() if client != 6) < 1.0


def test_an_inflated_table_goes_through_the_masks(tmp_path: Path) -> None:
    config = replace(CONFIG, rounds=1, privacy="masked", protection=COHORT)
    attacked = replace(config, attack=AttackConfig("inflated-table", tuple(range(6)), 100.0))
    for name, one in (("honest", config), ("attacked", attacked)):
        run_experiment(one, tmp_path / name)
    before, after = (
        of_role(load_run(tmp_path / name), "candidate", "selection_metric") for name in ("honest", "attacked")
    )
    byzantine = [key for key in before if key[1] < 6]
    assert np.mean([after[key] for key in byzantine]) > np.mean([before[key] for key in byzantine])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("flipped-update", lambda new, old: old - 3 * (new - old)),
        ("nan-update", lambda new, old: np.full_like(new, np.nan)),
        ("zero-update", lambda new, old: np.zeros_like(new)),
    ],
)
def test_a_byzantine_update_is_what_its_name_says_and_the_others_are_untouched(kind: str, expected) -> None:
    config = replace(CONFIG, attack=AttackConfig(kind, (2,), scale=3.0))
    clients, start = np.array([1, 2, 3]), InProcessExecutor(config).initial_params()
    truth, told = (executor.train(start, 0, clients) for executor in (attacked(config)[0], attacked(config)[1]))
    for new, sent, old in zip(*map(jax.tree.leaves, (truth.params, told.params, start)), strict=True):
        np.testing.assert_array_equal(sent[[0, 2]], new[[0, 2]])
        np.testing.assert_allclose(sent[1], expected(new[1], old), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(told.info["lied"], [0, 1, 0])


def test_noise_is_as_large_as_the_scale_says_and_comes_from_the_seed() -> None:
    config = replace(CONFIG, attack=AttackConfig("noisy-update", (2,), scale=10.0))
    clients, start = np.array([1, 2, 3]), InProcessExecutor(config).initial_params()
    truth = attacked(config)[0].train(start, 0, clients)
    first, second = (attacked(config)[1].train(start, 0, clients).params for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    change = truth.params.policy.layers[0].kernel[1] - start.policy.layers[0].kernel
    noise = first.policy.layers[0].kernel[1] - start.policy.layers[0].kernel
    assert 5 < np.linalg.norm(noise) / np.linalg.norm(change) < 20


def test_no_change_is_what_the_server_sent() -> None:
    start = {"w": np.array([1.0, 2.0])}
    sent = ATTACKS["zero-gradient"].forge({"w": np.array([5.0, 5.0])}, start, context())
    assert sent["w"].tolist() == [1.0, 2.0]


def context(scale: float = 1.0, updates: Any = None, client: int = 0) -> AttackContext:
    return AttackContext(scale, np.random.default_rng(client), np.random.default_rng(7), updates)


def test_uniform_noise_is_bounded_by_the_scale_times_the_range_of_the_change() -> None:
    start, update = {"w": np.zeros(1000)}, {"w": np.linspace(-1, 3, 1000)}
    noise = ATTACKS["uniform-noise"].forge(update, start, context(3.0))["w"] - update["w"]
    assert 11.5 < noise.max() <= 12 and -12 <= noise.min() < -11.5
    assert abs(noise.mean()) < 0.8


def test_colluding_clients_send_their_mean_moved_by_their_largest_distance() -> None:
    updates = {"a": np.array([[0.0], [3.0], [0.0]]), "b": np.array([[0.0, 0.0], [0.0, 0.0], [4.0, 0.0]])}
    sent = [
        ATTACKS["colluding"].forge(take_clients(updates, row), None, context(1.5, updates, row)) for row in range(3)
    ]
    vectors = [np.concatenate([one["a"], one["b"]]) for one in sent]
    mean = np.array([1.0, 4 / 3, 0.0])
    assert math.isclose(np.linalg.norm(vectors[0] - mean), 1.5 * 5)  # from (3, 0, 0) to (0, 4, 0)
    assert all(np.array_equal(one, vectors[0]) for one in vectors)


@pytest.mark.parametrize("xp", [np, jnp])
def test_rewards_are_negated_or_shuffled_among_steps(xp: Any) -> None:
    reward, valid = xp.arange(12.0).reshape(6, 2), xp.array([[True, True]] * 4 + [[True, False], [False, False]])
    noise = xp.asarray(np.random.default_rng(0).random((6, 2)))
    assert np.array_equal(ATTACKS["flipped-reward"].forge().reward(reward, valid, noise), -reward)
    shuffled = np.asarray(ATTACKS["shuffled-rewards"].forge().reward(reward, valid, noise))
    kept = np.asarray(valid)
    assert sorted(shuffled[kept]) == sorted(np.asarray(reward)[kept])
    assert not np.array_equal(shuffled[kept], np.asarray(reward)[kept])
    assert np.array_equal(shuffled[~kept], np.asarray(reward)[~kept])


@pytest.mark.parametrize("kind", ["flipped-reward", "random-action"])
def test_byzantine_clients_learn_from_spoiled_episodes_and_the_others_do_not(kind: str) -> None:
    """Of a gradient, flipped rewards are the opposite; the server's own episodes are never spoiled."""
    config = with_algorithm(replace(CONFIG, attack=AttackConfig(kind, (2,))), "gpomdp")
    learner = replace(config.learner, episodes=3, filter_warmup_steps=0, filter_rewards=False)
    config = replace(config, learner=learner)
    (within, _), (_, told) = attacked(config), attacked(config)
    clients, start = np.array([1, 2, 3]), within.initial_params()
    one, other = (executor.simulate(start, 0, clients, {}, 1) for executor in (within, told))
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    truth, lies = within.train(start, 0, clients), told.train(start, 0, clients)
    honest, sent = (x.params.policy.layers[0].kernel - start.policy.layers[0].kernel for x in (truth, lies))
    np.testing.assert_allclose(sent[[0, 2]], honest[[0, 2]], atol=1e-6)
    if kind == "flipped-reward":
        np.testing.assert_allclose(sent[1], -honest[1], atol=1e-5)
    assert np.abs(sent[1] - honest[1]).max() > 1e-4
    np.testing.assert_array_equal(lies.info["lied"], [0, 1, 0])


def test_one_of_the_selected_lies_each_round(tmp_path: Path) -> None:
    config = replace(
        CONFIG,
        rounds=8,
        federation=replace(FEDERATION, aggregator="trimmed-mean"),
        attack=AttackConfig("flipped-update", "one-selected"),
    )
    run_experiment(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    lied = of_role(run, "selected", "lied")
    by_round = [[client for (n, client), value in lied.items() if n == number and value] for number in range(1, 9)]
    assert all(len(byzantine) == 1 for byzantine in by_round)
    assert all(set(byzantine) <= chosen for byzantine, chosen in zip(by_round, selections(run), strict=True))
    places = [sorted(chosen).index(byzantine[0]) for byzantine, chosen in zip(by_round, selections(run), strict=True)]
    assert len(set(places)) > 1


def test_the_aggregator_counts_a_byzantine_client_least(tmp_path: Path) -> None:
    federation = replace(FEDERATION, num_selected=6, aggregator="trimmed-mean")
    attack = AttackConfig("flipped-update", "one-selected", scale=30.0)
    run_experiment(replace(CONFIG, federation=federation, attack=attack), tmp_path / "run")
    run = load_run(tmp_path / "run")
    lied, counted = of_role(run, "selected", "lied"), of_role(run, "selected", "counted")
    byzantine, others = ([counted[key] for key in lied if lied[key] == told] for told in (1.0, 0.0))
    assert max(byzantine) < 0.2 < np.mean(others)


def test_an_update_of_nan_is_named_and_the_others_train(tmp_path: Path) -> None:
    config = replace(CONFIG, attack=AttackConfig("nan-update", "one-selected"))
    run_experiment(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.rounds["num_rejected"].tolist() == [0, 1, 1, 1, 1]
    lied = {key for key, value in of_role(run, "selected", "lied").items() if value}
    assert of_role(run, "rejected", "rejected").keys() == lied
    assert all(a != b for a, b in pairwise(run.rounds["mean_return"]))


def test_an_attack_of_ones_own_is_one_function_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        ATTACKS, "half-table", Attack("table", lambda table, context: table._replace(value=table.value / 2))
    )
    config = replace(CONFIG, attack=AttackConfig("half-table", (2,)))
    check_config(config)
    honest, byzantine = attacked(config)
    told = [e.measure(honest.initial_params(), 0, np.array([2]), {"weighted_advantage"}) for e in (honest, byzantine)]
    truth, claim = (metrics.column("weighted_advantage")[0].value for metrics in told)
    np.testing.assert_array_equal(claim, truth / 2)


def test_a_client_that_was_lost_cannot_lie_about_its_score() -> None:
    class Silent:
        num_clients, most_steps = 3, None

        def measure(self, *rest: object) -> CandidateMetrics:
            return CandidateMetrics(np.arange(3), {"selection_metric": np.array([0.5, np.nan, 0.25])}, private=True)

    config = replace(CONFIG, privacy="masked", attack=AttackConfig("lying-score", (1, 2)))
    told = AttackedExecutor(Silent(), config).measure(None, 0, np.arange(3), frozenset())  # type: ignore[arg-type]
    np.testing.assert_array_equal(told.column("selection_metric"), [0.5, np.nan, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": AttackConfig("inflated-tabel")}, "Did you mean 'inflated-table'"),
        ({"attack": AttackConfig("inflated-table"), "selector": "fedavg"}, "is about tables, which no client sends"),
        ({"attack": AttackConfig("lying-score")}, "is about scores, which no client sends"),
        ({"attack": AttackConfig("lying-score"), "selector": "fedavg"}, "is about scores"),
        ({"attack": AttackConfig("inflated-table", "one-selected")}, "is for attacks on updates"),
        ({"defence": DefenceConfig(max_selections=20), "selector": "full"}, "selects everyone"),
        ({"federation": replace(FEDERATION, aggregator="krum")}, r"num_selected \(=3\) must be at least 5 for krum"),
        ({"federation": replace(FEDERATION, aggregator="multi-krum")}, "at least 5"),
        (
            {"federation": replace(FEDERATION, aggregator="trimmed-mean", tolerated_liars=2)},
            r"at least 5 for trimmed-mean to tolerate federation.tolerated_liars \(=2\) Byzantine clients",
        ),
        ({"federation": replace(FEDERATION, aggregator="norm-clip", tolerated_liars=2)}, "at least 5"),
        ({"federation": replace(FEDERATION, aggregator="coordinate-median", tolerated_liars=2)}, "at least 5"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run_experiment(replace(CONFIG, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_full_participation_gives_krum_enough_updates() -> None:
    config = replace(CONFIG, rounds=1, selector="full", federation=replace(FEDERATION, aggregator="krum"))
    assert len(run_experiment(config).records) == 2


def test_attacks_and_defences_are_set_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--attack.kind", "inflated-table", "--attack.clients", "2", "5", "--attack.scale", "50"]
    given += ["--defence.table-clip", "1.5", "--defence.max-selections", "4", "--defence.window", "8"]
    assert main(["train", "tabular", "--rounds", "1", "--out", str(tmp_path / "run"), *given]) == 0
    config = load_run(tmp_path / "run").config
    assert config.attack == AttackConfig("inflated-table", (2, 5), 50.0)
    assert config.defence == DefenceConfig(1.5, 4, 8)
    capsys.readouterr()
    selected = ["--attack.kind", "zero-update", "--attack.clients", "one-selected"]
    assert main(["config", "tabular", *selected]) == 0
    (tmp_path / "own.toml").write_text(capsys.readouterr().out)
    assert read_toml(tmp_path / "own.toml").attack == AttackConfig("zero-update", "one-selected")


def test_the_list_of_names_explains_every_aggregator_and_attack(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert all(lines[name].strip() != name for name in (*ATTACKS, *AGGREGATORS))


def test_the_same_files_are_written_whether_a_defence_that_never_bites_is_on_or_off(tmp_path: Path) -> None:
    never = DefenceConfig(max_selections=40, window=40)
    for name, defence in (("off", DefenceConfig()), ("on", never)):
        run_experiment(replace(CONFIG, defence=defence), tmp_path / name)
    for file in ("rounds.csv", "clients.csv"):
        assert (tmp_path / "off" / file).read_bytes() == (tmp_path / "on" / file).read_bytes()


def test_tables_say_what_byzantine_clients_gained_and_defences_did(tmp_path: Path) -> None:
    federation = replace(FEDERATION, num_selected=5, aggregator="multi-krum")
    attack = AttackConfig("flipped-update", "one-selected", scale=30.0)
    defence = DefenceConfig(table_clip=0.5, max_selections=4, window=6)
    config = replace(CONFIG, rounds=8, federation=federation)
    run_experiment(replace(config, attack=attack, defence=defence), tmp_path / "attacked")
    run = load_run(tmp_path / "attacked")
    figures = trust_figures(run)
    assert figures["candidates capped, per round"] == len(of_role(run, "capped", "capped")) / 8 > 0
    assert figures["tables clipped, per round"] > 3
    assert figures["share of a Byzantine update that counted"] < 0.2 < figures["share of an honest update that counted"]
    table = statistics_tables(load_groups([tmp_path / "attacked"]))[-1]
    assert table.title.startswith("what Byzantine clients gained and defences did")
    assert [row[0] for row in table.rows] == list(figures)


def test_tables_say_how_often_a_byzantine_client_was_selected_and_nothing_about_plain_runs(tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, attack=AttackConfig("inflated-table", (1, 2))), tmp_path / "attacked")
    run = load_run(tmp_path / "attacked")
    expected = sum(len(chosen & {1, 2}) for chosen in selections(run)) / 2 / 4
    assert trust_figures(run) == {"selections of a Byzantine client, per round": expected}
    run_experiment(CONFIG, tmp_path / "plain")
    assert trust_figures(load_run(tmp_path / "plain")) == {}
    titles = [table.title for table in statistics_tables(load_groups([tmp_path / "plain"]))]
    assert not any("Byzantine" in title for title in titles)
