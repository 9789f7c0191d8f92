"""Client selection for any Flower app: put one of these strategies where `FedAvg` was.

Before every training round the strategy asks some nodes, the candidates, how they stand, and trains the best of them.
The client app answers that question with one more function, `@app.query("selection")`, which gets the global arrays
and the config, and replies with a record of numbers (`MetricRecord`):

* `PowerOfChoice`: `loss`, the mean loss of the global model on the client's data;
* `GradientNorm`: `gradient-norm`, the norm of the gradient of that loss;
* `FedPOHCS`: instead of numbers, `table_record(pair, value)`, the client's D_n A_n by hashed state-action pair.

Selection itself is the code of `fedpohcs.server.selection`; nothing here computes a score.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedpohcs.core.errors import require
from fedpohcs.core.expected import BadReplyError
from fedpohcs.core.randomness import Purpose, host_generator
from fedpohcs.core.registries import SELECTORS
from fedpohcs.core.types import CandidateMetrics, WeightedAdvantage
from fedpohcs.deploy.codec import from_record, to_record
from fedpohcs.metrics.table import check_table, pack_table, table_rules, unpack_table
from fedpohcs.server.replies import checked_arrays
from fedpohcs.server.selection import Question

QUERY = f"{MessageType.QUERY}.selection"

log = logging.getLogger("fedpohcs")


def table_record(pair: np.ndarray, value: np.ndarray) -> ArrayRecord:
    """A client's table for `FedPOHCS`: ascending keys of visited state-action pairs, and visitation times advantage."""
    return to_record(pack_table(WeightedAdvantage(np.asarray(pair, np.uint64), np.asarray(value, np.float64))))


class _Selecting(FedAvg):
    """FedAvg whose training nodes are chosen among candidates by what they answer."""

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
        """Say how many are asked and how many train.

        Args:
            num_candidates: nodes asked each round; all that are connected if there are fewer.
            num_selected: candidates that train; all that answer if there are fewer.
            seed: of the candidates. They repeat where node ids do, which is with registered nodes.
            query_timeout: seconds for the candidates' answers.
            **options: of Flower's `FedAvg`.
        """
        require(num_selected > 0, "num_selected", num_selected, "must be at least 1")
        rule = f"must not be below num_selected (={num_selected})"
        require(num_candidates >= num_selected, "num_candidates", num_candidates, rule)
        super().__init__(**options)
        self.num_candidates = num_candidates
        self.num_selected = num_selected
        self.seed = seed
        self.query_timeout = query_timeout

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the candidates, and make messages for those that train."""
        content = RecordDict(
            {
                self.arrayrecord_key: arrays,
                self.configrecord_key: ConfigRecord({**config, "server-round": server_round}),
            }
        )
        candidates = self._sample(sorted(grid.get_node_ids()), server_round)
        questions = self._construct_messages(content, candidates, QUERY)
        answers = {}
        for reply in grid.send_and_receive(questions, timeout=self.query_timeout):
            node = reply.metadata.src_node_id
            try:
                answers[node] = self._read(_content(reply))
            except BadReplyError as error:
                log.warning("round %d: node %d cannot be selected: its answer %s", server_round, node, error)
        chosen = self._select(answers, server_round) if answers else []
        log.info(
            "round %d: %d of %d candidates answered, %d train", server_round, len(answers), len(candidates), len(chosen)
        )
        return self._construct_messages(content, chosen, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the updates that are finite."""
        sound = []
        for reply in replies:
            if reply.has_content() and not _is_finite(reply.content):
                log.warning("round %d: the update of node %d is not finite", server_round, reply.metadata.src_node_id)
            else:
                sound.append(reply)
        return super().aggregate_train(server_round, sound)

    def _sample(self, nodes: list[int], server_round: int) -> list[int]:
        generator = host_generator(self.seed, Purpose.CANDIDATES, server_round)
        positions = generator.choice(len(nodes), min(self.num_candidates, len(nodes)), replace=False)
        return [nodes[position] for position in sorted(positions.tolist())]

    def _select(self, answers: dict[int, Any], server_round: int) -> list[int]:
        """The selector knows candidates by their position, because node ids are not numbers from 0 to N."""
        nodes = sorted(answers)
        positions = np.arange(len(nodes))
        generator = host_generator(self.seed, Purpose.SELECTION, server_round)
        weight = np.full(len(nodes), 1 / len(nodes))
        question = Question(positions, min(self.num_selected, len(nodes)), len(nodes), weight, generator)
        metrics = self._metrics(positions, [answers[node] for node in nodes])
        selection, _ = SELECTORS[self.selector]().select(question, metrics, None)
        return [nodes[position] for position in selection.client.tolist()]

    @abstractmethod
    def _read(self, content: RecordDict) -> Any:
        """What an answer says, checked."""

    @abstractmethod
    def _metrics(self, positions: np.ndarray, answers: list[Any]) -> CandidateMetrics:
        """Answers as the selector reads them."""


class PowerOfChoice(_Selecting):
    """Trains the candidates with the highest loss (Cho et al., 2022)."""

    selector = "power-of-choice"

    def _read(self, content: RecordDict) -> float:
        return _number(content, "loss")

    def _metrics(self, positions: np.ndarray, answers: list[float]) -> CandidateMetrics:
        return CandidateMetrics(positions, {"mean_return": -np.array(answers)})


class GradientNorm(_Selecting):
    """Trains the candidates with the largest gradient (Marnissi et al., 2021)."""

    selector = "gradient-norm"

    def _read(self, content: RecordDict) -> float:
        return _number(content, "gradient-norm")

    def _metrics(self, positions: np.ndarray, answers: list[float]) -> CandidateMetrics:
        return CandidateMetrics(positions, {"gradient_norm": np.array(answers)})


class FedPOHCS(_Selecting):
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


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise BadReplyError("error", f"is an error: {reply.error.reason}")
    return reply.content


def _number(content: RecordDict, name: str) -> float:
    values = [record[name] for record in content.metric_records.values() if name in record]
    if len(values) != 1 or isinstance(values[0], list) or not np.isfinite(values[0]):
        raise BadReplyError("finite", f"must hold one finite number called {name!r}")
    return float(values[0])


def _is_finite(content: RecordDict) -> bool:
    numbers = [array.numpy() for record in content.array_records.values() for array in record.values()]
    weights = [value for record in content.metric_records.values() for value in record.values()]
    return all(np.isfinite(x).all() for x in (*numbers, *weights))
