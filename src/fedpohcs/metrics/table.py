"""The metric `weighted_advantage`: the table D_n A_n of each client, by which candidates are compared.

`metrics.weighted_advantage` computes a table; this module reads its input, and packs and checks tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpohcs.core.array_rules import BOUNDED, KEY, NUMBER, ArrayRule, BadReplyError
from fedpohcs.core.errors import require
from fedpohcs.core.imports import import_function
from fedpohcs.core.types import ClientIds, Params, Steps, WeightedAdvantage
from fedpohcs.metrics.base import Arrays, Metric, MetricContext
from fedpohcs.metrics.episodes import in_order

if TYPE_CHECKING:
    from fedpohcs.core.config import ExperimentConfig

ROWS = {"value": "pair", "fill/pair_state_key": "pair", "fill/pair_centre": "pair", "fill/visitation": "fill/state_key"}
"""Arrays of a table that must have as many rows as another array."""


def weighted_advantage(context: MetricContext, clients: ClientIds) -> list[WeightedAdvantage]:
    """D_n A_n, visitation times advantage by state-action pair. Paper: Alg. 3, l. 6."""
    from fedpohcs.metrics.weighted_advantage import weighted_advantage_table  # Numba: only where tables are made

    modelling, discount = context.config.modelling, context.config.learner.discount
    discretise = find_discretiser(modelling.discretiser)

    def table(client: int) -> WeightedAdvantage:
        steps = recorded_steps(context, client, discretise)
        return weighted_advantage_table(steps, context.distribution, modelling, discount)

    return context.map(table, clients)


def recorded_steps(context: MetricContext, client: int, discretise: Callable[[np.ndarray], Any] | None = None) -> Steps:
    """The client's recorded episodes, one after the other, filtered by its present filters."""
    import jax

    modelling = context.config.modelling
    parts = []
    for trajectory in context.episodes(client):
        advantage = context.step_advantages(client, trajectory) if modelling.advantages == "gae" else None
        parts.append(in_order(trajectory, advantage))
    steps = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    if discretise is not None:
        steps = steps._replace(cell=own_cells(discretise, steps.observation))
    filters = context.filters(client)
    # Column by column: NumPy would take the few numbers of a row by themselves, which is three times as slow.
    columns = np.asfortranarray(steps.observation)
    steps = steps._replace(observation=context.learner.filtered(filters, columns))
    if modelling.rewards == "filtered":
        steps = steps._replace(reward=context.learner.filtered_reward(filters, steps.reward))
    return _clipped(steps, context.learner.world.actions) if modelling.clip_actions else steps


def _clipped(steps: Steps, actions: Any) -> Steps:
    from fedpohcs.worlds.base import ContinuousActions

    if isinstance(actions, ContinuousActions):
        return steps._replace(action=np.clip(steps.action, actions.low, actions.high))
    return steps


def find_discretiser(name: str | None) -> Callable[[np.ndarray], Any] | None:
    """The function that `modelling.discretiser` names."""
    if name is None:
        return None
    found = import_function("modelling.discretiser", name)
    require(found is not None, "modelling.discretiser", name, "must name a function: module:function")
    return found


def own_cells(discretise: Callable[[np.ndarray], Any], observation: np.ndarray) -> np.ndarray:
    """The cells that a user's function returns, after checks."""
    cells = np.asarray(discretise(observation))
    rule = f"must give one row of integers for each of {len(observation)} observations"
    fits = cells.ndim in (1, 2) and len(cells) == len(observation) and np.issubdtype(cells.dtype, np.integer)
    require(fits, "modelling.discretiser", f"{cells.dtype}{list(cells.shape)}", rule)
    return cells.astype(np.int64)


def pack_table(table: WeightedAdvantage) -> dict[str, np.ndarray]:
    """A client's table, array by array."""
    arrays = {"pair": table.pair, "value": table.value}
    if table.fill is not None:
        arrays |= {f"fill/{name}": array for name, array in table.fill._asdict().items()}
    return arrays


