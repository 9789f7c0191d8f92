"""Selectors that draw clients in proportion to what they add to the mean return."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpohcs.cli import main
from fedpohcs.core.config import FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import CandidateMetrics, Selection, WeightedAdvantage
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.server.selection import Question, make_selector

CLIENTS = np.array([7, 2, 5, 0])
FILES = ("rounds.csv", "clients.csv", "policy.npz")
SMALL = FederationConfig(num_clients=6, num_candidates=5, num_selected=2, evaluation_episodes=2)
CONFIG = replace(preset("tabular"), rounds=4, federation=SMALL)


def question(k: int, seed: int, weight: np.ndarray | None = None, clients: np.ndarray = CLIENTS) -> Question:
    weight = np.full(8, 1 / 8) if weight is None else weight
    return Question(clients, k, 8, weight, np.random.default_rng(seed))


def chosen(name: str, asked: Question, *, private: bool = False, **columns: list) -> Selection:
    selector = make_selector(name)
    metrics = CandidateMetrics(CLIENTS, {n: np.array(x) for n, x in columns.items()}, private=private)
    return selector.select(asked, metrics, selector.init())[0]


def shares(name: str, k: int, draws: int = 4000, **options) -> np.ndarray:
    """How often each of the clients is drawn."""
    weight = options.pop("weight", None)
    times = [np.isin(CLIENTS, chosen(name, question(k, seed, weight), **options).client) for seed in range(draws)]
    return np.mean(times, axis=0)


def test_clients_are_drawn_in_proportion_to_the_norm_of_their_gradient_and_weigh_the_same() -> None:
    gradient = [4.0, 1.0, 2.0, 1.0]
    np.testing.assert_allclose(
        shares("gradient-sampling", 2, return_gradient=gradient), [1, 0.25, 0.5, 0.25], atol=0.03
    )
    one = chosen("gradient-sampling", question(1, 0), return_gradient=gradient)
    assert one.probability is not None and one.probability[0] == gradient[CLIENTS.tolist().index(one.client[0])] / 8


def test_weights_of_clients_add_to_their_share_and_a_client_that_is_always_drawn_counts_for_its_size() -> None:
    """q_n |grad J_n| is 6, 1, 1 and 2 for K = 2: p is 1, 1/4, 1/4 and 1/2, so the first weighs 6 / 4 of the others."""
    weight = np.ones(8) / 9
    weight[0] = 2 / 9
    selection = chosen("gradient-sampling", question(2, 1, weight), return_gradient=[6.0, 1.0, 1.0, 1.0])
    assert selection.weight is not None and selection.client[-1] == 7
    assert selection.weight[-1] / selection.weight[0] == pytest.approx(6 / 4)
    found = shares("gradient-sampling", 2, weight=weight, return_gradient=[6.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(found, [1, 0.25, 0.25, 0.5], atol=0.03)


def test_the_sum_of_weighted_updates_is_on_average_that_of_all_candidates() -> None:
    """The estimator is unbiased before it is normalised: E sum w_n x_n = sum q_n s_n x_n for any updates x."""
    gradient, update = np.array([9.0, 1.0, 2.0, 0.5]), np.array([1.0, -4.0, 3.0, 7.0])
    total = 0.0
    for seed in range(8000):
        selection = chosen("gradient-sampling", question(2, seed), return_gradient=gradient.tolist())
        place = [CLIENTS.tolist().index(client) for client in selection.client]
        total += (selection.weight * update[place]).sum()  # pyright: ignore[reportOptionalOperand]
    assert total / 8000 == pytest.approx((gradient * update).sum() / 8, rel=0.05)


def test_the_potential_is_that_of_shared_pairs_times_the_length_of_an_episode() -> None:
    pair = np.array([0, 1], np.uint64)
    tables = tuple(WeightedAdvantage(pair, np.array([3.0, 4.0]) * scale) for scale in (1, 2, 1, 1))
    metrics = CandidateMetrics(CLIENTS, {"weighted_advantage": tables, "episode_length": np.array([1.0, 1, 4, 1])})
    selector = make_selector("potential-sampling")
    selection, _ = selector.select(question(1, 0), metrics, None)
    np.testing.assert_allclose(selection.scores["episode_potential"], [5, 10, 20, 5])
    np.testing.assert_allclose(
        selection.probability, selection.scores["episode_potential"][selection.client == CLIENTS] / 40
    )


@pytest.mark.parametrize("gradient", [[np.nan] * 4, [0.0] * 4, [-1.0, -2.0, 0.0, np.nan]])
def test_clients_without_a_gradient_are_drawn_at_random(gradient: list[float]) -> None:
    np.testing.assert_allclose(shares("gradient-sampling", 2, 2000, return_gradient=gradient), 0.5, atol=0.05)


def test_a_client_without_a_number_is_not_drawn_while_others_have_one() -> None:
    assert shares("gradient-sampling", 2, 200, return_gradient=[1.0, np.nan, 1.0, 1.0])[1] == 0


def test_a_draw_of_the_candidates_is_taken_with_its_weights() -> None:
    selector, asked = make_selector("gradient-sampling"), question(2, 0)
    metrics = CandidateMetrics(CLIENTS, private=True, chosen=CLIENTS[:2], chosen_weight=np.array([4.0, 1.0]))
    selection, _ = selector.select(asked, metrics, None)
    assert selection.client.tolist() == CLIENTS[:2].tolist()
    assert selection.weight is not None and selection.weight.tolist() == [4, 1]
    nothing, _ = selector.select(asked, metrics._replace(chosen_weight=np.zeros(2)), None)
    assert nothing.weight is None  # nobody has a number: updates count as the config says


@pytest.mark.parametrize("name", ["potential-sampling", "gradient-sampling", "gradient-sampling-one-phase"])
def test_runs_resume_to_the_byte(name: str, tmp_path: Path) -> None:
    config = replace(CONFIG, selector=name)
    run_experiment(config, tmp_path / "whole")
    run_experiment(replace(config, rounds=2), tmp_path / "parts")
    resume_experiment(tmp_path / "parts", rounds=4)
    for file in FILES:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()


def test_executors_agree_on_who_is_drawn() -> None:
    config = replace(CONFIG, selector="gradient-sampling")
    whole, apart = (run_experiment(replace(config, executor=name)) for name in ("vectorised", "one-by-one"))
    for one, other in zip(whole.records, apart.records, strict=True):
        assert one.selection.client.tolist() == other.selection.client.tolist()


def test_one_phase_asks_everyone_once_and_then_those_that_trained() -> None:
    selector = make_selector("gradient-sampling-one-phase")
    asked = question(2, 0)
    assert selector.asks(asked, None).tolist() == list(range(8))
    metrics = CandidateMetrics(np.array([0, 2, 5]), {"return_gradient": np.array([1.0, 1.0, 1.0])})
    selection, state = selector.select(asked, metrics, None)
    assert set(selection.client.tolist()) <= {0, 2, 5}  # client 7 has no number yet
    assert selector.asks(asked, state).tolist() == sorted({*selection.client.tolist(), 7})


def test_under_privacy_clients_draw_themselves_and_one_phase_needs_their_numbers(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    config = replace(CONFIG, selector="gradient-sampling", privacy="masked")
    run_experiment(config, tmp_path / "one")
    run_experiment(config, tmp_path / "other")
    assert (tmp_path / "one/rounds.csv").read_bytes() == (tmp_path / "other/rounds.csv").read_bytes()
    with pytest.raises(UserError, match="needs the values of its metrics"):
        run_experiment(replace(config, selector="gradient-sampling-one-phase"))
    released = replace(config, protection=replace(config.protection, release="scores"))
    run_experiment(replace(released, selector="gradient-sampling-one-phase"), tmp_path / "one-phase")
    with pytest.raises(UserError, match="needs the tables themselves"):
        run_experiment(replace(config, selector="potential-sampling"))


def test_the_recommended_momentum_can_be_switched_off(tmp_path: Path) -> None:
    run_experiment(replace(CONFIG, selector="gradient-sampling"), tmp_path / "momentum")
    plain = replace(CONFIG, selector="gradient-sampling", federation=replace(SMALL, server_optimiser="identity"))
    run_experiment(plain, tmp_path / "identity")
    rounds = [(tmp_path / name / "rounds.csv").read_text().splitlines() for name in ("momentum", "identity")]
    assert rounds[0][2] == rounds[1][2]  # the first round has no velocity yet
    assert rounds[0][3] != rounds[1][3]


def test_the_command_line_compares_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--selectors", "fedavg,gradient-sampling", "--seeds", "0", "--rounds", "1", "--jobs", "1"]
    assert main(["compare", "tabular", *options, "--out", str(tmp_path / "cmp")]) == 0
    assert "gradient-sampling" in capsys.readouterr().out
