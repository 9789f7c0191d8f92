"""Client selection for any Flower app: use one of these strategies in place of `FedAvg`.

Before every training round the strategy queries some nodes, the candidates, and trains those with the best scores.
The client app answers the query with one more function, `@app.query("selection")`, which receives the global arrays
and the config, and replies with a record of numbers (`MetricRecord`):

* `PowerOfChoice`: `loss`, the mean loss of the global model on the client's data;
* `GradientNorm`: `gradient-norm`, the norm of the gradient of that loss;
* `FedPOHCS`: instead of numbers, `table_record(pair, value)`, the client's D_n A_n by hashed state-action pair.

The selectors of `fedpohcs.server.selection` compute the scores; this module only carries messages.
"""

import logging
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedpohcs.core.array_rules import BadReplyError
from fedpohcs.core.errors import require
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.types import CandidateMetrics, WeightedAdvantage
from fedpohcs.deploy.codec import from_record, to_record
from fedpohcs.metrics.table import check_table, pack_table, table_rules, unpack_table
from fedpohcs.server.replies import checked_arrays
from fedpohcs.server.selection import Question, make_selector

QUERY = f"{MessageType.QUERY}.selection"
SECONDS_PER_POLL = 1.0  # as in Flower's `FedAvg`
MOST_REASONS = 3  # in a warning; the log has all
LONGEST_REASON = 200  # characters

log = logging.getLogger("fedpohcs")


def table_record(pair: np.ndarray, value: np.ndarray) -> ArrayRecord:
    """The reply for `FedPOHCS`: ascending keys of visited state-action pairs, and their visitation times advantage."""
    return to_record(pack_table(WeightedAdvantage(np.asarray(pair, np.uint64), np.asarray(value, np.float64))))


