"""A whole run: rounds in a row, each handed to whoever watches or stores it."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from fedpohcs.config import ExperimentConfig
from fedpohcs.envs import make_world, world_class, world_levels
from fedpohcs.envs.host import HostWorld
from fedpohcs.errors import require, require_known
from fedpohcs.plugins import register_plugins
from fedpohcs.selection import SELECTORS
from fedpohcs.storage import RunFolder
from fedpohcs.types import Params, RoundRecord, ServerState


class Observer(Protocol):
    """Watches a run: a progress display, a logger."""

    def on_start(self, config: ExperimentConfig) -> None:
        """Before anything is computed."""
        ...

    def on_round(self, record: RoundRecord) -> None:
        """After every round; round 0 is the evaluation before training."""
        ...

    def on_finish(self) -> None:
        """After the last round, or when the run stops early."""
        ...


class History(NamedTuple):
    """What a run leaves in memory."""

    config: ExperimentConfig
    records: list[RoundRecord]
    params: Params

    @property
    def mean_returns(self) -> list[float]:
        """Mean return over all clients, by round; round 0 comes before training."""
        return [float(record.evaluation.mean_return.mean()) for record in self.records]


def run_experiment(
    config: ExperimentConfig,
    out: Path | str | None = None,
    *,
    overwrite: bool = False,
    observers: Sequence[Observer] = (),
) -> History:
    """Train a federation as `config` says, and store the run in `out` if given.

    Args:
        config: the experiment.
        out: run folder; must not hold a run yet unless `overwrite`.
        overwrite: replace the run that is there.
        observers: told of every round.
    """
    check_names(config)
    folder = RunFolder.create(Path(out), config, overwrite=overwrite) if out is not None else None
    records: list[RoundRecord] = []
    params: Params = None
    for observer in observers:
        observer.on_start(config)
    try:
        for state, record in iterate_rounds(config):
            params = state.params
            records.append(record)
            if folder is not None:
                folder.append(record)
            for observer in observers:
                observer.on_round(record)
    finally:
        for observer in observers:
            observer.on_finish()
    if folder is not None:
        folder.save_policy(params)
    return History(config, records, params)


def iterate_rounds(config: ExperimentConfig) -> Iterator[tuple[ServerState, RoundRecord]]:
    """The rounds of an experiment, one by one, starting with the evaluation of the untrained policy."""
    from fedpohcs.execution.devices import configure_jax

    configure_jax(config.groups)
    from fedpohcs.execution import make_executor
    from fedpohcs.rounds import evaluate_start, run_round

    selector = SELECTORS[config.selector]()
    if "weighted_advantage" in selector.requires:
        from fedpohcs.heterogeneity import compile_ahead

        threading.Thread(target=compile_ahead, daemon=True).start()
    executor = make_executor(config, record=bool(selector.requires - {"mean_return"}))
    try:
        state = ServerState(0, executor.initial_params(), selector.init())
        yield state, evaluate_start(state, executor)
        for _ in range(config.rounds):
            state, record = run_round(state, executor, selector, config.federation, config.seed)
            yield state, record
    finally:
        executor.close()


def check_names(config: ExperimentConfig) -> None:
    """Refuse names that are not registered and settings that only the world can judge, before anything is written.

    Not when a config is made: a run can be read where a selector or world of somebody's own is not known.
    """
    from fedpohcs.aggregation import AGGREGATORS

    register_plugins()
    require_known("selector", config.selector, SELECTORS)
    require_known("level", config.level, world_levels(config.world))
    world = world_class(config.world)
    if issubclass(world, HostWorld):
        world = make_world(config)  # says what is missing; worlds made with JAX must wait until that is configured
    if config.env is not None:
        require(config.world == "gym", "env", config.env, f"is for the world 'gym', not for {config.world!r}")
    federation = config.federation
    require_known("federation.aggregator", federation.aggregator, AGGREGATORS)
    if federation.aggregator == "policy-mean":
        from fedpohcs.envs.base import DiscreteActions

        tabular = isinstance(world.actions, DiscreteActions) and not config.learner.hidden_sizes
        rule = "needs a tabular policy: discrete actions and no hidden layers"
        require(tabular, "federation.aggregator", federation.aggregator, rule, "Use parameter-mean.")
