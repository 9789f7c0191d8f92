"""What an operator sees of a fleet: a line per round, a file about the clients, and a page that shows both."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedpohcs.analysis.live import serve
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.version import __version__
from fedpohcs.deploy.executor import FlowerExecutor
from fedpohcs.deploy.status import FILE, VARIABLE, FleetStatus, latest_line
from fedpohcs.deploy.status_page import FleetPage
from fedpohcs.runs.experiment import resume_experiment, run_experiment

from .loop import LoopGrid
from .test_executor import SHORT

pytestmark = pytest.mark.usefixtures("no_sleep")


def run_watched(config: ExperimentConfig, grid: LoopGrid, out: Path, **rest: Any) -> FleetStatus:
    status = FleetStatus(out)

    def make_clients(config: ExperimentConfig, **more: Any) -> FlowerExecutor:
        status.executor = FlowerExecutor(config, grid=grid, limits=SHORT, **more)
        return status.executor

    run: Any = partial(resume_experiment, out) if rest.pop("resume", False) else partial(run_experiment, config, out)
    run(observers=[status], make_clients=make_clients, **rest)
    return status


def test_every_round_is_logged_with_who_was_evaluated_selected_and_answered(
    config: ExperimentConfig, states: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One client is silent from its first training on."""
    grid, gone = LoopGrid(replace(config, selector="full"), states), []

    def lose(question: Message, answer: Message) -> Message | None:
        if question.metadata.dst_node_id == grid.node_of(3) and question.metadata.message_type == "train":
            gone.append(question)
        return None if gone and question.metadata.dst_node_id == grid.node_of(3) else answer

    grid.fault = lose
    with caplog.at_level(logging.INFO, "fedpohcs"):
        run_watched(replace(config, selector="full", rounds=2), grid, tmp_path / "run")
    lines = [line.split("] ")[-1] for line in caplog.messages if line.startswith("round ") and "evaluated" in line]
    assert lines[0].startswith("round 0/2: 4 of 4 evaluated, mean return of these ")
    assert "; 4 selected, 3 answered; " in lines[1] and lines[1].startswith("round 1/2: 3 of 4 evaluated")
    assert len(lines) == 3


def test_the_file_counts_what_each_client_did_also_before_the_run_was_resumed(
    config: ExperimentConfig, states: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "copy.json"))
    config, out = replace(config, selector="full", rounds=2), tmp_path / "run"
    grid = LoopGrid(config, states)
    broken = {"left": 1}

    def spoil(question: Message, answer: Message) -> Message:
        record = answer.content.array_records.get("arrays", {})
        if question.metadata.message_type == "train" and broken["left"] and "steps" in record:
            broken["left"] -= 1
            record["steps"].data = (-1).to_bytes(8, "little", signed=True)
        return answer

    grid.fault = spoil
    run_watched(config, grid, out)
    run_watched(config, grid, out, resume=True, rounds=3)
    values = json.loads((out / FILE).read_text())
    assert values == json.loads((tmp_path / "copy.json").read_text())
    assert (values["round"], values["rounds"], values["folder"]) == (3, 3, str(out))
    assert latest_line(out / FILE).startswith("round 3/3: 4 of 4 evaluated")
    assert latest_line(out / "none.json") == ""
    clients = values["clients"]
    assert sorted(one["rounds_trained"] for one in clients) == [1, 3, 3, 3]  # out for 5 rounds, until the new process
    assert sorted(one["bad_replies"] for one in clients) == [0, 0, 0, 1]
    assert {one["version"] for one in clients} == {__version__}
    assert [one["node"] for one in clients] == [str(grid.node_of(client)) for client in range(4)]
    assert all(values["written"] - 600 < one["last_answer"] <= values["written"] for one in clients)


EVIL = "<script>alert(1)</script>"
STATUS = {
    "folder": f"/runs/{EVIL}",
    "world": "tabular",
    "selector": "full",
    "round": 3,
    "rounds": 9,
    "written": 1e9,
    "clients": [
        {"client": 0, "node": "11", "version": EVIL, "last_answer": 1e9, "rounds_trained": 2, "bad_replies": 0},
        {"client": 1, "node": "12", "version": "0.2", "last_answer": 2e9, "rounds_trained": 5, "bad_replies": 4},
        {"client": 2, "node": None, "version": None, "last_answer": None, "rounds_trained": 0, "bad_replies": 0},
    ],
    "refused": {"77": EVIL},
}
NODES = [
    {"node-id": "12", "status": "offline", "online-at": "2001-01-01 00:00:00Z", "offline-at": "2001-09-09 01:46:40Z"},
    {"node-id": "11", "status": "online", "online-at": "2001-01-01 00:00:00Z", "offline-at": "N/A"},
    {"node-id": "99", "status": EVIL},
]


@contextmanager
def serving(page: FleetPage) -> Iterator[HTTPConnection]:
    with serve(page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        server.shutdown()


def test_the_page_joins_nodes_and_run_and_shows_no_markup_of_others(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps(STATUS))
    with serving(FleetPage(lambda: NODES, tmp_path / "status.json")) as connection:
        connection.request("GET", "/")
        text = connection.getresponse().read().decode()
        connection.request("GET", "/data.json")
        data = json.loads(connection.getresponse().read())
        connection.request("POST", "/")
        assert connection.getresponse().status == 501
        connection.close()
        connection.request("GET", "/", headers={"Host": "fleet.example.org"})
        assert connection.getresponse().status == 403
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "1 of 4 devices online" in text
    assert "2033-05-18 03:33:20 UTC" in text  # the last answer of client 1 came later than its end
    rows = {row["client"]: row for row in data["devices"]}
    assert [rows[n]["online"] for n in (0, 1, 2)] == [True, False, False]
    assert (rows[1]["rounds_trained"], rows[1]["bad_replies"], rows[2]["last_seen"]) == (5, 4, None)
    assert rows[None]["node"] == "99"


@pytest.mark.parametrize("status", ["", "[]", "{}", '{"clients": 7, "refused": [1], "written": 1e300, "round": {}}'])
def test_the_page_survives_a_file_and_a_superlink_that_say_nonsense(status: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(status)

    def refuse() -> list[dict[str, Any]]:
        raise UserError(f"the SuperLink refused: {EVIL}")

    for nodes in (refuse, lambda: 7, lambda: [1, {}]):
        page = FleetPage(nodes, tmp_path / "status.json")  # pyright: ignore[reportArgumentType]
        assert "<script" not in page.page()
        json.loads(page.data())


def test_a_page_without_a_run_says_why_cells_are_empty(tmp_path: Path) -> None:
    page = FleetPage(lambda: [{"node-id": 7, "status": "online"}], tmp_path / "none.json").page()
    assert "<td>-</td><td>7</td><td>yes</td>" in page
    assert "known when the latest run has reached it" in page
    assert "No run yet." in page
    assert "known when" not in FleetPage(list, tmp_path / "none.json").page()


def test_the_list_of_nodes_is_not_made_for_every_request(tmp_path: Path) -> None:
    calls = []
    page = FleetPage(lambda: calls.append(1) or [], tmp_path / "none.json")
    for _ in range(5):
        page.page()
    assert len(calls) == 1
