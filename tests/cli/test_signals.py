"""Ctrl-C and SIGTERM at any moment: one line, the right exit code, no traceback, in real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import PATIENCE, started, wait_for
from fedpohcs.cli.grid import read_progress
from fedpohcs.cli.signals import how_to_go_on, stopped_by_signals
from fedpohcs.runs.checkpoints import checkpoint_files

LONG = ["--rounds", "100000"]
TRAIN = ["train", "tabular", *LONG, "--out", "run"]
COMPARE = ["compare", "tabular", "--selectors", "fedavg,full", "--seeds", "0", "--jobs", "2", *LONG, "--out", "all"]
GYM = ["train", "gym", "--env", "CartPole-v1", "--clients", "3", *LONG, "--out", "run"]
FLOWER = ["flower", "run", "tabular", "--clients", "3", *LONG, "--out", "run"]


def ended(process: subprocess.Popen[str], code: int, hint: str) -> None:
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said.count("\n")) == (code, 1), said
    assert said.startswith("fedpohcs: ") and hint in said


@pytest.mark.parametrize(
    ("arguments", "folder", "hint"),
    [
        (TRAIN, "run", "resume run"),
        (COMPARE, "all/medium/full/seed-0", "compare tabular --selectors fedavg,full"),
        (GYM, "run", "resume run"),
        pytest.param(FLOWER, "run", "flower run --resume run", marks=pytest.mark.slow),
    ],
    ids=["train", "compare", "gym", "flower"],
)
def test_ctrl_c_and_sigterm_end_a_command_with_one_line(
    arguments: list[str], folder: str, hint: str, tmp_path: Path
) -> None:
    """Ctrl-C reaches the whole process group, `kill` the command alone. What it had started ends, its rounds stay."""
    for word, package in (("gym", "gymnasium"), ("flower", "flwr")):
        if word in arguments:
            pytest.importorskip(package)
    for number, send, code in ((signal.SIGINT, os.killpg, 130), (signal.SIGTERM, os.kill, 143)):
        here = tmp_path / str(int(number))
        here.mkdir()
        with started(here, arguments) as process:
            wait_for(lambda here=here: read_progress(here / folder).round >= 1)
            others = [Path("/proc", child) for child in children(process)]
            send(process.pid, number)
            ended(process, code, f"stopped; to go on: fedpohcs {hint}")
            wait_for(lambda others=others: not any(other.exists() for other in others))
        assert checkpoint_files(here / folder)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_the_run_has_a_folder_names_none(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt, match="nothing is stored"), stopped_by_signals(how_to_go_on(run, "resume")):
        signal.raise_signal(getattr(signal, name))
    run.mkdir()
    (run / "config.json").touch()
    with (
        pytest.raises(KeyboardInterrupt, match=r"to go on: resume .*run"),
        stopped_by_signals(how_to_go_on(run, "resume")),
    ):
        signal.raise_signal(getattr(signal, name))


def children(process: subprocess.Popen[str]) -> list[str]:
    """The processes that a command has started."""
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.2, 0.5])
def test_ctrl_c_while_processes_of_a_comparison_import_modules_prints_one_line(seconds: float, tmp_path: Path) -> None:
    with started(tmp_path, COMPARE) as process:
        wait_for(lambda: len(children(process)) >= 2)  # a process of multiprocessing, and the first run
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        ended(process, 130, "stopped; to go on: fedpohcs compare")


def test_runs_of_a_comparison_that_is_killed_stop(tmp_path: Path) -> None:
    with started(tmp_path, COMPARE) as process:
        wait_for(lambda: read_progress(tmp_path / "all/medium/full/seed-0").round >= 1)
        runs = [Path("/proc", child) for child in children(process)]
        process.kill()
        process.wait()
        wait_for(lambda: not any(run.exists() for run in runs))


UNGUARDED = """
from dataclasses import replace
from fedpohcs import preset, run_experiment
from fedpohcs.worlds.gym import GymConfig
from fedpohcs.core.config import FederationConfig
config = replace(preset("gym"), scenario=GymConfig("CartPole-v1"), federation=FederationConfig(2, 2, 1), rounds=1)
run_experiment(config, "run")
"""


def test_a_script_without_a_main_guard_ends_in_one_line_that_says_so(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    (tmp_path / "script.py").write_text(UNGUARDED)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("fedpohcs: worker processes could not start.")
    assert 'if __name__ == "__main__":' in done.stderr


WHILE_IMPORTING = """
import signal, sys
from fedpohcs.execution import configure_jax

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "jaxlib":
            signal.raise_signal(signal.SIGINT)

assert "jax" not in sys.modules
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    configure_jax(2)
except KeyboardInterrupt:
    print(hasattr(sys.modules.get("jax"), "jit"))
"""


def test_an_interrupt_waits_until_jax_is_imported() -> None:
    """In the compiled code that JAX imports, the exception would abort the process with C++'s own words."""
    done = subprocess.run([sys.executable, "-c", WHILE_IMPORTING], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