def unpack_table(arrays: Arrays) -> WeightedAdvantage:
    """The table back."""
    fill = {name.removeprefix("fill/"): array for name, array in arrays.items() if name.startswith("fill/")}
    if not fill:
        return WeightedAdvantage(arrays["pair"], arrays["value"])
    from fedpohcs.metrics.prediction import AdvantagePredictor

    return WeightedAdvantage(arrays["pair"], arrays["value"], AdvantagePredictor(**fill))


def table_rules(*, predicted: bool) -> dict[str, ArrayRule]:
    """The rules for the single arrays of a table; with `predicted` also those of the predictor.

    The predictor is optional: a client that has seen nothing has none. `check_table` demands it of all others.
    """
    rules = {"pair": ArrayRule(KEY, (None,)), "value": BOUNDED._replace(shape=(None,))}
    if predicted:
        keys, numbers = ArrayRule(KEY, (None,), optional=True), ArrayRule(NUMBER, (None,), optional=True)
        single = ArrayRule(np.float32, (None,), optional=True)
        rules |= {
            "fill/state_key": keys,
            "fill/visitation": numbers,
            "fill/pair_state_key": keys,
            "fill/pair_centre": single._replace(shape=(None, None)),
            "fill/frequency": single._replace(shape=(None, None)),
            "fill/phase": single,
            "fill/coefficient": numbers,
        }
    return rules


def check_table(arrays: Arrays, *, predicted: bool = False) -> None:
    """Refuse arrays of a table that do not fit each other, or keys that do not ascend: tables are joined by them."""
    present = {name for name in arrays if name.startswith("fill/")}
    wanted = table_rules(predicted=predicted).keys() - {"pair", "value"}
    if (present or len(arrays["pair"])) and present != wanted:
        raise BadReplyError("names", f"of the predictor are {sorted(present)}, not {sorted(wanted)}")
    for name, other in ROWS.items():
        if name in arrays and len(arrays[name]) != len(arrays[other]):
            raise BadReplyError("shape", f"and {other} of the table have different lengths", name)
    if "fill/phase" in arrays:
        if not len(arrays["fill/state_key"]):
            raise BadReplyError("shape", "is empty: who visited no state sends no predictor", "fill/state_key")
        width, features = arrays["fill/pair_centre"].shape[1], len(arrays["fill/phase"])
        if arrays["fill/frequency"].shape != (width, features) or len(arrays["fill/coefficient"]) != features + 1:
            raise BadReplyError("shape", "does not fit the other arrays of the table", "fill/frequency")
    for name in ("pair", "fill/state_key"):
        if name in arrays and (arrays[name][1:] <= arrays[name][:-1]).any():
            raise BadReplyError("order", "does not ascend", name)


def other_widths(tables: Sequence[Arrays]) -> dict[int, BadReplyError]:
    """Predictors with another number of inputs than most have: they cannot predict for the pairs of the others."""
    name = "fill/pair_centre"
    widths = {position: arrays[name].shape[1] for position, arrays in enumerate(tables) if name in arrays}
    counts = Counter(widths.values())
    common = max(sorted(counts), key=lambda width: counts[width], default=0)
    return {
        position: BadReplyError("shape", f"has {width} inputs, those of most others have {common}", name)
        for position, width in widths.items()
        if width != common
    }


def _rules(config: ExperimentConfig, params: Params) -> Mapping[str, ArrayRule]:
    del params
    return table_rules(predicted=config.modelling.missing == "predicted")


def _compile_ahead() -> None:
    from fedpohcs.metrics.weighted_advantage import compile_ahead

    compile_ahead()


def _check(arrays: Arrays, config: ExperimentConfig) -> None:
    check_table(arrays, predicted=config.modelling.missing == "predicted")


WEIGHTED_ADVANTAGE = Metric(
    weighted_advantage,
    _rules,
    pack_table,
    unpack_table,
    _check,
    other_widths,
    join=tuple,
    reads="modelled",
    hide="table",
    compile_ahead=_compile_ahead,
)
