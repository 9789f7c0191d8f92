"""Shards in actors: who is replaced, what is asked again, and that no byte tells of it."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from fedpohcs.cli import main
from fedpohcs.core import processes
from fedpohcs.core.config import ExperimentConfig, FederationConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.execution import make_protected_executor
from fedpohcs.execution import ray as module
from fedpohcs.execution.cluster import ClusterSettings
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment

SMALL = FederationConfig(num_clients=5, num_candidates=4, num_selected=2, evaluation_episodes=4, held_out_clients=1)
TABULAR = preset("tabular", selector="power-of-choice")
LEARNER = replace(TABULAR.learner, momentum=0.5)  # which clients keep from one training to the next
CONFIG = replace(TABULAR, rounds=3, federation=SMALL, groups=3, executor="ray", learner=LEARNER)


class DeathError(Exception):
    """Stands for Ray's news that an actor has died."""


class SlowError(Exception):
    """Stands for Ray's news that a reply did not arrive in time."""


class FakeRay:
    """What `RayShards` uses of Ray, in this process. Requests are carried out at once, one after the other."""

    exceptions = SimpleNamespace(
        RayActorError=DeathError,
        WorkerCrashedError=DeathError,
        OutOfMemoryError=DeathError,
        ObjectLostError=DeathError,
        GetTimeoutError=SlowError,
    )
    _private = SimpleNamespace(worker=SimpleNamespace())

    def __init__(self, dies: Callable[[int, str], bool] = lambda number, method: False) -> None:
        self.dies = dies  # whether the actor dies in a request, of a number from 0
        self.requests = self.actors = self.cores = 0
        self.open = False

    def is_initialized(self) -> bool:
        return self.open

    def init(self, *, num_cpus: int, **settings: Any) -> None:
        self.cores, self.open = num_cpus, True

    def shutdown(self) -> None:
        self.open = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cores}

    def put(self, value: Any) -> Any:
        return value

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        del timeout
        if isinstance(reference, Exception):
            raise reference
        return reference

    def kill(self, actor: Any) -> None:
        actor.alive = False

    def remote(self, **options: Any) -> Callable[[type], Any]:
        assert options["max_restarts"] == 0
        return lambda cls: SimpleNamespace(remote=lambda: self._actor(cls()))

    def _actor(self, within: Any) -> Any:
        self.actors += 1
        actor = SimpleNamespace(alive=True)
        for name in ("open", "ask"):
            setattr(actor, name, SimpleNamespace(remote=partial(self._request, actor, within, name)))
        return actor

    def _request(self, actor: Any, within: Any, name: str, *arguments: Any) -> Any:
        task = getattr(arguments[0], "task", name)
        number, self.requests = self.requests, self.requests + 1
        if self.dies(number, task):
            actor.alive = False
            getattr(within, name)(*arguments)  # it may have done all of it, or nothing
        return (
            getattr(within, name)(*arguments)
            if actor.alive
            else DeathError("The actor is dead because it was told to.")
        )


