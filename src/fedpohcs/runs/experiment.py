"""A whole run: executes the rounds and passes each record to observers and to the run folder."""

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedpohcs.core.config import ExperimentConfig, to_dict
from fedpohcs.core.errors import require, require_checkpoint
from fedpohcs.core.processes import refuse_while_importing
from fedpohcs.core.trees import same_form
from fedpohcs.core.types import KnownReturns, Params, RoundRecord, ServerState
from fedpohcs.execution import configure_jax, make_protected_executor, with_byzantine_clients
from fedpohcs.metrics.base import find_metric, reads_evaluation
from fedpohcs.runs.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    discard_after,
    is_whole,
    keep_newest,
    latest_checkpoint,
)
from fedpohcs.runs.checks import check_config, optimiser_name
from fedpohcs.runs.folder import RunFolder, round_figures
from fedpohcs.runs.keeping import KEEP_BEST, Keep, Keeper
from fedpohcs.server.clock import make_times
from fedpohcs.server.optimisers import make_optimiser
from fedpohcs.server.protocols import Executor
from fedpohcs.server.selection import make_selector
from fedpohcs.server.selection.checks import ask_clients


class Observer(Protocol):
    """Watches a run: a progress display, a logger."""

    def on_start(self, config: ExperimentConfig) -> None:
        """Before anything is computed."""
        ...

    def on_round(self, record: RoundRecord) -> bool | None:
        """After every round; round 0 is the evaluation before training. True: stop here, as a signal would.

        A run that was stopped can be resumed from its last checkpoint.
        """
        ...

    def on_finish(self) -> None:
        """After the last round, or when the run stops early."""
        ...


class History(NamedTuple):
    """The result of a run in memory."""

    config: ExperimentConfig
    records: list[RoundRecord]  # empty with `keep_records=False`
    params: Params

    @property
    def mean_returns(self) -> list[float]:
        """Mean return over the evaluated clients, by round; round 0 comes before training. NaN: not evaluated."""
        returns = [record.evaluation.mean_return for record in self.records]
        return [float(some.mean()) if len(some) else math.nan for some in returns]


class RunState(NamedTuple):
    """The state of a run in a checkpoint."""

    server: ServerState
    clients: Any


MakeExecutor = Callable[..., Executor]
"""Takes a config, and by name: `record` and `snapshot`, as `make_protected_executor` does."""


class Training:
    """A federation between two rounds: the state that the next round, or a resumed run, needs."""

    executor: Executor

    def __init__(
        self,
        config: ExperimentConfig,
        saved: RunState | None = None,
        make_clients: MakeExecutor = make_protected_executor,
    ) -> None:
        """Build clients and server, from a saved state if one is given."""
        self.config = config
        self.selector = make_selector(config.selector)
        for metric in map(find_metric, self.selector.requires):
            if metric.compile_ahead is not None:
                threading.Thread(target=metric.compile_ahead, daemon=True).start()
        record = reads_evaluation(self.selector.requires, config)
        clients = make_clients(config, record=record, snapshot=saved.clients if saved else None)
        self.executor = with_byzantine_clients(clients, config)
        self.is_new = saved is None
        self.optimiser = make_optimiser(optimiser_name(config, self.selector), config.server_optimiser)
        self.times = make_times(config)
        self.state = saved.server if saved else self._first_state()
        self._stored: ServerState | None = None  # of the last checkpoint

    def _first_state(self) -> ServerState:
        params = self.executor.initial_params()
        return ServerState(0, params, self.selector.init(), optimiser=self.optimiser.init(params))

    def remaining_rounds(self) -> Iterator[RoundRecord]:
        """Run the remaining rounds one by one; a new run begins with round 0, which evaluates the untrained policy."""
        from fedpohcs.server.round import evaluate_start, latest_returns, run_round

        config = self.config
        self._warn_of_growth()
        if self.is_new:
            self.is_new = False
            record = evaluate_start(self.state, self.executor, self.selector, config.federation, config.seed)
            nothing = np.full(self.executor.num_clients, np.nan)
            self.state = self.state._replace(returns=latest_returns(nothing, record.evaluation))
            yield record
        while self.state.round < config.rounds:
            self.state, record = run_round(
                self.state,
                self.executor,
                self.selector,
                config.federation,
                config.seed,
                config.defence,
                self.optimiser,
                self.times,
            )
            yield self._finetuned(record)

    def _warn_of_growth(self) -> None:
        """Say once that a selector deals with all clients, where a sample of them is evaluated to save time."""
        from fedpohcs.server.round import ask_question

        federation = self.config.federation
        if federation.evaluated_clients is None:
            return
        question = ask_question(self.state.round, self.selector, federation, self.config.seed)
        asked = ask_clients(self.selector, question, self.state.selector_state)
        if max(len(asked), len(question.candidates)) > federation.num_candidates:
            text = f"selector {self.selector.name!r} asks all {federation.num_clients} clients"
            warnings.warn(f"{text}: time and memory of a round grow with the population", stacklevel=3)

    def _finetuned(self, record: RoundRecord) -> RoundRecord:
        """The record of the last round with the returns of clients that train on alone, if the config wants them."""
        iterations = self.config.federation.finetune_iterations
        if not iterations or record.round < self.config.rounds:
            return record
        tuned: Any = self.executor
        return record._replace(finetuned=tuned.finetune(self.state.params, record.round, iterations))

    def stored_policy(self) -> Mapping[str, np.ndarray]:
        """The arrays of the present policy and the filters of the clients, by name."""
        return self.executor.stored_policy(self.state.params)

    def checkpoint(self) -> Checkpoint:
        """The present state, which later rounds do not change, or what has changed since the last checkpoint."""
        clients, server = self.executor.snapshot(changes=True), self.state
        earlier, self._stored = None if is_whole(clients) else self._stored, server
        if self.config.federation.evaluated_clients is not None and server.returns is not None:
            server = server._replace(returns=KnownReturns.of(server.returns, earlier and earlier.returns))
        state = RunState(server, clients)
        return Checkpoint(server.round, to_dict(self.config), state, earlier and earlier.round)


