"""One federated round, written once. Paper: Alg. 3 (FedPOHCS); every selector and executor runs it."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fedpohcs.core.config import DefenceConfig, FederationConfig
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.types import (
    NOT_EVALUATED,
    CandidateMetrics,
    ClientIds,
    ClientUpdates,
    Evaluation,
    Extra,
    Params,
    RoundRecord,
    ServerState,
    Vector,
)
from fedpohcs.metrics.packing import num_bytes
from fedpohcs.server.aggregation import aggregate
from fedpohcs.server.candidates import client_weight, draw_candidates, draw_evaluated
from fedpohcs.server.clock import ClientTimes, admitted, arrivals
from fedpohcs.server.defences import defended, remember
from fedpohcs.server.optimisers import IDENTITY, ServerOptimiser, optimise
from fedpohcs.server.optimisers.base import Simulate
from fedpohcs.server.optimisers.checks import arrays_to_send, start_of
from fedpohcs.server.protocols import Executor
from fedpohcs.server.replies import sound_evaluation, sound_metrics, sound_updates
from fedpohcs.server.selection import Question, Selection, Selector
from fedpohcs.server.selection.checks import ask_clients, choose_clients

log = logging.getLogger("fedpohcs")
UNDEFENDED = DefenceConfig()


def run_round(
    state: ServerState,
    executor: Executor,
    selector: Selector,
    federation: FederationConfig,
    seed: int,
    defence: DefenceConfig = UNDEFENDED,
    optimiser: ServerOptimiser = IDENTITY,
    times: ClientTimes | None = None,
) -> tuple[ServerState, RoundRecord]:
    """Sample candidates, measure, select, train, aggregate, optimise, and evaluate all clients."""
    clock = PhaseClock()
    question, capped = defended(ask_question(state.round, selector, federation, seed), state.recent, defence)
    question, conditions = admitted(question, state, times)
    with clock.phase("measure"):
        asked = ask_clients(selector, question, state.selector_state)
        metrics = CandidateMetrics(asked)
        if len(asked):
            metrics = executor.measure(state.params, state.round, asked, selector.requires)
            metrics = sound_metrics(metrics, asked, executor.config, state.params)
        question = without_silent(question, asked, metrics)
    with clock.phase("select"):
        if len(question.candidates):
            selection, selector_state = choose_clients(selector, question, metrics, state.selector_state)
        else:
            selection, selector_state = Selection(question.candidates), state.selector_state
    with clock.phase("train"):
        extra = arrays_to_send(optimiser, state.optimiser, host_generator(seed, Purpose.SERVER, state.round))
        start = start_of(optimiser, state.optimiser, state.params)
        updates = executor.train(start, state.round, selection.client, extra)
        updates = sound_updates(updates, selection.client, start, executor.most_steps.train)
        arrival = arrivals(state._replace(params=start), updates, upload_bytes(metrics), conditions)
        if selector.observe is not None:
            selector_state = selector.observe(selector_state, arrival.updates, start)
    with clock.phase("aggregate"):
        drawn = Selection(arrival.updates.client) if arrival.rebased else selection
        weight = update_weight(arrival.updates, question.weight, federation, drawn)
        aggregation = aggregate(start, arrival.updates, weight, federation, drawn.total, extra)
        returns = np.full(executor.num_clients, np.nan) if state.returns is None else state.returns
        generator, simulate = host_generator(seed, Purpose.SERVER, state.round, 1), simulation(executor, state.round)
        params, optimiser_state = optimise(
            optimiser, state.optimiser, state.params, aggregation, returns, extra, generator, simulate, arrival.delay
        )
    with clock.phase("evaluate"):
        recent = remember(state.recent, selection.client, defence)
        due = (state.round + 1) % federation.evaluation_every == 0
        if due and selector.requires:
            upcoming, _ = defended(ask_question(state.round + 1, selector, federation, seed), recent, defence)
            executor.expect(ask_clients(selector, upcoming, selector_state), selector.requires)
        evaluation = evaluate_clients(executor, federation, seed, params, state.round + 1) if due else NOT_EVALUATED
        held_out = evaluate_held_out(executor, federation, params, state.round + 1) if due else NOT_EVALUATED
    record = RoundRecord(
        round=state.round + 1,
        candidates=question.candidates,
        selection=selection,
        updates_info={**updates.info, **aggregation.info, **draw_info(selection)},
        train_steps=updates.steps,
        rejected=np.setdiff1d(aggregation.rejected, arrival.late),
        evaluation=evaluation,
        seconds=clock.seconds,
        upload_bytes=upload_bytes(metrics),
        asked_costs={name: cost for name, cost in metrics.costs.items() if name != "upload_bytes"},
        capped=capped,
        bad_replies=(*metrics.bad, *updates.bad, *evaluation.bad, *held_out.bad),
        held_out=held_out,
        timing=arrival.timing,
    )
    name_bad_replies(record)
    returns = latest_returns(returns, evaluation)
    after = ServerState(state.round + 1, params, selector_state, recent, optimiser_state, returns)
    return after._replace(clock=arrival.clock, under_way=arrival.under_way), record


def evaluate_start(
    state: ServerState, executor: Executor, selector: Selector, federation: FederationConfig, seed: int
) -> RoundRecord:
    """Round 0: evaluate the untrained policy. The first round measures clients by these episodes."""
    clock = PhaseClock()
    with clock.phase("evaluate"):
        upcoming = ask_question(state.round, selector, federation, seed)
        executor.expect(ask_clients(selector, upcoming, state.selector_state), selector.requires)
        evaluation = evaluate_clients(executor, federation, seed, state.params, 0)
        held_out = evaluate_held_out(executor, federation, state.params, 0)
    nobody: ClientIds = np.arange(0)
    record = RoundRecord(0, nobody, Selection(nobody), {}, nobody, nobody, evaluation, clock.seconds)
    record = record._replace(bad_replies=(*evaluation.bad, *held_out.bad), held_out=held_out)
    name_bad_replies(record)
    return record


def simulation(executor: Executor, round_number: int) -> Simulate:
    """Training in the worlds of clients that a server optimiser may do itself in this round."""

    def simulate(params: Params, clients: ClientIds, extra: Extra, attempt: int) -> ClientUpdates:
        updates = executor.simulate(params, round_number, clients, extra, attempt)
        return sound_updates(updates, clients, params, executor.most_steps.train)

    return simulate


def evaluate_clients(
    executor: Executor, federation: FederationConfig, seed: int, params: Params, round_number: int
) -> Evaluation:
    """The return of the policy for all clients, or a sample of them, whose reply is sound."""
    asked = draw_evaluated(federation, seed, round_number)
    return sound_evaluation(executor.evaluate(params, round_number, asked), asked, executor.most_steps.evaluation)


def latest_returns(known: Vector, evaluation: Evaluation) -> Vector:
    """The return of every client in its latest evaluation, [N]; NaN for a client that was never evaluated."""
    returns = known.copy()
    returns[evaluation.client] = evaluation.mean_return
    return returns


def evaluate_held_out(
    executor: Executor, federation: FederationConfig, params: Params, round_number: int
) -> Evaluation:
    """Evaluate held-out clients in a separate call, so that no other result depends on them."""
    if not federation.held_out_clients:
        return NOT_EVALUATED
    clients = federation.num_clients + np.arange(federation.held_out_clients)
    return sound_evaluation(executor.evaluate(params, round_number, clients), clients, executor.most_steps.evaluation)


def name_bad_replies(record: RoundRecord) -> None:
    """Log the clients whose replies broke a rule."""
    for bad in record.bad_replies:
        log.warning("client %d, round %d: its answer to %s %s", bad.client, record.round, bad.phase, bad.text)


def ask_question(round_number: int, selector: Selector, federation: FederationConfig, seed: int) -> Question:
    """Sample the candidates of a round. They depend on the seed only, so every selector gets the same candidates."""
    n = federation.num_clients
    d, k = (n, n) if selector.everyone else (federation.num_candidates, federation.num_selected)
    candidates = draw_candidates(n, d, seed, round_number)
    generator = host_generator(seed, Purpose.SELECTION, round_number)
    return Question(candidates, k, n, client_weight(federation), generator, federation.compared_pairs)


def without_silent(question: Question, asked: ClientIds, metrics: CandidateMetrics) -> Question:
    """The question without candidates that were asked and did not reply."""
    if not len(asked):
        return question
    silent = np.setdiff1d(asked, metrics.client)
    return question.among(np.setdiff1d(question.candidates, silent)) if len(silent) else question


def update_weight(
    updates: ClientUpdates, weight: Vector, federation: FederationConfig, selection: Selection | None = None
) -> Vector:
    """Weight of each update, not normalised; 0 for an update without steps.

    A weight of the selection comes first. With a probability p_n of the selection it is q_n / p_n, so that the mean
    over many draws is that of all candidates (Horvitz and Thompson, 1952); aggregation divides by the sum, or by the
    total of the selection. Otherwise the config decides: by steps, or by q_n.
    """
    if selection is not None and selection.weight is not None:
        counted = selection.weight
    elif selection is not None and selection.probability is not None:
        counted = weight[updates.client] / selection.probability
    elif federation.update_weights == "steps":
        counted = updates.steps.astype(float)
    else:
        counted = weight[updates.client]
    return np.where(updates.steps > 0, counted, 0.0)


def draw_info(selection: Selection) -> dict[str, Vector]:
    """Probabilities and weights that the selector returned, to be logged with the updates."""
    given = {"probability": selection.probability, "weight": selection.weight}
    return {name: values for name, values in given.items() if values is not None}


def upload_bytes(metrics: CandidateMetrics) -> dict[int, int]:
    """Bytes that each client sent in phase one: as counted by the executor, or the size of the measured arrays."""
    clients = metrics.client.tolist()
    if "upload_bytes" in metrics.costs:
        return dict(zip(clients, metrics.costs["upload_bytes"].astype(int).tolist(), strict=True))
    columns = metrics.columns.items()
    return {client: sum(num_bytes(name, column[row]) for name, column in columns) for row, client in enumerate(clients)}


class PhaseClock:
    """Seconds spent in each phase of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
