"""What a client sends is checked here, and nowhere else, before it touches the policy or a record.

Every rule is an `Expected`. Over a network an array is described by its sender and made only when the description fits
(`checked_arrays`); whatever the executor, the rows of all clients then pass `sound_metrics`, `sound_updates` and
`sound_evaluation` in the round. An answer that breaks a rule is left out and becomes a `BadReply`. No number is trusted
because it arrived.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpohcs.core.trees import named_arrays
from fedpohcs.core.types import (
    BadReply,
    CandidateMetrics,
    ClientIds,
    ClientUpdates,
    Evaluation,
    Params,
    WeightedAdvantage,
)

LARGEST_REPLY = 256 * 2**20  # bytes of all arrays of a reply
LARGEST_RETURN = 1e12  # beyond it a mean return, or an entry of a table, is a mistake
KEY, NUMBER, COUNT = np.uint64, np.float64, np.int64


class BadReplyError(Exception):
    """A reply that is not what was asked for: the rule in a word, the array if it is one, and what is wrong."""

    def __init__(self, rule: str, text: str, array: str = "") -> None:
        super().__init__(f"{array} {text}".strip())
        self.rule = rule
        self.array = array


class Expected(NamedTuple):
    """What an array must be."""

    dtype: Any
    shape: tuple[int | None, ...] = ()  # None: any length
    low: float = -math.inf
    high: float = math.inf
    finite: bool = True


BOUNDED = Expected(NUMBER, low=-LARGEST_RETURN, high=LARGEST_RETURN)


class Received(NamedTuple):
    """An array as it came: described, and not made yet."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Stamp(NamedTuple):
    """Which question a reply answers. One that bears another is late, or a copy."""

    client: int
    phase: str
    round: int
    attempt: int


class Broken(NamedTuple):
    """A rule that some rows of an array break."""

    rule: str
    text: str
    rows: NDArray[np.bool_]


def expected_like(template: Mapping[str, np.ndarray]) -> dict[str, Expected]:
    """Arrays of the same names, shapes and types."""
    return {name: Expected(array.dtype, array.shape) for name, array in template.items()}


def check_stamp(found: Stamp, asked: Stamp) -> None:
    """Refuse the answer to another question."""
    if found != asked:
        raise BadReplyError("stamp", f"answers {tuple(found)}, but {tuple(asked)} was asked")


def checked_arrays(
    received: Mapping[str, Received], expected: Mapping[str, Expected], largest: int = LARGEST_REPLY
) -> dict[str, np.ndarray]:
    """The arrays of a reply, all as expected, or `BadReplyError`. Nothing is allocated for what does not fit."""
    check_names(received, expected)
    size = sum(len(one.data) for one in received.values())
    if size > largest:
        raise BadReplyError("size", f"holds {size} bytes, more than {largest}")
    return {name: _checked(name, received[name], rule) for name, rule in expected.items()}


