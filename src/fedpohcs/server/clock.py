"""Simulated time: how long clients take, which of them can be asked, and which updates a round still gets.

Nothing waits. Clients train at once, and the seconds that they would have needed follow from their steps and bytes. So
rounds in simulated seconds cost no more than others, and are a function of the config.

A synchronous round closes when K updates have arrived, or at its deadline. An asynchronous round is one arrival: the
update was computed from an older policy, and its change is applied to the present one, the less the older it is.
"""

import csv
import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpohcs.core.config import ExperimentConfig, TimeConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.trees import named_arrays, take_clients
from fedpohcs.core.types import ClientIds, ClientUpdates, Params, RoundTiming, ServerState, Vector
from fedpohcs.server.parts import from_parts, parts_of, weight_parts
from fedpohcs.server.selection import Question

TRACE_COLUMNS = ("client", "steps_per_second", "bytes_per_second", "from_second", "until_second")


class Trace(NamedTuple):
    """Intervals in which clients can be asked, and how fast they are in each."""

    client: ClientIds
    steps_per_second: Vector
    bytes_per_second: Vector
    start: Vector
    end: Vector

    @property
    def period(self) -> float:
        """Seconds after which the trace repeats."""
        return float(self.end.max())


class ClientTimes(NamedTuple):
    """The model of time of a run."""

    settings: TimeConfig
    seed: int
    speed: Vector  # [N] steps per second; a trace has its own
    usual_steps: int  # that a client is expected to train on
    trace: Trace | None = None


class Conditions(NamedTuple):
    """The clients as a round finds them."""

    settings: TimeConfig
    wanted: int  # K, the updates for which the round waits
    speed: Vector  # [N] steps per second; NaN for a client that cannot be asked
    rate: Vector  # [N] bytes per second
    weight_bytes: int  # of the policy, which goes both ways
    unavailable: ClientIds  # of those that were sampled

    def seconds(self, clients: ClientIds, steps: Any, sent_bytes: Any) -> Vector:
        """Seconds to train on so many steps and to exchange so many bytes."""
        return np.asarray(steps / self.speed[clients] + sent_bytes / self.rate[clients], float)


class UnderWay(NamedTuple):
    """An update that has not arrived."""

    client: int
    round: int  # in which it began
    finish: float  # simulated second at which it arrives
    base: Params  # the policy from which it was computed
    params: Params
    steps: int


class Arrival(NamedTuple):
    """The updates that count in a round, and the state of time after it."""

    updates: ClientUpdates  # a row per selected client, late ones without steps; or the one that arrived
    late: ClientIds
    clock: float
    under_way: tuple[UnderWay, ...] = ()
    timing: RoundTiming | None = None
    rebased: bool = False  # the updates are not those of the clients that were selected in this round

    @property
    def delay(self) -> int:
        """Rounds since the update that arrived in an asynchronous round began; else 0."""
        return int(self.timing.delay.max(initial=0)) if self.timing is not None else 0


def make_times(config: ExperimentConfig) -> ClientTimes | None:
    """The model of time of a config; None: no time is simulated."""
    settings, n = config.time, config.federation.num_clients
    if settings.model == "none":
        return None
    speed = np.full(n, settings.steps_per_second)
    if settings.model == "log-normal":
        drawn = host_generator(config.seed, Purpose.SPEED).standard_normal(n)
        speed = speed * np.exp(settings.spread * drawn)
    usual = config.learner.local_iterations * config.learner.steps_per_iteration
    trace = read_trace(Path(settings.trace), n) if settings.trace is not None else None
    return ClientTimes(settings, config.seed, speed, usual, trace)