@pytest.fixture
def on_fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes clients on a fake cluster."""
    monkeypatch.setattr(processes, "limit_cores", lambda most: None)

    def make(ray: FakeRay, **settings: Any) -> Any:
        monkeypatch.setattr(module, "import_ray", lambda setting, value: ray)
        return partial(make_protected_executor, cluster=ClusterSettings(**({"actors": 2} | settings)))

    return make


def assert_same_tables(one: Path, other: Path) -> None:
    for name in ("rounds.csv", "clients.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_runs_in_actors_that_die_are_the_run_in_one_process_to_the_byte(tmp_path: Path, on_fake: Any) -> None:
    """One actor after the other dies, in every kind of request; a checkpoint is written in some rounds only."""
    one_process = replace(CONFIG, executor="sharded")
    run_experiment(one_process, tmp_path / "one")
    calm = FakeRay()
    run_experiment(CONFIG, tmp_path / "calm", make_clients=on_fake(calm))
    assert (calm.actors, calm.open) == (2, False)
    assert_same_tables(tmp_path / "one", tmp_path / "calm")
    seen: set[str] = set()

    def dies(number: int, task: str) -> bool:
        first = task not in seen and number > 2
        seen.add(task) if number > 2 else None
        return first or number == 0

    unruly = FakeRay(dies)
    run_experiment(CONFIG, tmp_path / "unruly", make_clients=on_fake(unruly), checkpoint_every=2)
    assert seen >= {"evaluate", "measure", "train", "snapshot", "filters"}
    assert unruly.actors >= 2 + 6
    assert_same_tables(tmp_path / "one", tmp_path / "unruly")


def test_an_actor_that_takes_over_has_the_state_of_the_one_that_died(on_fake: Any) -> None:
    states = []
    for unruly in (False, True):
        ray = FakeRay()
        executor = on_fake(ray)(CONFIG)
        params = executor.initial_params()
        executor.train(params, 0, np.array([0, 1, 2]))
        before = ray.actors
        ray.dies = lambda number, task: task == "snapshot" and ray.actors < before + 2  # noqa: B023
        ray.dies = ray.dies if unruly else lambda number, task: False
        states.append(executor.snapshot().state)
        assert (ray.actors > before) == unruly
    one, other = map(jax.tree.leaves, states)
    assert all(map(np.array_equal, one, other))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(states[0].memory))


def test_a_run_goes_on_with_other_actors_and_in_one_process(tmp_path: Path, on_fake: Any) -> None:
    run_experiment(replace(CONFIG, executor="sharded"), tmp_path / "whole")
    run_experiment(replace(CONFIG, rounds=1), tmp_path / "run", make_clients=on_fake(FakeRay(), actors=3))
    resume_experiment(tmp_path / "run", rounds=2, make_clients=on_fake(FakeRay(), actors=1))
    assert main(["resume", str(tmp_path / "run"), "--rounds", "3", "--executor", "sharded", "--quiet"]) == 0
    assert_same_tables(tmp_path / "whole", tmp_path / "run")


def test_orders_are_kept_until_a_snapshot_and_never_many(monkeypatch: pytest.MonkeyPatch, on_fake: Any) -> None:
    monkeypatch.setattr(module, "MOST_ORDERS", 4)
    executor = on_fake(FakeRay())(CONFIG, record=False)
    params, kept = executor.initial_params(), []
    for number in range(5):
        executor.evaluate(params, number, np.arange(5))
        kept.append([len(owner.orders) for owner in executor.shards.owners])
    assert kept == [[1, 1], [2, 2], [3, 3], [0, 0], [1, 1]]
    executor.snapshot()
    assert [len(owner.orders) for owner in executor.shards.owners] == [0, 0]


def test_an_actor_that_dies_again_and_again_ends_the_run_with_one_line(
    on_fake: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ray = FakeRay(lambda number, task: task == "train")
    executor = on_fake(ray, restarts=2)(CONFIG)
    with pytest.raises(UserError, match=r"the actor of shard 0, 2 died 3 times in a row \(ray.restarts\)"):
        executor.train(executor.initial_params(), 0, np.array([0, 1]))
    assert (
        "the actor of shard 0, 2 died; another one takes over. Ray says: The actor is dead because it was told to."
        in caplog.text
    )
    executor.close()
    assert not ray.open


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"get": lambda reference, timeout=None: (_ for _ in ()).throw(SlowError())}, "ray.startup_timeout"),
        ({"dies": lambda number, task: True}, "died 4 times in a row"),
    ],
)
def test_actors_that_do_not_start_end_the_run_with_one_line(on_fake: Any, change: dict[str, Any], text: str) -> None:
    ray = FakeRay()
    vars(ray).update(change)
    with pytest.raises(UserError, match=text):
        on_fake(ray)(CONFIG)
    assert not ray.open


def test_machines_with_other_versions_and_without_the_package_are_refused(
    monkeypatch: pytest.MonkeyPatch, on_fake: Any
) -> None:
    own, asked = module.versions(), iter(range(9))
    monkeypatch.setattr(module, "versions", lambda: own | {"jax": f"0.{next(asked)}"})
    with pytest.raises(UserError, match=r"would compute other digits\. It has jax 0\.0, not 0\.\d"):
        on_fake(FakeRay())(CONFIG)
    monkeypatch.setattr(DeathError, "actor_init_failed", True, raising=False)
    with pytest.raises(UserError, match="Is fedpohcs installed there"):
        on_fake(FakeRay(lambda number, task: True))(CONFIG)


def test_what_actors_log_and_refuse_reaches_the_user(on_fake: Any, caplog: pytest.LogCaptureFixture) -> None:
    executor = on_fake(FakeRay())(CONFIG)
    owner = executor.shards.owners[0]
    noted = module.Reply({0: 1}, notes=(module.Note("client 3 is left out", 30), module.Note("odd", None)))
    with pytest.warns(UserWarning, match="odd"):
        assert executor.shards._told(noted) == {0: 1}
    assert "client 3 is left out" in caplog.text
    with pytest.raises(UserError, match="no disk"):
        executor.shards._told(module.Reply(problem="no disk"))
    assert str(owner) == "the actor of shard 0, 2"
    with module._noted() as notes:
        module.log.warning("one %d", 1)
    assert notes == [("one 1", 30)]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"actors": 0}, "ray.actors"),
        ({"restarts": -1}, "ray.restarts"),
        ({"startup_timeout": 0.0}, "ray.startup_timeout"),
        ({"address": "ray://there:10001"}, "ray.address"),
    ],
)
def test_bad_settings_of_a_cluster_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        ClusterSettings(**settings)


def test_the_command_line_refuses_a_cluster_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tabular", "--ray.actors", "2"]) == 2
    assert "ray.actors (=2) is for executor ray, not for vectorised" in capsys.readouterr().err
    together = ["--executor", "ray", "--backend", "ray", "--out", "c"]
    assert main(["compare", "tabular", "--selectors", "fedavg", *together]) == 2
    assert "backend (='ray') starts tasks on the cluster" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"executor \(='ray'\) needs the extra ray. Install it: pip install 'fedpohcs"):
        check_config(CONFIG)
    assert not list(tmp_path.iterdir())


KILLING = """
    import os, signal, sys
    from functools import partial
    from pathlib import Path

    from fedpohcs.core.toml import read_toml
    from fedpohcs.execution import make_protected_executor
    from fedpohcs.execution.cluster import ClusterSettings
    from fedpohcs.runs.experiment import run_experiment

    class Killer:
        executor = None

        def make(self, config, **more):
            self.executor = make_protected_executor(config, cluster=ClusterSettings(actors=int(sys.argv[3])), **more)
            return self.executor

        def on_start(self, config): ...
        def on_finish(self): ...

        def on_round(self, record):
            if record.round == 1:
                import ray
                actor = self.executor.shards.owners[-1].actor
                os.kill(ray.get(actor.process.remote()), signal.SIGKILL)

    killer = Killer()
    run_experiment(read_toml(Path(sys.argv[1])), sys.argv[2], observers=[killer], make_clients=killer.make)
