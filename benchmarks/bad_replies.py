"""Sixteen kinds of bad replies at each of six places: what fedpohcs makes of them, and what Flower's own FedAvg does.

A kind is handled if at every place the run goes on and the new model is the weighted mean of the sound replies, each
counted once; with no sound reply, the model as it was. A reply whose numbers are right and only of another type may be
taken or left. For Flower, `FedAvg.aggregate_train` gets the replies as its strategies get them; an exception there ends
a run, because nothing catches it.

Needs: pip install 'fedpohcs[flower]'
"""

import logging
import sys
from collections import Counter
from typing import Any

import numpy as np
from _common import HERE, Figure, Goal, argument_parser, machine_facts, print_table, write_results

sys.path.insert(0, str(HERE.parent / "tests"))
K = 6
HALF_PRECISION = 1e-2  # what a mean of numbers of 16 bits may be off


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    from deploy.kinds import KINDS

    for name in ("fedpohcs", "flwr"):
        logging.getLogger(name).setLevel(logging.ERROR)  # warnings are expected
    facts = machine_facts()
    places = range(1 if arguments.quick else K)
    outcomes = {
        kind: {"fedpohcs": _over(places, of_fedpohcs, kind), "FedAvg": _over(places, of_flower, kind)} for kind in KINDS
    }
    rows = [(kind, found["fedpohcs"], found["FedAvg"]) for kind, found in outcomes.items()]
    print_table("what becomes of a bad reply", ("kind", "fedpohcs", "FedAvg of Flower"), rows)
    handled = {
        who: sum(found[who].startswith("handled") for found in outcomes.values()) for who in ("fedpohcs", "FedAvg")
    }
    figures = [
        Figure(
            "fedpohcs: kinds handled at every place", handled["fedpohcs"], f"of {len(KINDS)}", Goal(">=", 16, "kinds")
        ),
        Figure("FedAvg of Flower: the same", handled["FedAvg"], f"of {len(KINDS)}"),
    ]
    write_results("bad_replies", facts, figures, {"outcomes": outcomes, "flwr": _version()}, quick=arguments.quick)


def _over(places: Any, judge: Any, kind: str) -> str:
    """The outcome at every place, or how often each was seen."""
    seen = Counter(judge(kind, place) for place in places)
    return next(iter(seen)) if len(seen) == 1 else ", ".join(f"{what} ({n})" for what, n in seen.items())


def of_fedpohcs(kind: str, place: int) -> str:
    from deploy.kinds import KINDS, sound_replies
    from deploy.test_bad_replies import Bench

    bench = Bench()
    before = {name: array.copy() for name, array in _named(bench.state.params).items()}
    replies = sound_replies(bench.template, K, seed=place)
    try:
        bench.round(KINDS[kind].spoil(replies, place))
    except Exception as error:
        return f"ends the run: {type(error).__name__}"
    return judged(_named(bench.state.params), replies, KINDS[kind], place, before)


def of_flower(kind: str, place: int) -> str:
    from flwr.serverapp.strategy import FedAvg

    from deploy.kinds import KINDS, sound_replies
    from deploy.test_bad_replies import Bench

    template = Bench().template
    replies = sound_replies(template, K, seed=place)
    messages = [as_flower_message(reply) for reply in KINDS[kind].spoil(replies, place)]
    try:
        record, _ = FedAvg().aggregate_train(1, messages)
    except Exception as error:
        return f"ends the run: {type(error).__name__}"
    found = template if record is None else {name: array.numpy() for name, array in record.items()}
    return judged(found, replies, KINDS[kind], place, template)


def as_flower_message(reply: Any) -> Any:
    """A reply as a client of Flower's strategies sends it."""
    from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

    question = Message(RecordDict(), dst_node_id=100 + reply.client, message_type="train")
    if reply.error:
        return Message(Error(2, "failed"), reply_to=question)
    arrays = ArrayRecord({name: Array(array) for name, array in reply.arrays.items()})
    metrics = MetricRecord({"num-examples": reply.weight, **reply.more})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=question)


def judged(found: dict[str, np.ndarray], replies: list[Any], case: Any, place: int, before: Any) -> str:
    lost = set(range(K)) if case.num_lost is None else {place} if case.num_lost else set()
    if not all(np.isfinite(array).all() for array in found.values()):
        return "the model is not finite"
    if is_mean(found, [one for one in replies if one.client not in lost], before):
        return "handled"
    if case.rule == "type" and is_mean(found, case.spoil(replies, place), before, HALF_PRECISION):
        return "handled: taken as it is"
    return "aggregated into the model"


def is_mean(
    found: dict[str, np.ndarray], replies: list[Any], before: dict[str, np.ndarray], tolerance: float = 1e-5
) -> bool:
    if not replies:
        return all(np.array_equal(found[name], before[name]) for name in before)
    try:
        total = sum(one.weight for one in replies)
        means = {name: sum(one.weight / total * one.arrays[name].astype(float) for one in replies) for name in before}
        return all(np.allclose(found[name], means[name], rtol=tolerance, atol=tolerance) for name in before)
    except (KeyError, ValueError, ZeroDivisionError):
        return False


def _named(params: Any) -> dict[str, np.ndarray]:
    from fedpohcs.core.trees import named_arrays

    return named_arrays(params)


def _version() -> str:
    from importlib.metadata import version

    return version("flwr")


if __name__ == "__main__":
    main()