def read_trace(path: Path, num_clients: int) -> Trace:
    """The intervals of a file; refused if a client has none, or a number makes no sense."""
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        columns = [np.array([float(row[name]) for row in rows]) for name in TRACE_COLUMNS]
    except OSError as error:
        raise UserError(f"time.trace (={str(path)!r}) cannot be read: {error.strerror}.") from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        names = ", ".join(TRACE_COLUMNS)
        raise UserError(
            f"time.trace (={str(path)!r}) must be a CSV file of numbers with the columns {names}."
        ) from error
    client, speed, rate, start, end = columns
    positive = (speed > 0) & (rate > 0) & (start >= 0) & (end > start)
    sound = bool(np.isfinite(np.stack(columns)).all() and positive.all())
    rule = "must have finite numbers: speeds and rates above 0, seconds from 0 on, until after from"
    require(len(rows) > 0 and sound, "time.trace", str(path), rule)
    missing = np.setdiff1d(np.arange(num_clients), client)
    rule = (
        f"must have a row for each of the {num_clients} clients; client {missing[0] if len(missing) else ''} has none"
    )
    require(not len(missing), "time.trace", str(path), rule)
    return Trace(client.astype(np.int64), speed, rate, start, end)


def conditions_at(times: ClientTimes, clock: float, round_number: int) -> tuple[Vector, Vector]:
    """Speed and rate of every client, [N] each; NaN for a client that cannot be asked."""
    settings, n = times.settings, len(times.speed)
    if times.trace is None:
        draws = host_generator(times.seed, Purpose.AVAILABILITY, round_number).random(n)
        rate = math.inf if settings.bytes_per_second is None else settings.bytes_per_second
        return np.where(draws < settings.availability, times.speed, np.nan), np.full(n, rate)
    speed, rate, trace = np.full(n, np.nan), np.full(n, np.nan), times.trace
    place = clock % trace.period
    open_now = (trace.start <= place) & (place < trace.end) & (trace.client < n) & (trace.client >= 0)
    speed[trace.client[open_now]] = trace.steps_per_second[open_now]
    rate[trace.client[open_now]] = trace.bytes_per_second[open_now]
    return speed, rate


def admitted(question: Question, state: ServerState, times: ClientTimes | None) -> tuple[Question, Conditions | None]:
    """The question among clients that can be asked, and how many the server selects."""
    if times is None:
        return question, None
    settings, wanted = times.settings, question.num_selected
    speed, rate = conditions_at(times, state.clock, state.round)
    busy = np.array([task.client for task in state.under_way], np.int64)
    absent = question.candidates[np.isnan(speed[question.candidates])]
    size = sum(array.nbytes for array in named_arrays(state.params).values())
    conditions = Conditions(settings, wanted, speed, rate, size, absent)
    selected = wanted - len(busy) if settings.asynchronous else math.ceil(settings.over_selection * wanted)
    expected = conditions.seconds(np.arange(len(speed)), times.usual_steps, 2 * size)
    free = np.setdiff1d(question.candidates, np.union1d(absent, busy))
    question = question._replace(num_selected=selected, seconds=expected)
    return question.among(free if selected > 0 else free[:0]), conditions


def arrivals(
    state: ServerState, updates: ClientUpdates, asked: dict[int, int], conditions: Conditions | None
) -> Arrival:
    """The updates that the round gets, and when it ends.

    Args:
        state: before the round.
        updates: of the clients that were selected in it.
        asked: bytes that each client uploaded in phase one, for which the server waits.
        conditions: of the clients; None: no time is simulated, and all updates arrive.
    """
    if conditions is None:
        return Arrival(updates, updates.client[:0], state.clock)
    start = state.clock + _measuring_seconds(asked, conditions)
    seconds = conditions.seconds(updates.client, updates.steps, 2 * conditions.weight_bytes)
    seconds = np.where(updates.steps > 0, seconds, np.inf)  # a client that could not train never replies
    if conditions.settings.asynchronous:
        return _next_arrival(state, updates, start, seconds, conditions)
    return _in_time(updates, start, seconds, conditions)


def _measuring_seconds(asked: dict[int, int], conditions: Conditions) -> float:
    """Until the slowest client that was asked has received the policy and sent its measurements."""
    if not asked:
        return 0.0
    clients, sent = np.array(list(asked), np.int64), np.array(list(asked.values()), float)
    seconds = conditions.seconds(clients, 0, sent + conditions.weight_bytes)
    return float(seconds[np.isfinite(seconds)].max(initial=0.0))