def start_training(config: ExperimentConfig, make_clients: MakeExecutor = make_protected_executor) -> Training:
    """A new run of `config`, in memory."""
    refuse_while_importing()
    check_config(config)
    return _new_training(config, make_clients)


def _new_training(config: ExperimentConfig, make_clients: MakeExecutor) -> Training:
    """The start of a run whose config is checked."""
    configure_jax(config.num_devices)
    from fedpohcs.execution.mapping import limit_programs  # loads JAX

    limit_programs()
    return Training(config, make_clients=make_clients)


def run_experiment(
    config: ExperimentConfig,
    out: Path | str | None = None,
    *,
    overwrite: bool = False,
    observers: Sequence[Observer] = (),
    checkpoint_every: int = 1,
    keep: Keep = KEEP_BEST,
    keep_records: bool = True,
    make_clients: MakeExecutor = make_protected_executor,
    elsewhere: bool = False,
) -> History:
    """Train a federation as `config` says, and store the run in `out` if given.

    Args:
        config: the experiment.
        out: run folder; must not hold a run yet unless `overwrite`.
        overwrite: replace the run that is there.
        observers: told of every round.
        checkpoint_every: rounds from one checkpoint to the next; 0: none are written.
        keep: which policies to keep besides the last.
        keep_records: return the record of every round. Long runs that are stored need not keep them in memory.
        make_clients: makes the executor. By default, clients run in this process.
        elsewhere: the environments are on other machines, and may be unknown here.
    """
    refuse_while_importing()
    check_config(config, elsewhere=elsewhere)
    _check_cadence(checkpoint_every)
    make_training = partial(_new_training, config, make_clients)
    if out is None:
        return _run_all(config, make_training, None, observers, 0, keep, keep_records)
    with RunFolder.create(Path(out), config, overwrite=overwrite) as folder:
        return _run_all(config, make_training, folder, observers, checkpoint_every, keep, keep_records)


