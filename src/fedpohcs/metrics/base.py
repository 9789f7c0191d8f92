"""The interface of metrics: how clients measure, the rules of replies, and how private selection sends them.

A metric is one `Metric` and one line in `METRICS`; see docs/how-to/add-a-metric.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from fedpohcs.core.array_rules import BOUNDED, ArrayRule, BadReplyError
from fedpohcs.core.errors import require
from fedpohcs.core.registries import METRICS
from fedpohcs.core.types import ClientIds, Params, Vector

if TYPE_CHECKING:  # `requires` of selectors is read before JAX is configured
    from fedpohcs.core.config import ExperimentConfig
    from fedpohcs.core.trajectory import Trajectory
    from fedpohcs.core.types import Distribution
    from fedpohcs.learners.base import Learner
    from fedpohcs.learners.filters import Filters

Column = Any  # a value per client: numbers [C], arrays [C, ...], or a tuple
Arrays = Mapping[str, np.ndarray]  # of one client's value, by name; the name of a value that is a single array is ""
Result = TypeVar("Result")
SELECTION_METRIC = "selection_metric"
"""Name of the column of Delta_n, which replaces tables in private selection."""


class MetricContext(Protocol):
    """What a metric may read while it measures some clients under the current policy."""

    @property
    def config(self) -> ExperimentConfig: ...

    @property
    def params(self) -> Params: ...

    @property
    def round_number(self) -> int: ...

    @property
    def learner(self) -> Learner: ...

    def latest_returns(self, clients: ClientIds) -> Vector:
        """Mean undiscounted return of each client in its latest evaluation."""
        ...

    def episodes(self, client: int) -> Sequence[Trajectory]:
        """Recorded episodes of a client, [T, E]: of the latest evaluation, or of modelled rounds, newest last."""
        ...

    def filters(self, client: int) -> Filters:
        """The filters with which a client rescales observations and rewards."""
        ...

    def distribution(self, states: np.ndarray) -> Distribution:
        """The policy's action distribution on filtered observations, [n, obs]."""
        ...

    def step_advantages(self, client: int, trajectory: Trajectory) -> np.ndarray:
        """GAE samples of recorded steps, [T, E]."""
        ...

    def map(self, function: Callable[[int], Result], clients: ClientIds) -> list[Result]:
        """`function(client)` for every client, on several threads."""
        ...

    def compute(self, function: Callable[..., Any], clients: ClientIds, *, shuffled: bool = False) -> np.ndarray:
        """`function(program, sent, own, trajectory)`, compiled, on the latest recorded episodes of the clients.

        With `shuffled` it also gets a random order of the flattened steps of every client, padding included. All but
        the first two arguments and the result have a leading client axis. Define the function once, at the top of a
        module: every other function object is compiled anew.
        """
        ...

    def rehearse(self, clients: ClientIds) -> tuple[Params, np.ndarray]:
        """What the clients would send if they trained now, with a leading client axis, and the steps of each.

        It costs a local training, which is not remembered: a client that is then selected trains to the same result.
        What a server optimiser sends with the policy is not known here.
        """
        ...


def _one_number(config: ExperimentConfig, params: Params) -> Mapping[str, ArrayRule]:
    """The rules of a metric that is one number per client."""
    del config, params
    return {"": BOUNDED}


def _no_check(arrays: Arrays, config: ExperimentConfig) -> None:
    """No check across arrays, for values whose arrays are independent."""
    del arrays, config


def _no_misfits(rows: Sequence[Arrays]) -> Mapping[int, BadReplyError]:
    """No comparison of clients, for values that are used one by one."""
    del rows
    return {}


def _numbers(values: Sequence[Any]) -> np.ndarray:
    return np.asarray(values, np.float64)


def _as_single_array(value: Any) -> Arrays:
    return {"": np.asarray(value)}


def _from_single_array(arrays: Arrays) -> Any:
    return arrays[""]


class Metric(NamedTuple):
    """A quantity that clients measure for the server. The defaults suit one number per client.

    Attributes:
        measure: the values of some clients, in their order. `each` makes it from a function of one client.
        rules: what the arrays of one client's value must be, by name, given the config and the policy's parameters.
        pack: one client's value as arrays.
        unpack: the value back.
        check: raises `BadReplyError` if arrays that keep the rules do not fit each other.
        misfits: given the sound values of all clients, the errors of those that do not fit most others, by position.
        join: the values of all clients as a column.
        reads: what must have been played. "episodes": those of the evaluation, whole; "modelled": those that tables are
            made of, which `modelling` may count and cut otherwise; "returns": the latest returns alone; None: nothing.
        hide: how privacy sends it. "number": rounded; "table": a `WeightedAdvantage`, of which the server learns
            Delta_n alone; None: private selection refuses it.
        prefers: of a score, which values get a client selected: Byzantine clients claim those. None: it is no score.
        compile_ahead: compiles code of the first measurement; called in a separate thread when a run starts.
        standardised: whether it undoes the standardisation of advantages, so that learners without it are refused.
    """

    measure: Callable[[MetricContext, ClientIds], Column]
    rules: Callable[[ExperimentConfig, Params], Mapping[str, ArrayRule]] = _one_number
    pack: Callable[[Any], Arrays] = _as_single_array
    unpack: Callable[[Arrays], Any] = _from_single_array
    check: Callable[[Arrays, ExperimentConfig], None] = _no_check
    misfits: Callable[[Sequence[Arrays]], Mapping[int, BadReplyError]] = _no_misfits
    join: Callable[[Sequence[Any]], Column] = _numbers
    reads: Literal["episodes", "modelled", "returns"] | None = "episodes"
    hide: Literal["number", "table"] | None = None
    prefers: Literal["high", "low"] | None = None
    compile_ahead: Callable[[], None] | None = None
    standardised: bool = False


def each(function: Callable[[MetricContext, int], Any]) -> Callable[[MetricContext, ClientIds], list[Any]]:
    """A `measure` that measures one client at a time."""

    def measure(context: MetricContext, clients: ClientIds) -> list[Any]:
        return context.map(lambda client: function(context, client), clients)

    measure.__doc__ = function.__doc__
    return measure


def find_metric(name: str) -> Metric:
    """The metric of a name; refused if there is none, or if something else is registered under it."""
    metric = METRICS.find(name)
    rule = "must be registered as an instance of fedpohcs.metrics.base.Metric"
    require(isinstance(metric, Metric), "metric", name, f"{rule}, not {type(metric).__name__}")
    free = name.isidentifier() and name != SELECTION_METRIC
    require(free, "metric", name, f"must be a name of letters, digits and underscores, and not {SELECTION_METRIC!r}")
    return metric


def read_from(names: Iterable[str], *sources: str) -> bool:
    """Whether one of these metrics reads "episodes", "modelled" episodes or "returns"."""
    return any(find_metric(name).reads in sources for name in names)


def reads_evaluation(names: Iterable[str], config: ExperimentConfig) -> bool:
    """Whether one of these metrics reads the episodes of evaluations; `modelling.episodes` spares tables from it."""
    return read_from(names, "episodes", *(["modelled"] if config.modelling.episodes is None else []))


def hidden_as(names: Iterable[str], *forms: str) -> list[str]:
    """Those of these metrics that privacy sends as "number" or as "table", in order of their names."""
    return [name for name in sorted(names) if find_metric(name).hide in forms]