def _in_time(updates: ClientUpdates, start: float, seconds: Vector, conditions: Conditions) -> Arrival:
    """The first K updates before the deadline; the round ends with the last of them, or at the deadline."""
    settings = conditions.settings
    deadline = math.inf if settings.deadline is None else settings.deadline
    first = np.lexsort((updates.client, seconds))[: conditions.wanted]
    counts = np.zeros(len(seconds), bool)
    counts[first] = seconds[first] <= deadline
    counts &= np.isfinite(seconds)
    complete = counts.sum() == min(conditions.wanted, len(seconds))
    if counts.any() and (complete or math.isinf(deadline)):
        length = float(seconds[counts].max())
    else:
        length = settings.retry_seconds if math.isinf(deadline) else deadline
    late = updates.client[~counts & np.isfinite(seconds)]
    timing = RoundTiming(start + length, seconds, late, conditions.unavailable)
    kept = updates if not len(late) else updates._replace(steps=np.where(counts, updates.steps, 0))
    return Arrival(kept, late, start + length, timing=timing)


def _next_arrival(
    state: ServerState, updates: ClientUpdates, start: float, seconds: Vector, conditions: Conditions
) -> Arrival:
    """The update that arrives next, of those that were under way and those that begin now."""
    settings, nobody = conditions.settings, updates.client[:0]
    tasks = [*state.under_way, *_begun(state, updates, start + seconds)]
    if not tasks:
        clock = start + settings.retry_seconds
        timing = RoundTiming(clock, seconds, unavailable=conditions.unavailable)
        return Arrival(_rows(updates, nobody), nobody, clock, (), timing, rebased=True)
    task = min(tasks, key=lambda one: (one.finish, one.round, one.client))
    waiting, delay = tuple(one for one in tasks if one is not task), state.round - task.round
    params = rebased(task, state.params, delay, settings.delay_exponent)
    arrived, clock = np.array([task.client]), max(start, task.finish)
    timing = RoundTiming(clock, seconds, nobody, conditions.unavailable, arrived, np.array([delay]))
    return Arrival(_one_update(task, params), nobody, clock, waiting, timing, rebased=True)


def _begun(state: ServerState, updates: ClientUpdates, finish: Vector) -> list[UnderWay]:
    """The updates that begin in this round; a client that could not train sends none."""
    rows = [row for row in range(len(finish)) if np.isfinite(finish[row])]
    return [
        UnderWay(
            int(updates.client[row]),
            state.round,
            float(finish[row]),
            state.params,
            take_clients(updates.params, row),
            int(updates.steps[row]),
        )
        for row in rows
    ]


def rebased(task: UnderWay, current: Params, delay: int, exponent: float) -> Params:
    """The present policy with the change of an update, scaled by (1 + delay)^-exponent.

    An update without delay is taken as it is. Controls, such as the KL coefficient, are not scaled.
    """
    if delay == 0:
        return task.params
    import jax

    factor, parts = (1.0 + delay) ** -exponent, parts_of(task.params)

    def moved(now: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        change = np.asarray(new, np.float64) - np.asarray(old, np.float64)
        return (np.asarray(now, np.float64) + factor * change).astype(np.asarray(now).dtype)

    present, base = parts_of(current), parts_of(task.base)
    changed = {name: jax.tree.map(moved, present[name], parts[name], base[name]) for name in weight_parts(task.params)}
    return from_parts({**parts, **changed}, task.params)


def _one_update(task: UnderWay, params: Params) -> ClientUpdates:
    import jax

    stacked = jax.tree.map(lambda x: np.asarray(x)[None], params)
    return ClientUpdates(np.array([task.client]), stacked, np.array([task.steps], np.int64))


def _rows(updates: ClientUpdates, clients: ClientIds) -> ClientUpdates:
    """The updates without any rows."""
    return ClientUpdates(clients, take_clients(updates.params, slice(0, 0)), updates.steps[:0])
