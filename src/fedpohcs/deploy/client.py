"""One client behind a network: the same code as in a simulation, asked for a single client, its state kept on disk.

A message may find a new process, be sent twice, or be sent again by a server that went back to a checkpoint. So every
state is stored under the moment it belongs to, and a message starts from the newest state before its own moment:
answering the same question twice gives the same answer.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import require
from fedpohcs.core.files import make_private_folder, replace_file
from fedpohcs.core.trees import named_arrays, take_clients
from fedpohcs.core.types import NO_EXTRA, CandidateMetrics, ClientUpdates, Extra, Params, WeightedAdvantage
from fedpohcs.deploy.codec import measured_name
from fedpohcs.deploy.device import keep_policy, own_statistics, run_folder
from fedpohcs.deploy.member import Member
from fedpohcs.deploy.protocol import EVALUATE, MEASURE, SIMULATE, TRAIN, Request
from fedpohcs.execution import make_executor
from fedpohcs.execution.clients import LocalExecutor, Snapshot, plays_in_use
from fedpohcs.execution.private import policy_digest, sealed_metric
from fedpohcs.metrics.packing import pack
from fedpohcs.runs.checkpoints import Checkpoint, DamagedError, from_bytes, to_bytes

MOMENTS_PER_ROUND = 3
ORDER = {EVALUATE: 0, MEASURE: 1, TRAIN: 2, SIMULATE: MOMENTS_PER_ROUND}
"""Order of the tasks of a client within a round: the policy is evaluated, measured, and trained.

Simulations come after that. They store nothing, so they need no moment of their own before the next evaluation.
"""

log = logging.getLogger("fedpohcs")


def moment(phase: str, round_number: int) -> int:
    """Logical time of a task, the same on every client and on the server."""
    return MOMENTS_PER_ROUND * round_number + ORDER[phase]


class Memory:
    """The stored states of one client in one run. Each is a file that is written completely or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, now: int) -> Checkpoint | None:
        """The newest sound state that is older than `now`."""
        for path in sorted(self.folder.glob("*.state"), reverse=True):
            if int(path.stem) < now:
                try:
                    return from_bytes(path.read_bytes())
                except (DamagedError, OSError) as error:
                    log.warning("%s %s; the state before it is used", path, error)
        return None

    def store(self, now: int, state: Snapshot, oldest: int) -> None:
        """Store a state and delete states that are no longer needed: all before `oldest` except the newest of them."""
        make_private_folder(self.folder)  # recorded episodes tell what the client has seen
        replace_file(self.folder / f"{now:012d}.state", to_bytes(Checkpoint(now, {}, state)), mode=0o600)
        for path in sorted(path for path in self.folder.glob("*.state") if int(path.stem) <= oldest)[:-1]:
            path.unlink(missing_ok=True)


