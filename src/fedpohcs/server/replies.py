"""Checks of replies. Every reply is checked here before it reaches the policy or a record.

Every rule is an `ArrayRule`; the rules of a metric are part of the metric. An array from a network is decoded only if
its description fits (`checked_arrays`). For all executors, the rows of all clients then pass `sound_metrics`,
`sound_updates` and `sound_evaluation` in the round. A reply that breaks a rule is left out and becomes a `BadReply`.
"""

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.array_rules import (
    BOUNDED,
    COUNT,
    NUMBER,
    ArrayRule,
    BadReplyError,
    check_array,
    check_names,
    fits,
    violations,
)
from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import BadReply, CandidateMetrics, ClientIds, ClientUpdates, Evaluation, Params
from fedpohcs.metrics.packing import check_value, misfits

LARGEST_REPLY = 256 * 2**20  # bytes of all arrays of a reply


class RawArray(NamedTuple):
    """An array as it arrived: its description and bytes, not decoded yet."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Stamp(NamedTuple):
    """Identifies the request of a reply. A reply with another stamp is late or a copy."""

    client: int
    phase: str
    round: int
    attempt: int


def expected_like(template: Mapping[str, np.ndarray]) -> dict[str, ArrayRule]:
    """Rules for arrays of the same names, shapes and types."""
    return {name: ArrayRule(array.dtype, array.shape) for name, array in template.items()}


def check_stamp(found: Stamp, asked: Stamp) -> None:
    """Refuse a reply to another request."""
    if found != asked:
        raise BadReplyError("stamp", f"answers {tuple(found)}, but {tuple(asked)} was asked")


def checked_arrays(
    received: Mapping[str, RawArray], expected: Mapping[str, ArrayRule], largest: int = LARGEST_REPLY
) -> dict[str, np.ndarray]:
    """The decoded arrays of a valid reply, or `BadReplyError`. No memory is allocated for invalid arrays."""
    check_names(received, expected)
    size = sum(len(one.data) for one in received.values())
    if size > largest:
        raise BadReplyError("size", f"holds {size} bytes, more than {largest}")
    return {name: _checked(name, one, expected[name]) for name, one in received.items()}


def _checked(name: str, one: RawArray, rule: ArrayRule) -> np.ndarray:
    dtype = np.dtype(rule.dtype)
    if one.dtype != dtype.str:
        raise BadReplyError("type", f"is of type {one.dtype!r}, not {dtype.str!r}", name)
    if not fits(one.shape, rule.shape):
        raise BadReplyError("shape", f"has the shape {tuple(one.shape)}, not {rule.shape}", name)
    if math.prod(one.shape) * dtype.itemsize != len(one.data):
        raise BadReplyError("bytes", f"claims the shape {tuple(one.shape)} for {len(one.data)} bytes", name)
    array = np.frombuffer(one.data, dtype).reshape(one.shape).copy()
    check_array(name, array, rule)
    return array


def sound_metrics(
    metrics: CandidateMetrics, asked: ClientIds, config: ExperimentConfig, params: Params
) -> CandidateMetrics:
    """The measurements of the clients that were asked, without invalid replies.

    Args:
        metrics: as the executor gives them.
        asked: the clients that were asked to measure.
        config: of the experiment; the rules of a metric may depend on it.
        params: the policy of the measurement; rules may depend on its shapes.
    """
    found = _bad_rows("measure", metrics.client, asked, {}, {})
    for row, error in _bad_values(metrics, config, params):
        found.setdefault(row, _bad_reply("measure", metrics.client[row], error))
    for row, error in _misfits(metrics, found):
        found.setdefault(row, _bad_reply("measure", metrics.client[row], error))
    if not found:
        return metrics
    kept = np.setdiff1d(np.arange(len(metrics.client)), list(found))
    return metrics.take(kept)._replace(bad=(*metrics.bad, *found.values()))


def _bad_values(
    metrics: CandidateMetrics, config: ExperimentConfig, params: Params
) -> Iterator[tuple[int, BadReplyError]]:
    """The rows whose value breaks a rule of the metric."""
    rows = range(len(metrics.client))
    for name, column in metrics.columns.items():
        if len(column) != len(rows):
            error = BadReplyError("shape", f"has {len(column)} rows for {len(rows)} clients", name)
            yield from ((row, error) for row in rows)
            continue
        for row in rows:
            try:
                if metrics.private:
                    _check_score(name, column[row])
                else:
                    check_value(name, column[row], config, params)
            except BadReplyError as error:
                yield row, error


def _misfits(metrics: CandidateMetrics, bad: Container[int]) -> Iterator[tuple[int, BadReplyError]]:
    """The rows whose value does not fit those of most others, among the rows that are not bad already."""
    rows = [row for row in range(len(metrics.client)) if row not in bad]
    if metrics.private or not rows:
        return
    for name, column in metrics.columns.items():
        yield from ((rows[place], error) for place, error in misfits(name, [column[row] for row in rows]))


def _check_score(name: str, score: Any) -> None:
    """Check private scores, which are single numbers. NaN is valid: the client sent no score."""
    if not np.isnan(score):
        check_array(name, np.asarray(score), BOUNDED)


def sound_updates(updates: ClientUpdates, asked: ClientIds, previous: Params, most_steps: int) -> ClientUpdates:
    """One row per client that was asked. A client without a valid update gets the previous policy and 0 steps.

    Args:
        updates: as the executor gives them.
        asked: the clients that were asked to train, in this order.
        previous: parameters that the training began with; updates must look like them.
        most_steps: largest possible number of environment steps of an update.
    """
    template, rows = named_arrays(previous), named_arrays(updates.params)
    expected = {**expected_like(template), "steps": ArrayRule(COUNT, low=0, high=most_steps)}
    expected |= {f"info/{name}": ArrayRule(NUMBER, finite=False) for name in updates.info}
    rows |= {"steps": updates.steps, **{f"info/{name}": row for name, row in updates.info.items()}}
    found = _bad_rows("train", updates.client, asked, rows, expected)
    if not found and np.array_equal(updates.client, asked):
        return updates
    sound = {int(client): row for row, client in enumerate(updates.client) if row not in found}
    place = np.array([position for position, client in enumerate(asked.tolist()) if client in sound], int)
    source = np.array([sound[client] for client in asked[place].tolist()], int)

    def completed(name: str, missing: np.ndarray) -> np.ndarray:
        whole = np.repeat(np.asarray(missing)[None], len(asked), axis=0)
        if len(place):
            whole[place] = rows[name][source]
        return whole

    import jax  # late, because the command line reads this module's names

    leaves = [completed(name, array) for name, array in template.items()]
    return ClientUpdates(
        asked,
        jax.tree.unflatten(jax.tree.structure(previous), leaves),
        completed("steps", np.zeros((), COUNT)),
        {name: completed(f"info/{name}", np.array(np.nan)) for name in updates.info},
        (*updates.bad, *found.values()),
    )


def sound_evaluation(evaluation: Evaluation, asked: ClientIds, most_steps: int) -> Evaluation:
    """The evaluation of the clients that were asked, without invalid replies."""
    rows = {"mean_return": evaluation.mean_return, "steps": evaluation.steps}
    rows |= {f"info/{name}": row for name, row in evaluation.info.items()}
    expected = {"mean_return": BOUNDED, "steps": ArrayRule(COUNT, low=1, high=most_steps)}
    expected |= {f"info/{name}": ArrayRule(NUMBER, finite=False) for name in evaluation.info}
    found = _bad_rows("evaluate", evaluation.client, asked, rows, expected)
    if not found:
        return evaluation
    kept = np.setdiff1d(np.arange(len(evaluation.client)), list(found))
    return Evaluation(
        evaluation.client[kept],
        evaluation.mean_return[kept],
        evaluation.steps[kept],
        {name: row[kept] for name, row in evaluation.info.items()},
        (*evaluation.bad, *found.values()),
    )


def _bad_rows(
    phase: str, clients: ClientIds, asked: ClientIds, rows: Mapping[str, np.ndarray], expected: Mapping[str, ArrayRule]
) -> dict[int, BadReply]:
    """The first rule that each row breaks, by row; valid rows are left out."""
    found: dict[int, BadReply] = {}

    def blame(rows: NDArray[np.bool_], error: BadReplyError) -> None:
        for row in np.flatnonzero(rows).tolist():
            found.setdefault(row, _bad_reply(phase, clients[row], error))

    if not np.array_equal(clients, asked):  # those that were asked are distinct
        _, first = np.unique(clients, return_index=True)
        blame(~np.isin(clients, asked), BadReplyError("unasked", "was not asked for"))
        blame(~np.isin(np.arange(len(clients)), first), BadReplyError("twice", "came twice"))
    everybody = np.ones(len(clients), bool)
    try:
        check_names(rows, expected)
    except BadReplyError as error:
        blame(everybody, error)
        return found
    for name, rule in expected.items():
        if len(rows[name]) != len(clients):
            blame(everybody, BadReplyError("shape", f"has {len(rows[name])} rows for {len(clients)} clients", name))
            continue
        for violation in violations(rows[name], rule):
            blame(violation.rows, BadReplyError(violation.rule, violation.text, name))
    return found


def _bad_reply(phase: str, client: Any, error: BadReplyError) -> BadReply:
    return BadReply(int(client), phase, error.rule, error.array, str(error))
