"""Simulated time: who is asked, whose update counts, and when a round ends."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpohcs.analysis.figures import return_by_round
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.report import report_data
from fedpohcs.analysis.tables import statistics_tables
from fedpohcs.core.config import ExperimentConfig, TimeConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import ClientUpdates, ServerState
from fedpohcs.deploy import require_shared
from fedpohcs.learners.networks import AgentParams
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.loading import load_run
from fedpohcs.server.clock import (
    ClientTimes,
    Conditions,
    UnderWay,
    admitted,
    arrivals,
    conditions_at,
    make_times,
    read_trace,
    rebased,
)
from fedpohcs.server.selection import Question
from fedpohcs.server.selection.oort import slowness

NOBODY = np.arange(0)


def conditions(wanted: int = 2, **settings: Any) -> Conditions:
    """Clients 0 to 4 that make 1, 2, 4, 8 and 16 steps per second, and send 100 bytes per second."""
    speed = 2.0 ** np.arange(5)
    return Conditions(TimeConfig("constant", **settings), wanted, speed, np.full(5, 100.0), 50, NOBODY)


def updates(clients: list[int], steps: list[int]) -> ClientUpdates:
    rows = {"w": np.array(clients, np.float32)[:, None]}
    return ClientUpdates(np.array(clients, np.int64), rows, np.array(steps, np.int64), {"kl": np.ones(len(clients))})


def state(clock: float = 0.0, number: int = 0, under_way: tuple[UnderWay, ...] = ()) -> ServerState:
    return ServerState(number, {"w": np.zeros(1, np.float32)}, None, clock=clock, under_way=under_way)


# Synchronous rounds


def test_a_round_lasts_until_its_slowest_client_has_trained_and_sent() -> None:
    found = arrivals(state(clock=10.0), updates([1, 3], [8, 8]), {}, conditions())
    # 8 steps at 2 and 8 per second; the policy of 50 bytes goes down and up at 100 per second.
    assert found.timing.seconds.tolist() == [5.0, 2.0]
    assert found.clock == 15.0
    assert found.updates.steps.tolist() == [8, 8]
    assert not len(found.late)
    measured = arrivals(state(clock=10.0), updates([1, 3], [8, 8]), {0: 150, 2: 50}, conditions())
    assert measured.clock == 17.0  # client 0 needs 2 seconds for the policy and 150 bytes


def test_the_first_k_updates_count_and_the_round_ends_with_the_last_of_them() -> None:
    found = arrivals(state(), updates([0, 1, 3, 4], [8, 8, 8, 160]), {}, conditions(over_selection=2.0))
    assert found.timing.seconds.tolist() == [9.0, 5.0, 2.0, 11.0]
    assert found.updates.steps.tolist() == [0, 8, 8, 0]
    assert found.late.tolist() == [0, 4]
    assert found.clock == 5.0


def test_of_equally_fast_clients_the_lower_ids_count() -> None:
    even = conditions(over_selection=1.5)._replace(speed=np.ones(5))
    assert arrivals(state(), updates([4, 2, 3], [8, 8, 8]), {}, even).late.tolist() == [4]


def test_a_deadline_closes_a_round_with_what_has_arrived() -> None:
    found = arrivals(state(), updates([0, 3], [8, 8]), {}, conditions(deadline=4.0))
    assert (found.late.tolist(), found.clock) == ([0], 4.0)
    both = arrivals(state(), updates([0, 3], [8, 8]), {}, conditions(deadline=9.0))
    assert (both.late.tolist(), both.clock) == ([], 9.0)
    nobody = arrivals(state(), updates([0], [8]), {}, conditions(deadline=4.0))
    assert (nobody.late.tolist(), nobody.clock, nobody.updates.steps.tolist()) == ([0], 4.0, [0])


def test_a_client_that_cannot_train_never_replies() -> None:
    found = arrivals(state(), updates([0, 3], [0, 8]), {}, conditions())
    assert (found.late.tolist(), found.clock) == ([], 2.0)
    assert math.isinf(found.timing.seconds[0])
    waited = arrivals(state(), updates([0, 3], [0, 8]), {}, conditions(deadline=6.0))
    assert waited.clock == 6.0  # the server does not know that nothing will come
    assert arrivals(state(), updates([], []), {}, conditions(retry_seconds=7.0)).clock == 7.0


def question(k: int = 2) -> Question:
    return Question(np.arange(4), k, 5, np.full(5, 0.2), np.random.default_rng(0))


def times(**settings: Any) -> ClientTimes:
    return ClientTimes(TimeConfig("constant", **settings), 3, 2.0 ** np.arange(5), usual_steps=16)


def test_unavailable_and_busy_clients_are_not_asked() -> None:
    plain, found = admitted(question(), state(), times())
    assert plain.candidates.tolist() == [0, 1, 2, 3]
    assert plain.num_selected == found.wanted == 2
    assert plain.seconds.tolist() == [16, 8, 4, 2, 1]  # no bytes are counted
    assert admitted(question(), state(), times(over_selection=1.3))[0].num_selected == 3
    half, gone = admitted(question(4), state(), times(availability=0.5))
    draws = np.random.default_rng([3, 22, 0, 0]).random(5)
    assert half.candidates.tolist() == [client for client in range(4) if draws[client] < 0.5]
    assert gone.unavailable.tolist() == [client for client in range(4) if draws[client] >= 0.5]
    assert 0 < len(half.candidates) == half.num_selected < 4
    busy = state(under_way=(UnderWay(1, 0, 5.0, {}, {}, 3),))
    asked, _ = admitted(question(), busy, times(asynchronous=True))
    assert (asked.candidates.tolist(), asked.num_selected) == ([0, 2, 3], 1)
    full = state(under_way=tuple(UnderWay(client, 0, 5.0, {}, {}, 3) for client in (0, 1)))
    assert not len(admitted(question(), full, times(asynchronous=True))[0].candidates)


# Speeds


def test_log_normal_speeds_are_drawn_once_per_client() -> None:
    config = replace(preset("mountain-cars"), seed=4, time=TimeConfig("log-normal", steps_per_second=50, spread=2.0))
    speed = make_times(config).speed
    np.testing.assert_allclose(speed, 50 * np.exp(2 * np.random.default_rng([4, 21, 0, 0]).standard_normal(60)))
    assert make_times(preset("tabular")) is None


TRACE = """client,steps_per_second,bytes_per_second,from_second,until_second
0,10,100,0,50
0,20,100,50,100
1,5,200,25,75
"""


def test_a_trace_says_who_can_be_asked_and_repeats(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    config = preset("tabular")
    settings = TimeConfig("trace", trace=str(tmp_path / "trace.csv"))
    config = replace(
        config,
        time=settings,
        federation=replace(config.federation, num_clients=2, num_candidates=2, num_selected=1),
    )
    model = make_times(config)
    for clock, speeds in ((0, [10, math.nan]), (30, [10, 5]), (60, [20, 5]), (80, [20, math.nan]), (130, [10, 5])):
        speed, rate = conditions_at(model, float(clock), 0)
        np.testing.assert_array_equal(speed, speeds)
    np.testing.assert_array_equal(rate, [100, 200])
    with pytest.raises(UserError, match="client 2 has none"):
        read_trace(tmp_path / "trace.csv", 3)


@pytest.mark.parametrize(
    "text", ["", "client\n1\n", TRACE + "1,0,1,0,1\n", TRACE + "1,nan,1,0,1\n", TRACE + "1,1,1,5,5\n"]
)
def test_a_trace_of_nonsense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(UserError, match=r"time\.trace .* must"):
        read_trace(tmp_path / "trace.csv", 2)
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", 2)


def test_oort_counts_clients_slower_than_most_less() -> None:
    seconds = np.array([1.0, 2.0, 8.0, 4.0])  # the preferred duration is 2, at a place of .3 of four
    assert slowness(seconds).tolist() == [1.0, 1.0, 1 / 16, 1 / 4]
    assert slowness(np.ones(3)).tolist() == [1.0, 1.0, 1.0]


# Asynchronous rounds


def params(value: float, control: float) -> AgentParams:
    return AgentParams(np.full(2, value, np.float32), np.full(1, 2 * value, np.float32), np.float32(control))


def test_an_old_update_moves_the_present_policy_less() -> None:
    task = UnderWay(0, 3, 1.0, params(1.0, 5.0), params(2.0, 6.0), 9)
    moved = rebased(task, params(10.0, 7.0), 3, 0.5)  # (1 + 3)^-.5 = 1/2
    assert moved.policy.tolist() == [10.5, 10.5]
    assert moved.critic.tolist() == [21.0]
    assert moved.kl_coefficient == 6.0  # a number with its own rule
    assert rebased(task, params(10.0, 7.0), 3, 0.0).policy.tolist() == [11.0, 11.0]
    assert rebased(task, params(1.0, 5.0), 0, 0.5) is task.params


def test_updates_are_applied_in_the_order_in_which_they_arrive() -> None:
    several = conditions(wanted=3, asynchronous=True)
    first = arrivals(state(), updates([0, 1, 3], [8, 8, 8]), {}, several)
    assert first.updates.client.tolist() == first.timing.arrived.tolist() == [3]
    assert (first.clock, first.timing.delay.tolist()) == (2.0, [0])
    assert [(task.client, task.finish) for task in first.under_way] == [(0, 9.0), (1, 5.0)]
    # Client 4 begins at 2 with 64 steps at 16 per second, and needs a second for the policy: it arrives at 7.
    second = arrivals(state(2.0, 1, first.under_way), updates([4], [64]), {}, several)
    assert (second.updates.client.tolist(), second.clock, second.timing.delay.tolist()) == ([1], 5.0, [1])
    third = arrivals(state(5.0, 2, second.under_way), updates([], []), {}, several)
    assert (third.updates.client.tolist(), third.clock, third.timing.delay.tolist()) == ([4], 7.0, [1])
    assert third.updates.steps.tolist() == [64]
    empty = arrivals(state(7.0, 3), updates([], []), {}, several)
    assert (len(empty.updates.client), empty.clock) == (0, 67.0)


# Whole runs


def small(k: int = 2, **settings: Any) -> ExperimentConfig:
    config = preset("tabular", selector="fedavg")
    federation = replace(
        config.federation, num_clients=6, num_candidates=5, num_selected=k, evaluation_episodes=2, evaluation_every=2
    )
    learner = replace(config.learner, local_iterations=1, steps_per_iteration=50)
    time = TimeConfig(**settings) if settings else TimeConfig()
    return replace(config, rounds=5, federation=federation, learner=learner, time=time)


def tables_of(path: Path) -> list[list[str]]:
    """The tables of a run without what simulated time adds."""
    rounds = [",".join(line.split(",")[:12]) for line in (path / "rounds.csv").read_text().splitlines()]
    clients = (path / "clients.csv").read_text().splitlines()
    return [rounds, [line for line in clients if "simulated_seconds" not in line and ",arrived," not in line]]


@pytest.mark.parametrize(
    ("k", "settings"),
    [
        (2, {"model": "constant"}),
        (2, {"model": "log-normal", "deadline": 1e9, "bytes_per_second": 1e3}),
        (1, {"model": "log-normal", "asynchronous": True}),
    ],
)
def test_time_that_changes_nothing_leaves_the_run_as_it_is(k: int, settings: dict, tmp_path: Path) -> None:
    """Constant speeds, a deadline that nobody misses, and asynchronous rounds of one client without delay."""
    run_experiment(small(k), tmp_path / "plain")
    run_experiment(small(k, **settings), tmp_path / "timed")
    assert tables_of(tmp_path / "plain") == tables_of(tmp_path / "timed")
    assert "simulated" not in (tmp_path / "plain" / "rounds.csv").read_text()
    seconds = load_run(tmp_path / "timed").rounds["simulated_seconds"]
    assert seconds[0] == 0
    assert (np.diff(seconds) > 0).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "log-normal", "over_selection": 2.0, "deadline": 0.1, "availability": 0.8},
        {"model": "log-normal", "asynchronous": True},
    ],
)
def test_a_run_in_simulated_time_resumes_to_the_byte_and_is_reported(settings: dict, tmp_path: Path) -> None:
    run_experiment(small(**settings), tmp_path / "whole")
    run_experiment(replace(small(**settings), rounds=3), tmp_path / "cut")
    resume_experiment(tmp_path / "cut", rounds=5)
    for name in ("rounds.csv", "clients.csv", "policy.npz"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    run = load_run(tmp_path / "whole")
    late = (run.clients["role"] == "late").sum()
    assert run.rounds["num_late"].sum() == late
    assert (late > 0) == ("deadline" in settings)
    assert not (run.clients["role"] == "rejected").any()
    groups = load_groups([tmp_path / "whole"])
    (table,) = [table for table in statistics_tables(groups) if table.title.startswith("simulated time")]
    rows = {name: float(cell) for name, cell in table.rows}
    assert rows["late updates per round"] == pytest.approx(late / 5, abs=0.01)
    assert ("delay of an update in rounds" in rows) == ("asynchronous" in settings)
    assert "simulated hours" in report_data(groups)["clocks"]
    line = return_by_round(groups, "simulated hours").axes[0].get_lines()[0]
    np.testing.assert_allclose(line.get_xdata(), run.rounds["simulated_seconds"] / 3600)
    with pytest.raises(UserError, match="against"):
        return_by_round(load_groups([tmp_path / "whole"]), "days")


# Bad settings


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"model": "constant", "steps_per_second": 0.0}, "steps_per_second"),
        ({"model": "constant", "deadline": 0.0}, "deadline"),
        ({"model": "constant", "deadline": -1.0}, "deadline"),
        ({"model": "constant", "over_selection": 0.5}, "over_selection"),
        ({"model": "constant", "over_selection": math.inf}, "over_selection"),
        ({"model": "constant", "availability": 1.5}, "availability"),
        ({"model": "trace"}, "must name a file"),
        ({"model": "constant", "trace": "x.csv"}, "must name a file"),
        ({"deadline": 3.0}, "must not be 'none' where another setting"),
        ({"model": "constant", "asynchronous": True, "deadline": 3.0}, "cannot be combined"),
    ],
)
def test_settings_of_time_that_make_no_sense_are_refused(settings: dict, match: str) -> None:
    with pytest.raises(UserError, match=match):
        TimeConfig(**settings)


def test_time_is_refused_where_it_cannot_be_simulated() -> None:
    timed = small(3, model="constant")
    check_config(timed)
    with pytest.raises(UserError, match="with privacy 'masked'"):
        check_config(replace(timed, selector="fedpohcs", privacy="masked"))
    robust = replace(timed.federation, aggregator="coordinate-median")
    check_config(replace(timed, federation=robust))
    with pytest.raises(UserError, match="needs aggregator parameter-mean"):
        check_config(replace(timed, federation=robust, time=TimeConfig("constant", asynchronous=True)))
    with pytest.raises(UserError, match="must be none on Flower"):
        require_shared(timed)
    with pytest.raises(UserError, match="must be own on Flower"):
        require_shared(replace(small(), federation=replace(small().federation, filters="shared")))
    with pytest.raises(UserError, match="must be 0 on Flower"):
        require_shared(replace(small(), federation=replace(small().federation, finetune_iterations=1)))
