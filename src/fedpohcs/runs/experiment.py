"""A whole run: executes the rounds and passes each record to observers and to the run folder."""

import importlib.util
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

from fedpohcs.core.config import MOST_LISTED, SHARDED, ExperimentConfig, to_dict
from fedpohcs.core.errors import require, require_checkpoint, require_known
from fedpohcs.core.learning import PolicyGradientConfig
from fedpohcs.core.processes import interrupts_deferred, refuse_while_importing
from fedpohcs.core.registries import AGGREGATORS, ALGORITHMS, ATTACKS, OPTIMISERS, SELECTORS, register_plugins
from fedpohcs.core.trees import same_form
from fedpohcs.core.types import KnownReturns, Params, RoundRecord, ServerState
from fedpohcs.execution import make_protected_executor, with_byzantine_clients
from fedpohcs.execution.cluster import REMEDY
from fedpohcs.metrics.base import find_metric, hidden_as, reads_evaluation
from fedpohcs.runs.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    discard_after,
    is_whole,
    keep_newest,
    latest_checkpoint,
)
from fedpohcs.runs.folder import RunFolder, round_figures
from fedpohcs.runs.keeping import KEEP_BEST, Keep, Keeper
from fedpohcs.server.candidates import client_weight
from fedpohcs.server.clock import make_times
from fedpohcs.server.optimisers import ServerOptimiser, make_optimiser
from fedpohcs.server.protocols import Executor
from fedpohcs.server.selection import Selector, make_selector
from fedpohcs.server.selection.base import asks_every_candidate
from fedpohcs.server.selection.checks import ask_clients
from fedpohcs.worlds import check_world, make_world
from fedpohcs.worlds.host import HostWorld


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
    check_names(config)
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
    check_names(config, elsewhere=elsewhere)
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
        check_names(replace(folder.config, executor=executor or folder.config.executor), elsewhere=elsewhere)
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


def optimiser_name(config: ExperimentConfig, selector: Selector) -> str:
    """The server optimiser of a config: the one it names, or the one that its selector recommends."""
    return config.federation.server_optimiser or selector.optimiser


def configure_jax(num_devices: int) -> None:
    """Set JAX up before it is first used. Imported here, because JAX itself takes a while.

    An exception of a signal handler that is raised in compiled code which JAX imports would abort the process.
    """
    with interrupts_deferred():
        from fedpohcs.execution import devices

    devices.configure_jax(num_devices)


def check_names(config: ExperimentConfig, *, elsewhere: bool = False) -> None:
    """Refuse names that are not registered, and settings that the world does not allow, before anything is written.

    This is not done when a config is made: runs can be read without the packages of their selector or world.
    If the environments are `elsewhere`, they may be unknown here: whoever knows them calls `check_acting`.
    """
    register_plugins()
    if config.algorithm is not None:
        require_known("algorithm", config.algorithm, ALGORITHMS)
    require_known("selector", config.selector, SELECTORS)
    selector = make_selector(config.selector)
    world = check_world(config)
    _check_standardised(config, selector)
    federation = config.federation
    require_known("federation.aggregator", federation.aggregator, AGGREGATORS)
    optimiser = optimiser_name(config, selector)
    require_known("federation.server_optimiser", optimiser, OPTIMISERS)
    make_optimiser(optimiser, config.server_optimiser)
    _check_gradients(config, optimiser)
    _check_trust(config, selector)
    _check_personal(config, selector, world)
    _check_pooling(config, selector)
    _check_time(config)
    _check_shards(config)
    _check_listed(config)
    if config.privacy != "none":
        _check_privacy(config, selector)
    is_host = issubclass(world, HostWorld)
    if not is_host and hasattr(world, "actions"):
        check_acting(config, world)  # worlds made with JAX must wait until that is configured
    elif not elsewhere:
        if not is_host:  # its settings decide about actions
            configure_jax(config.num_devices)
        check_acting(config, make_world(config))  # says what is missing


