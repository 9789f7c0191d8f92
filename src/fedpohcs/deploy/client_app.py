"""The Flower app of a client: parses messages, lets the client answer, and builds the replies.

A message finds a new process, whose imports may take longer than its work: whatever needs JAX is imported late.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, require
from fedpohcs.core.registries import register_plugins
from fedpohcs.deploy.codec import extra_from_record, from_record, params_from_record, to_record
from fedpohcs.deploy.node import check_allowed, logical_client, member_of, pooling_member_of, state_folder
from fedpohcs.deploy.protocol import (
    HELLO,
    POOL,
    PRIVATE,
    SPACES,
    Request,
    answer_values,
    config_from_text,
    request_from,
    rules_of,
)

app = ClientApp()


@app.query("hello")
@app.query("measure")
@app.query("simulate")
@app.query("private")
@app.query("pool")
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Answer any message; its config names the task."""
    config = config_from_text(str(context.run_config["config"]))
    check_allowed(context, config)
    rules = rules_of(config)
    request = request_from(dict(message.content.config_records["request"]), rules, _secret_message(message))
    values = answer_values(request.stamp(logical_client(context)), rules)
    if request.phase == HELLO:
        values |= _introduce(context, config, request)
    content = RecordDict({"answer": ConfigRecord(values)})
    if request.phase != HELLO:
        respond = {PRIVATE: _respond_privately, POOL: _respond_pooling}.get(request.phase, _respond)
        content["arrays"] = to_record(respond(message, context, config, request))
    return Message(content, reply_to=message)


def _introduce(context: Context, config: ExperimentConfig, request: Request) -> dict[str, str]:
    """Refuse, before anything begins, what this node cannot run or may not tell; say what environment it has."""
    from fedpohcs.runs.checks import check_acting, check_config
    from fedpohcs.worlds import make_world
    from fedpohcs.worlds.spaces import announce, is_announced

    check_config(config, elsewhere=True)
    member_of(context, config, request.run)
    if not is_announced(config):
        return {}
    world = make_world(config)
    check_acting(config, world)
    return {SPACES: announce(world)}


def _respond(message: Message, context: Context, config: ExperimentConfig, request: Request) -> Mapping[str, Any]:
    """Let the client play, measure or train, and return the reply."""
    from fedpohcs.execution import configure_jax
    from fedpohcs.server.selection import make_selector

    register_plugins()
    configure_jax(1)
    from fedpohcs.deploy.client import RemoteClient
    from fedpohcs.metrics.base import reads_evaluation

    requires = make_selector(config.selector).requires
    record = reads_evaluation(requires, config)
    member = member_of(context, config, request.run)
    if member is not None:
        surplus = ",".join(sorted(request.measures - requires))
        require(not surplus, "metrics", surplus, f"are not what selector {config.selector!r} needs")
    remote = RemoteClient(config, logical_client(context), state_folder(context), record=record, member=member)
    received = message.content.array_records
    params = partial(params_from_record, received["params"])
    return remote.answer(request, params, extra_from_record(received.get("extra")))


def _respond_privately(
    message: Message, context: Context, config: ExperimentConfig, request: Request
) -> Mapping[str, Any]:
    """Answer a message of private selection that needs no episodes."""
    del message
    member = member_of(context, config, request.run)
    if member is None:
        raise UserError("privacy (='none') has no private messages.")
    return {"message": np.frombuffer(member.answer(request.message), np.uint8)}


def _respond_pooling(
    message: Message, context: Context, config: ExperimentConfig, request: Request
) -> Mapping[str, Any]:
    """Add this client's filter to a sum."""
    del message
    reply = pooling_member_of(context, config, request.run).answer(request.message, request.round)
    return {"message": np.frombuffer(reply, np.uint8)}


def _secret_message(message: Message) -> bytes:
    record = message.content.array_records.get("message")
    return b"" if record is None else from_record(record)["message"].data
