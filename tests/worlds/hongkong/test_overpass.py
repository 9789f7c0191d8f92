"""Fetching, against a server on this machine."""

import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedpohcs.cli import main
from fedpohcs.core.errors import UserError
from fedpohcs.worlds.hongkong.areas import AREAS, synthetic_osm
from fedpohcs.worlds.hongkong.overpass import WAITS, fetch_osm, parse_box


class Overpass(HTTPServer):
    """Gives its answers in turn, the last one again and again, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, bytes]] = [(200, synthetic_osm("po-lam"))]
        self.asked: list[tuple[str, str]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/api/interpreter"


class _Handler(BaseHTTPRequestHandler):
    server: Overpass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((urllib.parse.parse_qs(body)["data"][0], self.headers["User-Agent"]))
        answers = self.server.answers
        code, content = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def server() -> Iterator[Overpass]:
    with Overpass() as overpass:
        thread = threading.Thread(target=overpass.serve_forever, args=(0.01,))
        thread.start()
        yield overpass
        overpass.shutdown()
        thread.join()


def test_fetching_an_area_asks_for_its_box_and_writes_map_and_attribution(
    server: Overpass, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "maps" / "po-lam.osm"
    assert main(["osm", "fetch", "--area", "po-lam", "-o", str(target), "--endpoint", server.endpoint]) == 0
    assert target.read_bytes() == synthetic_osm("po-lam")
    assert "OpenStreetMap contributors" in target.with_name("po-lam.osm.attribution.txt").read_text()
    ((query, agent),) = server.asked
    assert "(22.318,114.25,22.328,114.263)" in query
    assert agent.startswith("fedpohcs/")
    assert capsys.readouterr().out.strip() == str(target)


def test_a_busy_server_is_asked_again_after_a_while(server: Overpass, tmp_path: Path) -> None:
    server.answers = [(429, b""), (504, b""), *server.answers]
    waits: list[float] = []
    fetch_osm(AREAS["central"].box, tmp_path / "map.osm", server.endpoint, sleep=waits.append)
    assert tuple(waits) == WAITS[:2]
    assert (tmp_path / "map.osm").is_file()


@pytest.mark.parametrize(
    ("answer", "message", "asked"),
    [
        ((429, b""), "answered 429", 1 + len(WAITS)),
        ((400, b"bad query"), "answered 400", 1),
        ((200, b"<html>sorry</html>"), "sent no roads", 1),
        ((200, b'<osm version="0.6"></osm>'), "sent no roads", 1),
    ],
)
def test_no_map_no_file(answer: tuple[int, bytes], message: str, asked: int, server: Overpass, tmp_path: Path) -> None:
    server.answers = [answer]
    with pytest.raises(UserError, match=message):
        fetch_osm(AREAS["central"].box, tmp_path / "map.osm", server.endpoint, sleep=lambda seconds: None)
    assert len(server.asked) == asked
    assert not list(tmp_path.iterdir())


def test_an_address_where_nobody_listens_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be reached"):
        fetch_osm(AREAS["central"].box, tmp_path / "map.osm", "http://127.0.0.1:9/")
    with pytest.raises(UserError, match="cannot be reached"):
        fetch_osm(AREAS["central"].box, tmp_path / "map.osm", "not an address")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3", "four numbers"),
        ("a,b,c,d", "four numbers"),
        ("22.3,114.1,22.2,114.2", "South before north"),
        ("22.2,114.1,22.3,114.2", r"covers 115 km2, more than 25\. Take less"),
        ("nan,1,2,3", "must be south,west,north,east"),
    ],
)
def test_a_bad_box_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_box(text)


def test_the_boxes_of_the_ten_areas_are_small_enough() -> None:
    for area in AREAS.values():
        assert 0.3 < parse_box(",".join(map(str, area.box))).square_kilometres < 5


def test_area_and_box_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["osm", "fetch"]) == 2
    assert main(["osm", "fetch", "--area", "central", "--bbox", "1,2,3,4"]) == 2
    assert "either --area or --bbox" in capsys.readouterr().err


def test_a_fetched_map_builds_and_shows(
    server: Overpass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libsumo")
    pytest.importorskip("sumo")
    monkeypatch.chdir(tmp_path)
    assert main(["osm", "fetch", "--bbox", "22.318,114.25,22.328,114.263", "--endpoint", server.endpoint]) == 0
    assert main(["osm", "build", "--osm", "area.osm", "--name", "mine", "--max-accel", "1.5"]) == 0
    assert main(["osm", "show", "mine", "--networks", "networks", "-o", "pictures/mine.png"]) == 0
    assert (tmp_path / "pictures" / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert "48 roads, 7.9 km" in capsys.readouterr().out


def test_the_osm_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["osm", "--help"]) == 0
    assert "build" in capsys.readouterr().out
    assert main(["osm"]) == 2
    assert main(["osm", "bild"]) == 2
    assert "Did you mean 'build'?" in capsys.readouterr().err
    assert main(["osm", "build", "--osm", "x", "--name", "y", "--max-accel", "-1"]) == 2
    assert main(["osm", "show", "central", "-o", "x.gif"]) == 2