def check_acting(config: ExperimentConfig, world: Any) -> None:
    """Refuse a learner or an aggregator that does not fit the actions of the world."""
    config.learner.check_actions(world.actions)
    if config.federation.aggregator == "policy-mean":
        from fedpohcs.worlds.base import DiscreteActions

        tabular = isinstance(world.actions, DiscreteActions) and not config.learner.hidden_sizes
        rule = "needs a tabular policy: discrete actions and no hidden layers"
        require(tabular, "federation.aggregator", config.federation.aggregator, rule, "Use parameter-mean.")


def _check_gradients(config: ExperimentConfig, optimiser: str) -> None:
    """Refuse learners and server optimisers that need each other, and batches for which the learner has no room."""
    settings, kind, n = config.server_optimiser, config.learner.kind, config.federation.num_clients
    needed = getattr(config.learner, "needs_optimiser", None)
    rule = f"needs federation.server_optimiser {needed}, not {optimiser}"
    require(needed in (None, optimiser), "learner.kind", kind, rule)
    if optimiser != "svrpg":
        return
    fits = isinstance(config.learner, PolicyGradientConfig)
    rule = f"needs a learner that follows the gradient of whole episodes, which {kind!r} does not"
    require(fits, "federation.server_optimiser", "svrpg", rule, "Use learner.kind gpomdp.")
    most = max(settings.inner_episodes, *(settings.batch_episodes or (1,)))
    rule = f"must be at least {most}, the most episodes that server_optimiser asks for"
    episodes: int = getattr(config.learner, "episodes", most)
    require(episodes >= most, "learner.episodes", episodes, rule)
    where, rule = settings.simulated_client, f"must be below federation.num_clients (={n})"
    require(where == "mixture" or where < n, "server_optimiser.simulated_client", where, rule)


def _check_personal(config: ExperimentConfig, selector: Selector, world: Any) -> None:
    """Refuse personal weights where clients act outside JAX, and with metrics that read the shared policy."""
    kept = config.federation.personal
    if kept == "none":
        return
    traced = not issubclass(world, HostWorld)
    rule = f"needs a world in JAX, which {config.world!r} is not"
    require(traced, "federation.personal", kept, rule, "Use none.")
    name = optimiser_name(config, selector)
    rule = f"cannot be combined with server optimiser {name!r}, which steers all weights of clients"
    require(not _steers(config, selector), "federation.personal", kept, rule)
    reads = sorted(name for name in selector.requires if find_metric(name).reads != "returns")
    rule = f"cannot be combined with selector {config.selector!r}, whose {' and '.join(reads)} read the shared policy"
    require(not reads, "federation.personal", kept, rule, "Use fedavg, full or power-of-choice.")


