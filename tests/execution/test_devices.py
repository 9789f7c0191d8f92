"""Devices of compiled programs: one as on a GPU, more than groups, and nothing that calls Python back."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.core.config import FederationConfig
from fedpohcs.core.presets import preset
from fedpohcs.execution import mapping, measuring
from fedpohcs.execution.devices import configure_jax, describe_devices
from fedpohcs.runs.experiment import start_training
from fedpohcs.runs.loading import load_run

HOST_CALLS = re.compile(r"callback|infeed|outfeed|is_host_transfer=true", re.IGNORECASE)
SMALL = FederationConfig(num_clients=7, num_candidates=5, num_selected=3, evaluation_episodes=8)
SCRIPT = """
import sys
from dataclasses import replace
from fedpohcs import preset, run_experiment
from fedpohcs.core.config import FederationConfig
small = FederationConfig(num_clients=7, num_candidates=5, num_selected=3, evaluation_episodes=8)
run_experiment(replace(preset("tabular"), rounds=2, federation=small), sys.argv[1])
"""


def run_on(devices: int | None, out: Path) -> Path:
    """A run in a process of its own, in which JAX has so many devices; None: as many as the config has groups."""
    forced = {} if devices is None else {"JAX_NUM_CPU_DEVICES": str(devices)}
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PJRT_NPROC")}
    subprocess.run([sys.executable, "-c", SCRIPT, str(out)], env=environment | forced, check=True)
    return out


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_on(None, tmp_path_factory.mktemp("devices") / "two")


def host_calls(compiled: Any) -> list[str]:
    """The lines without metadata: names of source files in it mean nothing."""
    lines = [re.sub(r"metadata=\{[^}]*\}", "", line) for line in compiled.as_text().splitlines()]
    return [line for line in lines if HOST_CALLS.search(line)]


def test_the_search_finds_a_call_back_to_python() -> None:
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    called = jax.jit(lambda x: jax.pure_callback(lambda y: np.asarray(y), shape, x))
    assert host_calls(called.lower(np.zeros(3, np.float32)).compile())


@pytest.mark.parametrize("selector", ["fedpohcs", "gradient-sampling"])
def test_no_program_of_a_round_calls_python_back(selector: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[str]] = {}

    def watched(make: Any, task: Any, *rest: Any) -> Any:
        program = make(task, *rest)

        def call(*arguments: Any) -> Any:
            if task.__name__ not in found:
                found[task.__name__] = host_calls(program.lower(*arguments).compile())
            return program(*arguments)

        return call

    configure_jax(2)
    for module, name in ((mapping, "compiled_for_groups"), (measuring, "compiled")):
        monkeypatch.setattr(module, name, partial(watched, getattr(module, name)))
    config = replace(preset("tabular", selector=selector), rounds=1, federation=SMALL)
    list(start_training(config).remaining_rounds())
    assert {"evaluate", "train"} < found.keys()  # and what is measured
    assert not any(found.values())


def test_one_device_as_on_a_gpu_gives_the_results_of_two(on_two: Path, tmp_path: Path) -> None:
    two, one = load_run(on_two), load_run(run_on(1, tmp_path / "one"))
    assert (two.origin["devices"], one.origin["devices"]) == (["2 x cpu"], ["1 x cpu"])
    assert list(two.rounds["selected"]) == list(one.rounds["selected"])
    np.testing.assert_array_equal(two.rounds["train_steps"], one.rounds["train_steps"])
    np.testing.assert_allclose(two.rounds["mean_return"], one.rounds["mean_return"], rtol=1e-4)


def test_more_devices_than_groups_change_no_byte(on_two: Path, tmp_path: Path) -> None:
    four = run_on(4, tmp_path / "four")
    assert json.loads((four / "origin.json").read_text())["devices"] == ["4 x cpu"]
    for name in ("rounds.csv", "clients.csv"):
        assert (on_two / name).read_bytes() == (four / name).read_bytes()


def test_devices_are_named_with_their_number() -> None:
    configure_jax(2)
    assert re.fullmatch(r"\d+ x cpu", describe_devices())
