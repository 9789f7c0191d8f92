"""The images of server and node: built where a container tool is at hand, and in any case by their own commands.

Their commands run in new virtual environments and start real processes. The server's environment has neither the
module of the environment nor Gymnasium.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedpohcs.deploy.programs import QUIET, end_child, free_port
from fedpohcs.runs.policy import load_policy

ROOT = Path(__file__).parents[2]
FILES = {name: ROOT / "examples" / "fleet" / f"{name}.Containerfile" for name in ("server", "node")}
PATIENCE = 900.0
SMALL = ["--rounds", "1", "--federation.evaluation-episodes", "1", "--learner.filter-warmup-steps", "200"]
SMALL += ["--learner.filter-observations"]  # what an export of a node adds to the policy
SMALL += ["--learner.steps-per-iteration", "200", "--learner.local-iterations", "1", "--learner.hidden-sizes", "8"]


def instructions(name: str) -> list[tuple[str, str]]:
    """The lines of a Containerfile, each as its instruction and the rest."""
    lines = [line for line in FILES[name].read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split(" ", 1) for line in lines]
    return [(instruction, rest) for instruction, rest in pairs]


@dataclass
class Image:
    """A folder in place of an image: the paths of the image are below it, and `pip` is that of an environment in it."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    start: str = ""

    def place(self, text: str, paths: str = "/app|/code|/state|/keys") -> str:
        """The text with paths of this folder in place of those of the image."""
        return re.sub(rf"(?<![\w.])({paths})\b", rf"{self.root}\1", text)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLWR", "XDG"))}
        path = f"{self.root}/venv/bin{os.pathsep}{os.environ['PATH']}"
        return kept | QUIET | {"PATH": path, "HOME": str(self.root)} | self.variables

    def run(self, command: str, folder: str = "/state") -> str:
        """The output of a command that ends."""
        done = subprocess.run(
            ["sh", "-c", self.place(command)],
            cwd=self.place(folder),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
        return done.stdout + done.stderr

    def instance(self, number: int) -> "Image":
        """Another container of the image, with keys and a state of its own."""
        other = Image(self.root.with_name(f"{self.root.name}-{number}"), dict(self.variables), self.start)
        other.root.mkdir()
        for name in ("venv", "code"):
            (other.root / name).symlink_to(self.root / name)
        for name in ("keys", "state"):
            (other.root / name).mkdir()
        other.variables = {name: text.replace(str(self.root), str(other.root)) for name, text in self.variables.items()}
        return other


def build(name: str, root: Path) -> Image:
    """Do what the Containerfile says, below `root`."""
    image = Image(root)
    for folder in ("app", "state", "keys"):
        (root / folder).mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", str(root / "venv")], check=True)
    for instruction, rest in instructions(name):
        if instruction == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(ROOT / source, Path(image.place(target)) if target.startswith("/") else root / "app" / target)
        elif instruction == "RUN" and rest.startswith("pip "):
            image.run(rest, "/app")
        elif instruction == "ENV":
            pairs = (pair.split("=", 1) for pair in shlex.split(rest))
            image.variables |= {name: image.place(text) for name, text in pairs}
        elif instruction == "CMD":
            image.start = json.loads(rest)[2]
    return image


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name)


@contextmanager
def started(image: Image, log: Path, start: str, **variables: str) -> Iterator[Path]:
    """Run the command of an image until the block ends; its output goes to `log`."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["sh", "-c", image.place(start)],
            cwd=image.place("/state"),
            env=image.environment | variables,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        end_child(process)


def wait_for_text(log: Path, pattern: str) -> re.Match[str]:
    deadline = time.monotonic() + PATIENCE
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < deadline, f"{log} has no {pattern}: {log.read_text()[-2000:]}"
        time.sleep(0.5)
    return found


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    folder = tmp_path_factory.mktemp("images")
    return {name: build(name, folder / name) for name in FILES}


@pytest.mark.slow
def test_a_fleet_from_the_images_trains_in_an_environment_that_its_server_does_not_know(
    images: dict[str, Image], tmp_path: Path
) -> None:
    server, port = images["server"], free_port()
    for module in ("gymnasium", "plant"):
        server.run(f"! python -c 'import {module}' 2> /dev/null")
    server.run("fedpohcs flower keys made --hosts localhost")
    server.run("cp made/server.pem made/server.key /keys")
    nodes = [images["node"].instance(number) for number in (0, 1)]
    for node in nodes:
        node.run("fedpohcs flower identity --out made && mv made/* /keys")
        shutil.copy(server.root / "state" / "made" / "ca.pem", node.root / "keys")
    with ExitStack() as stack:
        log = stack.enter_context(started(server, tmp_path / "server.log", server.start.replace("9092", str(port))))
        address = wait_for_text(log, r"status of the fleet: (http://\S+/)")[1]
        for number, node in enumerate(nodes):
            public = node.root / "keys" / "public"
            server.run(f"fedpohcs flower members add members --client-id {number} --public {public} --server server")
            variables = {"SUPERLINK": f"localhost:{port}", "CLIENT": str(number)}
            stack.enter_context(started(node, tmp_path / f"node-{number}.log", node.start, **variables))
        options = f"--clients 2 --members members --app . --out runs/plants {' '.join(SMALL)}"
        server.run(f"fedpohcs flower app gym --env plant:make_client {options}")
        said = server.run("flwr run fedpohcs-app fleet --stream")
        with urllib.request.urlopen(f"{address}data.json", timeout=60) as answer:
            status = json.load(answer)
    assert re.search(r"round 1/1: 2 of 2 evaluated, mean return of these \S+; 2 selected, 2 answered; ", said)
    assert [(row["client"], row["online"], row["bad_replies"]) for row in status["devices"]] == [
        (0, True, 0),
        (1, True, 0),
    ]
    assert all(row["version"] for row in status["devices"])
    assert "round 1/1: 2 of 2 evaluated" in (tmp_path / "server.log").read_text()
    server.run("fedpohcs export runs/plants@best best.npz")
    best = load_policy(server.root / "state" / "best.npz")
    for node in nodes:
        node.run(f"fedpohcs flower export mine.npz --policy {server.root}/state/best.npz --state-dir states")
        mine = load_policy(node.root / "state" / "mine.npz")
        assert mine.act([3.0, 2.0]).shape == best.act([3.0, 2.0]).shape == (1,)
        assert mine.act([3.0, 2.0]) != best.act([3.0, 2.0])


def container_tool() -> str | None:
    """A container tool whose service runs."""
    for tool in ("podman", "docker"):
        if shutil.which(tool) and not subprocess.run([tool, "info"], capture_output=True, timeout=60).returncode:
            return tool
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_images_can_be_built_with_a_container_tool(name: str) -> None:
    tool = container_tool()
    if tool is None:
        pytest.skip("no container tool is at hand")
    tag = f"fedpohcs-{name}-test"
    subprocess.run([tool, "build", "-f", str(FILES[name]), "-t", tag, "."], cwd=ROOT, check=True, timeout=PATIENCE)
    subprocess.run([tool, "run", "--rm", tag, "fedpohcs", "flower", name, "--help"], check=True, timeout=PATIENCE)


def test_the_images_keep_code_state_and_keys_apart() -> None:
    server, node = (dict(instructions(name)) for name in ("server", "node"))
    assert "gym" not in FILES["server"].read_text().split("pip install", 1)[1].split("\n")[0]
    assert "/code" not in FILES["server"].read_text()
    assert "PYTHONPATH=/code" in node["ENV"] and node["VOLUME"] == server["VOLUME"] == "/state"
    assert node["USER"] == server["USER"] == "1000"