def _check_pooling(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse pooled training of some clients, and what one learner or shared filters cannot do."""
    federation = config.federation
    if federation.pooled:
        rule = f"trains on all clients, and {config.selector} selects some"
        require(selector.everyone, "federation.pooled", True, rule, "Use the selector full.")
        rule = f"cannot be combined with server optimiser {optimiser_name(config, selector)!r}, which steers clients"
        require(not _steers(config, selector), "federation.pooled", True, rule)
    rule = f"reveals what clients see, which privacy {config.privacy!r} does not hide"
    hidden = federation.filters == "own" or config.privacy == "none"
    require(hidden, "federation.filters", federation.filters, rule, "Use own.")
    hidden = federation.newcomers == "play" or federation.evaluated_clients is None or config.privacy == "none"
    require(hidden, "federation.newcomers", federation.newcomers, rule, "Use play.")


def _check_shards(config: ExperimentConfig) -> None:
    """Refuse what needs all clients in one place where they are divided into shards, and a missing package."""
    if config.executor not in SHARDED:
        return
    apart = f"with executor {config.executor!r}, whose groups of clients know nothing of each other"
    filters, newcomers = config.federation.filters, config.federation.newcomers
    require(filters == "own", "federation.filters", filters, f"must be own {apart}", "Use vectorised.")
    alone = newcomers == "play" or config.federation.evaluated_clients is None
    require(alone, "federation.newcomers", newcomers, f"must be play {apart}")
    iterations, rule = config.federation.finetune_iterations, f"must be 0 with executor {config.executor!r}"
    require(iterations == 0, "federation.finetune_iterations", iterations, rule, "Use fedpohcs evaluate --finetune.")
    missing = config.executor == "ray" and importlib.util.find_spec("ray") is None
    require(not missing, "executor", config.executor, "needs the extra ray", REMEDY)


def _check_time(config: ExperimentConfig) -> None:
    """Refuse simulated time where the server does not decide who trains, and a trace that cannot be read."""
    model, federation = config.time.model, config.federation
    if model == "none":
        return
    rule = f"must be 'none' with privacy {config.privacy!r}: candidates that protect each other must all be there"
    require(config.privacy == "none", "time.model", model, rule)
    rule = "must be 'none' with federation.pooled, as no clients train"
    require(not federation.pooled, "time.model", model, rule)
    rule = f"needs aggregator parameter-mean: an asynchronous round has one update, {federation.aggregator} needs more"
    plain = federation.aggregator == "parameter-mean"
    require(plain or not config.time.asynchronous, "time.asynchronous", True, rule)
    make_times(config)


def _check_listed(config: ExperimentConfig) -> None:
    """Refuse populations of which all clients cannot be evaluated, or named one by one, where that is needed."""
    federation = config.federation
    needs = {
        "unless federation.evaluated_clients is set": federation.evaluated_clients is None,
        "with federation.client_weights, which name every client": federation.client_weights is not None,
        "with federation.finetune_iterations, which train every client": federation.finetune_iterations > 0,
        "with privacy, for which every client has keys": config.privacy != "none",
    }
    number = federation.num_clients + federation.held_out_clients
    for rule in (rule for rule, needed in needs.items() if needed):
        require(number <= MOST_LISTED, "federation.num_clients", number, f"must not exceed {MOST_LISTED} {rule}")


def _steers(config: ExperimentConfig, selector: Selector) -> bool:
    """Whether the server optimiser changes the local steps of clients."""
    constant = replace(config.server_optimiser, learning_rate_decay=1.0)  # a decay changes what `sends` is
    optimiser = make_optimiser(optimiser_name(config, selector), constant)
    usual = ServerOptimiser._field_defaults
    return optimiser.controls or optimiser.sends is not usual["sends"] or optimiser.start is not usual["start"]


def _check_standardised(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse metrics of the gradient of the return with a learner that does not follow standardised advantages."""
    reads = sorted(name for name in selector.requires if find_metric(name).standardised)
    fits = not reads or config.learner.standardises_advantages
    rule = f"reads {' and '.join(reads)}, which learner.kind {config.learner.kind!r} does not have"
    require(fits, "selector", config.selector, rule, "Use ppo, or another selector.")


def _check_trust(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse more Byzantine clients than the aggregator tolerates, a cap with `full`, and attacks on nothing."""
    federation, attack = config.federation, config.attack
    name, byzantine = federation.aggregator, federation.tolerated_liars
    k = federation.num_clients if selector.everyone else federation.num_selected
    least = AGGREGATORS[name].least(byzantine)
    rule = (
        f"must be at least {least} for {name} to tolerate federation.tolerated_liars (={byzantine}) Byzantine clients"
    )
    require(k >= least, "federation.num_selected", k, rule, "Select more clients, or tolerate fewer.")
    most = config.defence.max_selections
    capped = most is not None and selector.everyone
    require(not capped, "defence.max_selections", most, f"cannot hold with {config.selector}, which selects everyone")
    if attack.kind is not None:
        _check_attack(config, selector.requires)


def _check_attack(config: ExperimentConfig, requires: frozenset[str]) -> None:
    kind, tables = config.attack.kind, bool(hidden_as(requires, "table"))
    require_known("attack.kind", str(kind), ATTACKS)
    about = ATTACKS[str(kind)].about
    rule = f"is about {about}s, which no client sends with selector {config.selector} and privacy {config.privacy}"
    scores = any(find_metric(name).prefers for name in requires) or (tables and config.privacy != "none")
    scores = scores and (config.privacy == "none" or config.protection.release == "scores")
    sent = {"table": tables, "score": scores, "update": True, "episodes": True}[about]
    require(sent, "attack.kind", kind, rule)
    rule = f"is for attacks on updates or episodes: when clients send {about}s, none is selected yet"
    everyone = config.attack.clients != "one-selected"
    require(everyone or about in ("update", "episodes"), "attack.clients", config.attack.clients, rule, "Name ids.")


WEIGHT_RATIO = 1.5  # of the largest q_n to the smallest; then any cohort passes `privacy.terms.check_invitation`
PRIVACY_PACKAGES = {"masked": ("privacy", ("cryptography",)), "he": ("he", ("cryptography", "tenseal"))}


def _check_privacy(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse what the protocol cannot do, or cannot do safely."""
    extra, packages = PRIVACY_PACKAGES[config.privacy]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    remedy = f"pip install 'fedpohcs[{extra}]'"
    require(not missing, "privacy", config.privacy, f"needs the package {', '.join(missing)}", remedy)
    federation, protection, tables = config.federation, config.protection, hidden_as(selector.requires, "table")
    for name in sorted(selector.requires):
        rule = f"reads the metric {name!r}, which privacy {config.privacy!r} cannot hide"
        require(find_metric(name).hide is not None, "selector", config.selector, rule, "Use privacy none.")
    if hidden_as(selector.requires, "number"):
        bounded = protection.epsilon is None or protection.scalar_limit is not None
        rule = f"must be set with an epsilon and {config.selector}, whose numbers have no bound of their own"
        require(bounded, "protection.scalar_limit", protection.scalar_limit, rule)
    if tables:
        _check_hidden_table(config, selector, tables)
    if selector.requires and protection.release == "ids":
        _check_ids_only(config, selector)
    if not tables and (protection.release == "scores" or not selector.requires):
        return
    drawn = asks_every_candidate(selector)
    asked, name = (federation.num_candidates, "candidates") if drawn else (federation.num_selected, "selected")
    least = protection.min_cohort
    rule = f"must be at least protection.min_cohort (={least}) with privacy {config.privacy!r}"
    require(asked >= least, f"federation.num_{name}", asked, rule, "Ask more, or lower min_cohort to 3 at least.")
    weights = client_weight(federation)
    rule = f"must not differ by more than a factor of {WEIGHT_RATIO} with privacy {config.privacy!r}"
    even = weights.max() <= WEIGHT_RATIO * weights.min()
    remedy = "A mean in which one client counts for much reveals its table."
    require(even, "federation.client_weights", federation.client_weights, rule, remedy)


def _check_hidden_table(config: ExperimentConfig, selector: Selector, tables: list[str]) -> None:
    rule = f"reads {len(tables)} tables, {' and '.join(tables)}, of which privacy {config.privacy!r} can hide one"
    require(len(tables) == 1, "selector", config.selector, rule)
    if not selector.private:
        able = sorted(name for name in SELECTORS if make_selector(name).private)
        rule = f"needs the tables themselves, which privacy {config.privacy!r} keeps on the clients"
        require(False, "selector", config.selector, rule, f"Use {' or '.join(able)}.")


def _check_ids_only(config: ExperimentConfig, selector: Selector) -> None:
    """Refuse what needs scores where the server learns the ids of the chosen clients alone."""
    remedy = "To let the server learn a score of every candidate: --protection.release scores"
    alone = selector.prefers is not None and len(selector.requires) == 1 and asks_every_candidate(selector)
    rule = "needs the values of its metrics, and with protection.release 'ids' the server learns none"
    require(alone, "selector", config.selector, rule, remedy)
    most = config.defence.max_selections
    rule = "cannot hold with protection.release 'ids': candidates choose among all of them"
    require(most is None, "defence.max_selections", most, rule, remedy)