class _SelectionStrategy(FedAvg):
    """FedAvg that trains the candidates which a selector chooses by their answers to a query."""

    selector: str

    def __init__(
        self,
        num_candidates: int,
        num_selected: int,
        *,
        seed: int = 0,
        query_timeout: float = 600.0,
        **options: Any,
    ) -> None:
        """Set the numbers of candidates and of selected nodes.

        Args:
            num_candidates: nodes queried per round; all connected nodes if there are fewer.
            num_selected: candidates that train; all that answer if there are fewer.
            seed: of the draw of candidates. The draw repeats across runs if the node ids do: with registered nodes.
            query_timeout: seconds to wait for the candidates' answers.
            **options: of Flower's `FedAvg`. As there, a round waits until `min_available_nodes` nodes are connected,
                and at least `min_train_nodes` (here by default 2, or `num_selected` if that is 1). `fraction_train`
                has no effect, except that 0 skips training.
        """
        require(num_selected > 0, "num_selected", num_selected, "must be at least 1")
        rule = f"must not be below num_selected (={num_selected})"
        require(num_candidates >= num_selected, "num_candidates", num_candidates, rule)
        options.setdefault("min_train_nodes", min(2, num_selected))
        super().__init__(**options)
        self.num_candidates = num_candidates
        self.num_selected = num_selected
        self.seed = seed
        self.query_timeout = query_timeout
        self.selected: list[int] = []  # nodes asked to train in the current round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Query the candidates, and make training messages for the selected ones."""
        self.selected = []
        if self.fraction_train == 0.0:  # Flower has logged that training is skipped
            return []
        content = RecordDict(
            {
                self.arrayrecord_key: arrays,
                self.configrecord_key: ConfigRecord({**config, "server-round": server_round}),
            }
        )
        candidates = self._sample(self._connected_nodes(grid, server_round), server_round)
        answers, failures = self._query(grid, _messages(content, candidates, QUERY), server_round)
        if answers:
            self.selected = self._select(answers, server_round)
        else:
            _warn_untrained(server_round, "candidates", candidates, failures, self.query_timeout)
        asked, trained = len(candidates), len(self.selected)
        log.info("round %d: %d of %d candidates answered, %d train", server_round, len(answers), asked, trained)
        return _messages(content, self.selected, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the finite updates."""
        sound, failures = [], {}
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                failures[node] = f"is an error: {_reason(reply)}"
            elif not _is_finite(reply.content):
                failures[node] = "is not finite"
                log.warning("round %d: the update of node %d is not finite", server_round, node)
                continue
            sound.append(reply)
        if self.selected and not any(reply.has_content() for reply in sound):
            _warn_untrained(server_round, "selected nodes", self.selected, failures)
        return super().aggregate_train(server_round, sound)

    def _connected_nodes(self, grid: Grid, server_round: int) -> list[int]:
        """Ids of the connected nodes, as soon as there are enough."""
        wanted, shown = max(self.min_available_nodes, self.min_train_nodes), -1
        while len(nodes := sorted(grid.get_node_ids())) < wanted:
            if len(nodes) != shown:
                shown = len(nodes)
                log.warning("round %d waits for nodes: %d of %d are connected", server_round, shown, wanted)
            time.sleep(SECONDS_PER_POLL)
        return nodes

    def _query(self, grid: Grid, queries: list[Message], server_round: int) -> tuple[dict[int, Any], dict[int, str]]:
        """Sound answers by node, and what is wrong with the others."""
        answers, failures = {}, {}
        for reply in grid.send_and_receive(queries, timeout=self.query_timeout):
            node = reply.metadata.src_node_id
            try:
                answers[node] = self._read(_content(reply))
            except BadReplyError as error:
                failures[node] = str(error)
                log.warning("round %d: node %d cannot be selected: its answer %s", server_round, node, error)
        return answers, failures

    def _sample(self, nodes: list[int], server_round: int) -> list[int]:
        generator = host_generator(self.seed, Purpose.CANDIDATES, server_round)
        positions = generator.choice(len(nodes), min(self.num_candidates, len(nodes)), replace=False)
        return [nodes[position] for position in sorted(positions.tolist())]

    def _select(self, answers: dict[int, Any], server_round: int) -> list[int]:
        """Nodes by the selector's choice. It identifies candidates by position, because node ids are not 0 to N - 1."""
        nodes = sorted(answers)
        positions = np.arange(len(nodes))
        generator = host_generator(self.seed, Purpose.SELECTION, server_round)
        weight = np.full(len(nodes), 1 / len(nodes))
        question = Question(positions, min(self.num_selected, len(nodes)), len(nodes), weight, generator)
        metrics = self._metrics(positions, [answers[node] for node in nodes])
        selection, _ = make_selector(self.selector).select(question, metrics, None)
        return [nodes[position] for position in selection.client.tolist()]

    @abstractmethod
    def _read(self, content: RecordDict) -> Any:
        """The checked value of an answer, or `BadReplyError`."""

    @abstractmethod
    def _metrics(self, positions: np.ndarray, answers: list[Any]) -> CandidateMetrics:
        """The answers in the form that the selector takes."""


class PowerOfChoice(_SelectionStrategy):
    """Trains the candidates with the highest loss (Cho et al., 2022)."""

    selector = "power-of-choice"

    def _read(self, content: RecordDict) -> float:
        return _number(content, "loss")

    def _metrics(self, positions: np.ndarray, answers: list[float]) -> CandidateMetrics:
        return CandidateMetrics(positions, {"mean_return": -np.array(answers)})


class GradientNorm(_SelectionStrategy):
    """Trains the candidates with the largest gradient (Marnissi et al., 2021)."""

    selector = "gradient-norm"

    def _read(self, content: RecordDict) -> float:
        return _number(content, "gradient-norm")

    def _metrics(self, positions: np.ndarray, answers: list[float]) -> CandidateMetrics:
        return CandidateMetrics(positions, {"gradient_norm": np.array(answers)})


class FedPOHCS(_SelectionStrategy):
    """Trains the candidates with the largest Delta_n. Paper: Alg. 3."""

    selector = "fedpohcs"

    def _read(self, content: RecordDict) -> WeightedAdvantage:
        records = list(content.array_records.values())
        if len(records) != 1:
            raise BadReplyError("names", f"has {len(records)} array records, not one")
        arrays = checked_arrays(from_record(records[0]), table_rules(predicted=False))
        check_table(arrays)
        return unpack_table(arrays)

    def _metrics(self, positions: np.ndarray, answers: list[WeightedAdvantage]) -> CandidateMetrics:
        return CandidateMetrics(positions, {"weighted_advantage": tuple(answers)})


def _messages(content: RecordDict, nodes: list[int], kind: str) -> list[Message]:
    return [Message(content, dst_node_id=node, message_type=kind) for node in nodes]


def _warn_untrained(
    server_round: int, group: str, nodes: list[int], failures: dict[int, str], timeout: float | None = None
) -> None:
    """Report that no node trained in a round, and why."""
    reasons = [f"the answer of node {node} {failure}" for node, failure in sorted(failures.items())]
    if len(reasons) > MOST_REASONS:
        reasons[MOST_REASONS:] = [f"and {len(reasons) - MOST_REASONS} more"]
    silent = [node for node in nodes if node not in failures]
    if silent:
        within = f" within {timeout:g} s" if timeout is not None else ""
        reasons.append(f"{len(silent)} of {len(nodes)} {group} did not answer{within}")
    reason = "; ".join(reasons) or "no node is connected"
    text = f"round {server_round} trains nobody, and the weights stay as they are: {reason}"
    log.warning(text)
    warnings.warn(text, stacklevel=3)


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise BadReplyError("error", f"is an error: {_reason(reply)}")
    return reply.content


def _reason(reply: Message) -> str:
    """The reason in one line: the end of the traceback that Flower may send."""
    words = " ".join((reply.error.reason or "no reason given").split())
    return words if len(words) <= LONGEST_REASON else f"...{words[-LONGEST_REASON:]}"


def _number(content: RecordDict, name: str) -> float:
    values = [record[name] for record in content.metric_records.values() if name in record]
    if len(values) != 1 or isinstance(values[0], list) or not np.isfinite(values[0]):
        raise BadReplyError("finite", f"must hold one finite number called {name!r}")
    return float(values[0])


def _is_finite(content: RecordDict) -> bool:
    numbers = [array.numpy() for record in content.array_records.values() for array in record.values()]
    weights = [value for record in content.metric_records.values() for value in record.values()]
    return all(np.isfinite(x).all() for x in (*numbers, *weights))