def check_names(received: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse arrays that are missing or too much."""
    if received.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - received.keys()), sorted(received.keys() - expected.keys())
        raise BadReplyError("names", f"lacks {missing[:3]} and brings {extra[:3]}")


def _checked(name: str, one: Received, rule: Expected) -> np.ndarray:
    dtype = np.dtype(rule.dtype)
    if one.dtype != dtype.str:
        raise BadReplyError("type", f"is of type {one.dtype!r}, not {dtype.str!r}", name)
    if not _fits(one.shape, rule.shape):
        raise BadReplyError("shape", f"has the shape {tuple(one.shape)}, not {rule.shape}", name)
    if math.prod(one.shape) * dtype.itemsize != len(one.data):
        raise BadReplyError("bytes", f"claims the shape {tuple(one.shape)} for {len(one.data)} bytes", name)
    array = np.frombuffer(one.data, dtype).reshape(one.shape).copy()
    check_array(name, array, rule)
    return array


def check_array(name: str, array: np.ndarray, rule: Expected) -> None:
    """Refuse an array that is not as expected."""
    for broken in broken_rules(array[None], rule):
        raise BadReplyError(broken.rule, broken.text, name)


def broken_rules(rows: np.ndarray, rule: Expected) -> Iterator[Broken]:
    """What is wrong with an array of which every client sent a row."""
    everybody = np.ones(len(rows), bool)
    if rows.dtype != rule.dtype:
        yield Broken("type", f"is of type {rows.dtype.str!r}, not {np.dtype(rule.dtype).str!r}", everybody)
        return
    if not _fits(rows.shape[1:], rule.shape):
        yield Broken("shape", f"has the shape {rows.shape[1:]}, not {rule.shape}", everybody)
        return
    if not rule.finite:
        return
    own_axes = tuple(range(1, rows.ndim))
    finite = np.asarray(np.isfinite(rows).all(axis=own_axes))
    if not finite.all():
        yield Broken("finite", "holds a number that is not finite", ~finite)
    if rule.low > -math.inf or rule.high < math.inf:
        inside = np.asarray(((rows >= rule.low) & (rows <= rule.high)).all(axis=own_axes))
        if not (inside | ~finite).all():
            yield Broken("range", f"holds a number outside [{rule.low:g}, {rule.high:g}]", finite & ~inside)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        n >= 0 and want in (None, n) for n, want in zip(shape, wanted, strict=True)
    )


def table_arrays(table: WeightedAdvantage) -> dict[str, np.ndarray]:
    """A client's table, array by array."""
    arrays = {"pair": table.pair, "value": table.value}
    if table.fill is not None:
        arrays |= {f"fill/{name}": array for name, array in table.fill._asdict().items()}
    return arrays


def table_rules(*, predicted: bool) -> dict[str, Expected]:
    """What the arrays of a table must be, each alone; `predicted` where missing entries are."""
    rules = {"pair": Expected(KEY, (None,)), "value": BOUNDED._replace(shape=(None,))}
    if predicted:
        single = Expected(np.float32, (None,))
        rules |= {
            "fill/state_key": Expected(KEY, (None,)),
            "fill/visitation": Expected(NUMBER, (None,)),
            "fill/pair_state_key": Expected(KEY, (None,)),
            "fill/pair_centre": single._replace(shape=(None, None)),
            "fill/frequency": single._replace(shape=(None, None)),
            "fill/phase": single,
            "fill/coefficient": Expected(NUMBER, (None,)),
        }
    return rules


def check_table(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays of a table that do not fit each other, or keys that do not ascend: tables are joined by them."""
    rows = {
        "value": "pair",
        "fill/pair_state_key": "pair",
        "fill/pair_centre": "pair",
        "fill/visitation": "fill/state_key",
    }
    for name, other in rows.items():
        if name in arrays and len(arrays[name]) != len(arrays[other]):
            raise BadReplyError("shape", f"and {other} of the table have different lengths", name)
    if "fill/phase" in arrays:
        width, features = arrays["fill/pair_centre"].shape[1], len(arrays["fill/phase"])
        if arrays["fill/frequency"].shape != (width, features) or len(arrays["fill/coefficient"]) != features + 1:
            raise BadReplyError("shape", "does not fit the other arrays of the table", "fill/frequency")
    for name in ("pair", "fill/state_key"):
        if name in arrays and (arrays[name][1:] <= arrays[name][:-1]).any():
            raise BadReplyError("order", "does not ascend", name)


def sound_metrics(metrics: CandidateMetrics, asked: ClientIds) -> CandidateMetrics:
    """What the clients that were asked have measured, without those whose answer breaks a rule."""
    numbers = {name: getattr(metrics, name) for name in ("mean_return", "gradient_norm", "selection_metric")}
    rows = {name: row for name, row in numbers.items() if row is not None}
    if metrics.costs:  # private measurements: who gives no score is marked with NaN, which breaks no rule
        rows = {name: np.where(np.isnan(row), 0.0, row) for name, row in rows.items()}
    found = _bad_rows("measure", metrics.client, asked, rows, dict.fromkeys(rows, BOUNDED))
    if metrics.weighted_advantage is not None:
        for row, (client, table) in enumerate(zip(metrics.client, metrics.weighted_advantage, strict=True)):
            try:
                _check_whole_table(table)
            except BadReplyError as error:
                found.setdefault(row, _bad_reply("measure", client, error))
    if not found:
        return metrics
    kept = np.setdiff1d(np.arange(len(metrics.client)), list(found))
    tables = metrics.weighted_advantage
    return CandidateMetrics(
        metrics.client[kept],
        **{name: None if row is None else row[kept] for name, row in numbers.items()},
        weighted_advantage=None if tables is None else tuple(tables[row] for row in kept),
        costs={name: row[kept] for name, row in metrics.costs.items()},
        bad=(*metrics.bad, *found.values()),
    )


def _check_whole_table(table: WeightedAdvantage) -> None:
    arrays, rules = table_arrays(table), table_rules(predicted=table.fill is not None)
    check_names(arrays, rules)
    for name, rule in rules.items():
        check_array(name, arrays[name], rule)
    check_table(arrays)


def sound_updates(updates: ClientUpdates, asked: ClientIds, previous: Params, most_steps: int) -> ClientUpdates:
    """A row for each client that was asked. Without a sound update it is the policy as it was, with no steps behind it.

    Args:
        updates: as the executor gives them.
        asked: who was to train, in this order.
        previous: parameters that the training began with; updates must look like them.
        most_steps: environment steps that an update can have behind it.
    """
    template, rows = named_arrays(previous), named_arrays(updates.params)
    expected = {**expected_like(template), "steps": Expected(COUNT, low=0, high=most_steps)}
    expected |= {f"info/{name}": Expected(NUMBER, finite=False) for name in updates.info}
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
    """What the clients that were asked have played, without those whose answer breaks a rule."""
    rows = {"mean_return": evaluation.mean_return, "steps": evaluation.steps}
    rows |= {f"info/{name}": row for name, row in evaluation.info.items()}
    expected = {"mean_return": BOUNDED, "steps": Expected(COUNT, low=1, high=most_steps)}
    expected |= {f"info/{name}": Expected(NUMBER, finite=False) for name in evaluation.info}
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
    phase: str, clients: ClientIds, asked: ClientIds, rows: Mapping[str, np.ndarray], expected: Mapping[str, Expected]
) -> dict[int, BadReply]:
    """The first rule that each row breaks, by row; rows that break none are not in it."""
    found: dict[int, BadReply] = {}

    def blame(rows: NDArray[np.bool_], error: BadReplyError) -> None:
        for row in np.flatnonzero(rows).tolist():
            found.setdefault(row, _bad_reply(phase, clients[row], error))

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
        for broken in broken_rules(rows[name], rule):
            blame(broken.rows, BadReplyError(broken.rule, broken.text, name))
    return found


def _bad_reply(phase: str, client: Any, error: BadReplyError) -> BadReply:
    return BadReply(int(client), phase, error.rule, error.array, str(error))