"""


def run_on_ray(config: ExperimentConfig, folder: Path, actors: int) -> str:
    """Run on a real cluster of this machine, whose last actor is killed after round 1; gives the standard error."""
    from fedpohcs.core.toml import to_toml

    (folder / "config.toml").write_text(to_toml(config))
    (folder / "killing.py").write_text(textwrap.dedent(KILLING))
    command = [sys.executable, "killing.py", "config.toml", "ray", str(actors)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr


@pytest.mark.slow
def test_an_actor_that_is_killed_on_a_real_cluster_changes_no_byte(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    run_experiment(replace(CONFIG, rounds=2, executor="sharded"), tmp_path / "one")
    said = run_on_ray(replace(CONFIG, rounds=2), tmp_path, actors=2)
    assert "the actor of shard 1 died; another one takes over" in said
    assert len(said.splitlines()) == 1
    assert_same_tables(tmp_path / "one", tmp_path / "ray")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "actors"), [("mountain-cars", 3), ("gym/CartPole-v1", 2), ("gym/Hopper-v5", 2), ("hoppers", 4)]
)
def test_every_kind_of_world_runs_on_a_real_cluster(name: str, actors: int, tmp_path: Path) -> None:
    """In JAX, in compiled lanes, in worker processes, in a batch simulator; with metrics of episodes and gradients."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    config = preset(name, selector="gradient-norm")
    federation = replace(config.federation, num_clients=8, num_candidates=5, num_selected=3, evaluation_episodes=2)
    learner = replace(config.learner, local_iterations=1, filter_warmup_steps=500)
    config = replace(config, rounds=2, groups=4, executor="ray", federation=federation, learner=learner)
    run_experiment(replace(config, executor="sharded"), tmp_path / "one")
    assert "another one takes over" in run_on_ray(config, tmp_path, actors)
    assert_same_tables(tmp_path / "one", tmp_path / "ray")