def resume_experiment(
    path: Path | str,
    *,
    rounds: int | None = None,
    observers: Sequence[Observer] = (),
    checkpoint_every: int = 1,
    keep: Keep = KEEP_BEST,
    keep_records: bool = True,
    make_clients: MakeExecutor = make_protected_executor,
    elsewhere: bool = False,
    executor: str | None = None,
) -> History:
    """Continue a run that stopped, from its last checkpoint, with the same results. History holds the new rounds only.

    Args:
        path: the run folder.
        rounds: in total; None: the number in the config of the run.
        observers: told of every new round.
        checkpoint_every: rounds from one checkpoint to the next; 0: none are written.
        keep: which policies to keep besides the last.
        keep_records: return the record of every round. Long runs that are stored need not keep them in memory.
        make_clients: makes the executor. By default, clients run in this process.
        elsewhere: the environments are on other machines, and may be unknown here.
        executor: which `make_clients` makes; None: that of the config of the run.
    """
    refuse_while_importing()
    _check_cadence(checkpoint_every)
    with RunFolder.reopen(Path(path), rounds) as folder:
        check_config(replace(folder.config, executor=executor or folder.config.executor), elsewhere=elsewhere)
        training = _continue_training(folder, make_clients)
        return _run_all(folder.config, lambda: training, folder, observers, checkpoint_every, keep, keep_records)


def _check_cadence(checkpoint_every: int) -> None:
    require(checkpoint_every >= 0, "checkpoint_every", checkpoint_every, "must be 0 or more")


def _continue_training(folder: RunFolder, make_clients: MakeExecutor) -> Training:
    """The training at the newest valid checkpoint; from the start if there is none."""
    configure_jax(folder.config.num_devices)
    checkpoint = latest_checkpoint(folder.path, folder.config, folder.last_round())
    if checkpoint is None:
        folder.cut_after(-1)
        return Training(folder.config, None, make_clients)
    saved = checkpoint.state
    form = (
        isinstance(saved, RunState) and isinstance(saved.server, ServerState) and saved.server.round == checkpoint.round
    )
    require_checkpoint(form, "the state of a server in that round")
    saved = saved._replace(server=_with_all_returns(saved.server, folder.config.federation.num_clients))
    training = Training(folder.config, saved, make_clients)
    require_checkpoint(same_form(saved.server.params, training.executor.initial_params()), "a policy of the config")
    folder.cut_after(checkpoint.round)
    discard_after(folder.path, checkpoint.round)
    return training


def _with_all_returns(server: ServerState, num_clients: int) -> ServerState:
    """The state with the returns of all clients, where a checkpoint has those that are known."""
    if not isinstance(server.returns, KnownReturns):
        return server
    try:
        return server._replace(returns=server.returns.of_all(num_clients))
    except (LookupError, TypeError, ValueError):
        require_checkpoint(False, "returns of the clients of the config")
        raise


def _run_all(
    config: ExperimentConfig,
    make_training: Callable[[], Training],
    folder: RunFolder | None,
    observers: Sequence[Observer],
    checkpoint_every: int,
    keep: Keep,
    keep_records: bool,
) -> History:
    """All remaining rounds, each stored and shown before the next begins.

    Observers start before clients are made, which takes seconds that somebody may be watching.
    """
    records: list[RoundRecord] = []
    writer = CheckpointWriter(folder.path) if folder is not None and checkpoint_every else None
    full = config.federation.full_evaluation_rounds or None
    keeper = Keeper(keep, folder.done_rounds() if folder is not None else (), full)
    final: Mapping[str, np.ndarray] | None = None
    with ExitStack() as at_end:
        if writer is not None:
            at_end.callback(writer.close)
        for observer in observers:
            observer.on_start(config)
        for observer in reversed(observers):
            at_end.callback(observer.on_finish)
        training = make_training()
        at_end.callback(training.executor.close)
        if folder is not None:
            _note_devices(folder)
        for record in training.remaining_rounds():
            if keep_records:
                records.append(record)
            if folder is not None:
                folder.append(record)
                for which in keeper.names(round_figures(record, config)):
                    folder.save_policy(training.stored_policy(), record.round, which)
            due = checkpoint_every and (record.round % checkpoint_every == 0 or record.round == config.rounds)
            if writer is not None and due:
                writer.submit(training.checkpoint())
            if any([observer.on_round(record) for observer in observers]):
                break
        if training.state.round >= config.rounds:
            final = training.stored_policy()  # while the clients are there
    if folder is not None and final is not None:
        folder.save_policy(final, training.state.round)
        keep_newest(folder.path, 1)
    return History(config, records, training.state.params)


def _note_devices(folder: RunFolder) -> None:
    from fedpohcs.execution.devices import describe_devices  # loads JAX

    folder.note_devices(describe_devices())