class RemoteClient:
    """Answers the server for one client. With a `member` it sends private messages in place of tables and numbers."""

    def __init__(
        self, config: ExperimentConfig, client: int, states: Path, *, record: bool, member: Member | None = None
    ) -> None:
        n = config.federation.num_clients
        require(0 <= client < n, "client-id", client, f"must be at least 0 and below num_clients (={n})")
        # A single client needs a single group.
        self.config = replace(config, executor="one-by-one", groups=1)
        self.client = client
        self.states = states
        self.record = record
        self.member = member

    def answer(
        self, request: Request, read: Callable[[Params], Params], extra: Extra = NO_EXTRA
    ) -> dict[str, np.ndarray]:
        """Do the requested task and store the new state; a simulation changes none.

        Args:
            request: the task.
            read: the parameters that came with it, given others of the same shapes and types.
            extra: arrays by name that came with them.
        """
        folder = run_folder(self.states, request.run, self.client)
        memory, now = Memory(folder), moment(request.phase, request.round)
        found = memory.before(now)
        snapshot: Snapshot | None = found.state if found else None
        recalls = bool(request.measures)
        if snapshot is not None and not recalls:  # old episodes are replayed only if a metric reads them
            executor = self._executor(snapshot._replace(plays=[]))
        else:
            executor = self._executor(snapshot)
        with closing(executor):
            params = read(executor.initial_params())
            if request.phase == MEASURE and self._missed_evaluation(request, found):
                executor.evaluate(params, request.round, self._me)
            arrays = self._do(executor, request, params, extra)
            if request.phase == SIMULATE:
                return arrays
            state = executor.snapshot()
            if request.phase == EVALUATE:
                arrays |= self._keep(folder, executor, request, params)
        if snapshot is not None and not recalls:
            plays = plays_in_use([*snapshot.plays, *state.plays], self.config.modelling.history_rounds)
            state = state._replace(plays=plays)
        if request.phase == EVALUATE and recalls:
            now = moment(MEASURE, request.round)
        memory.store(now, state, moment(EVALUATE, request.oldest_round))
        return arrays

    @property
    def _me(self) -> np.ndarray:
        return np.array([self.client])

    def _executor(self, snapshot: Snapshot | None) -> LocalExecutor:
        return make_executor(self.config, record=self.record, snapshot=snapshot, members=self._me)

    def _missed_evaluation(self, request: Request, found: Checkpoint | None) -> bool:
        """Whether this client missed the evaluation of the policy to be measured, and must play it now."""
        due = request.round % self.config.federation.evaluation_every == 0
        return due and (found is None or found.round < moment(EVALUATE, request.round))

    def _do(self, executor: LocalExecutor, request: Request, params: Params, extra: Extra) -> dict[str, np.ndarray]:
        number, me = request.round, self._me
        if request.phase == TRAIN:
            return _update(executor.train(params, number, me, extra))
        if request.phase == SIMULATE:
            return _update(executor.simulate(params, number, me, extra, request.draw))
        arrays: dict[str, Any] = {}
        if request.phase == EVALUATE:
            result = executor.evaluate(params, number, me)
            require(len(result.client) == 1, "client", self.client, "could not play its environment")
            arrays = {"mean_return": result.mean_return[0], "steps": result.steps[0], **_info(result.info)}
        if request.measures:
            arrays |= self._measured(executor, request, params)
        return arrays

    def _keep(self, folder: Path, executor: LocalExecutor, request: Request, params: Params) -> dict[str, np.ndarray]:
        """Keep the policy with this client's filter, and return the filter if the server may see it."""
        learner = executor.learner
        filtered = self.config.learner.filter_observations
        own = own_statistics(learner.stored_filters(executor.filters_of(self._me))) if filtered else {}
        keep_policy(folder, self.config, request.round, {**learner.arrays(params), **own})
        return own if self.member is None else {}

    def _measured(self, executor: LocalExecutor, request: Request, params: Params) -> dict[str, Any]:
        metrics = executor.measure(params, request.round, self._me, request.measures)
        if self.member is not None:
            arrays = _hidden(metrics, self.member, policy_digest(params), request)
        else:
            arrays = {k: x for name, column in metrics.columns.items() for k, x in pack(name, column[0]).items()}
        return {measured_name(name): array for name, array in arrays.items()}


def _hidden(metrics: CandidateMetrics, member: Member, policy: bytes, request: Request) -> dict[str, Any]:
    """Under the name of its metric, the reply to the invitation, or a rounded number where scores are released."""
    values = {name: column[0] for name, column in metrics.columns.items()}
    secret, sent = sealed_metric(values.keys(), member.party.parameters.ids_only), {}
    if secret is not None:
        value = values[secret]
        sent[secret] = member.answer(
            request.message, policy, value if isinstance(value, WeightedAdvantage) else float(value)
        )
    for name in sorted(values.keys() - sent.keys()):
        sent[name] = member.number(request.round, policy, name, float(values[name]))
    return {name: np.frombuffer(data, np.uint8) for name, data in sent.items()}


def _update(updates: ClientUpdates) -> dict[str, Any]:
    """The arrays of the only update."""
    params = named_arrays(take_clients(updates.params, 0))
    named = {f"params/{name}": array for name, array in params.items()}
    return {**named, "steps": updates.steps[0], **_info(updates.info)}


def _info(info: Mapping[str, Any]) -> dict[str, Any]:
    return {f"info/{name}": values[0] for name, values in info.items()}
