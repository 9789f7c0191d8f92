"""Made-up records and run folders, for the tests of what is stored and read."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.presets import preset
from fedpohcs.core.types import Evaluation, RoundRecord, Selection
from fedpohcs.execution.devices import configure_jax
from fedpohcs.execution.mapping import forget_programs, limit_programs
from fedpohcs.runs.folder import RunFolder

MakeRun = Callable[..., Path]
QUICKLY_COMPILED = ("learners", "metrics", "server")  # folders

settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")  # a slow or busy machine is no failure
configure_jax(ExperimentConfig().groups)  # before any test uses JAX: processes that tests start do the same
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # tests make thousands of tiny programs


@pytest.fixture(scope="module", autouse=True)
def few_memory_mappings() -> Iterator[None]:
    """Forget compiled programs between files."""
    yield
    limit_programs(most=15_000)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(request: pytest.FixtureRequest) -> None:
    """Compile without most optimisations where results are compared within a tolerance, or with the same program.

    That takes half as long. Tests of stored bytes, and of equal bytes from different programs, run what users run.
    """
    quick = request.path.parent.name in QUICKLY_COMPILED
    if quick != jax.config.values["jax_disable_most_optimizations"]:
        forget_programs()
        jax.config.update("jax_disable_most_optimizations", quick)


def made_up_records(config: ExperimentConfig, slope: float = 1.0) -> Iterator[RoundRecord]:
    """Records whose numbers are easy to check: client n returns `slope * round + seed - n` after each round.

    The candidates of a round are the first d clients, of which the first K train.
    """
    federation = config.federation
    everyone = np.arange(federation.num_clients)
    for number in range(config.rounds + 1):
        candidates = everyone[: federation.num_candidates if number else 0]
        selected = candidates[: federation.num_selected]
        yield RoundRecord(
            round=number,
            candidates=candidates,
            selection=Selection(selected, {"loss": candidates / 3} if number else {}),
            updates_info={"kl": np.full(len(selected), 0.1)} if number else {},
            train_steps=np.full(len(selected), 256),
            rejected=selected[:0],
            evaluation=Evaluation(everyone, slope * number + config.seed - everyone, np.full(len(everyone), 50)),
            seconds={"measure": 0.25, "train": 0.5, "evaluate": 0.125} if number else {"evaluate": 0.125},
        )


@pytest.fixture
def config() -> ExperimentConfig:
    return replace(preset("tabular"), rounds=3)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run folder from made-up records and returns its path."""

    def make(name: str = "run", slope: float = 1.0, stop_after: int | None = None, **changes: object) -> Path:
        config = replace(preset("tabular"), **changes)
        folder = RunFolder.create(tmp_path / name, config)
        for record in made_up_records(config, slope):
            if stop_after is None or record.round <= stop_after:
                folder.append(record)
        return folder.path

    return make
