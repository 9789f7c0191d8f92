import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import MakeRun, made_up_records
from fedpohcs.analysis.live import LiveReport, PageServer, serve
from fedpohcs.cli import main
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import read_config


@contextmanager
def serving(*paths: Path) -> Iterator[PageServer]:
    with serve(LiveReport(paths, "Live")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server: PageServer, path: str, **headers: str) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.getheader("ETag"), body


def test_page_and_data_are_served_and_nothing_else(make_run: MakeRun) -> None:
    with serving(make_run(rounds=3)) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert ask(server, "/")[0] == ask(server, "/data.json")[0] == 200
        assert b'"live":true' in ask(server, "/")[2]
        for path in ("/nothing", "/../config.json", "/data.json/.."):
            assert ask(server, path)[0] == 404


def test_data_that_did_not_change_are_not_sent_again(make_run: MakeRun) -> None:
    path = make_run(rounds=3, stop_after=1)
    with serving(path) as server:
        _, tag, _ = ask(server, "/data.json")
        assert tag is not None
        assert ask(server, "/data.json", If_None_Match=tag)[::2] == (304, b"")
        config = read_config(path)
        RunFolder(path, config).append(list(made_up_records(config))[2])
        status, new_tag, body = ask(server, "/data.json", If_None_Match=tag)
        assert status == 200 and new_tag != tag and b'"rounds":2' in body


def test_another_host_name_is_refused(make_run: MakeRun) -> None:
    with serving(make_run(rounds=1)) as server:
        assert ask(server, "/data.json", Host="evil.example")[0] == 403


def test_a_run_that_has_not_finished_a_round_is_waited_for(tmp_path: Path) -> None:
    config = preset("tabular")
    folder = RunFolder.create(tmp_path / "run", config)
    with serving(tmp_path) as server:
        assert b'"panels":[]' in ask(server, "/data.json")[2]
        folder.append(next(made_up_records(config)))
        assert b'"rounds":0' in ask(server, "/data.json")[2]


def test_a_run_that_is_being_replaced_leaves_the_last_state(make_run: MakeRun) -> None:
    path = make_run(rounds=3)
    with serving(path.parent) as server:
        before = ask(server, "/data.json")[2]
        (path / "config.json").rename(path / "elsewhere.json")
        assert ask(server, "/data.json")[2] == before


def test_runs_that_start_later_in_a_watched_folder_appear(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("runs/one", rounds=2)
    with serving(tmp_path / "runs") as server:
        make_run("runs/other", rounds=2, selector="fedavg")
        assert b'"labels":["fedpohcs","fedavg"]' in ask(server, "/data.json")[2]


def test_a_folder_without_runs_and_a_port_in_use_are_errors(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is none in it"):
        LiveReport([tmp_path / "empty"], "title")
    report = LiveReport([make_run(rounds=1)], "title")
    with serve(report) as server, pytest.raises(UserError, match="cannot be used"):
        serve(report, server.server_port)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "is not a run folder"), ([], "run"), (["nowhere", "--port", "70000"], "port (=70000)")],
)
def test_watch_refuses_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_watch_says_where_it_is_and_ends_quietly(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(server: PageServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", interrupted)
    assert main(["watch", str(make_run(rounds=1))]) == 0
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")
