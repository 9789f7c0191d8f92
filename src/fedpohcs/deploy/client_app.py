"""The Flower app of a client: takes messages apart, lets the client answer, and puts the answer together."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpohcs.deploy.codec import params_from_record, to_record
from fedpohcs.deploy.protocol import HELLO, answer_values, config_from_text, request_from, rules_of
from fedpohcs.errors import UserError, require
from fedpohcs.experiment import check_names, configure_jax
from fedpohcs.selection import SELECTORS

app = ClientApp()


def logical_client(context: Context) -> int:
    """Who this node is, from 0. `client-id` of its node config counts from 1; simulations number partitions from 0."""
    given = context.node_config
    if "client-id" in given:
        number = given["client-id"]
        require(type(number) is int and number > 0, "client-id", number, "must be a whole number from 1")
        return int(number) - 1
    if "partition-id" in given:
        return int(given["partition-id"])
    raise UserError("client-id (=none) must be in the node config: flower-supernode --node-config 'client-id=1'.")


@app.query("hello")
@app.query("measure")
@app.train()
@app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Every question is answered alike; what it asks for is in its config."""
    config = config_from_text(str(context.run_config["config"]))
    rules = rules_of(config)
    request = request_from(dict(message.content.config_records["request"]), rules)
    client = logical_client(context)
    content = RecordDict({"answer": ConfigRecord(answer_values(request.stamp(client), rules))})
    if request.phase != HELLO:
        check_names(config)
        configure_jax(1)
        from fedpohcs.deploy.client import RemoteClient, state_folder
        from fedpohcs.envs import make_world
        from fedpohcs.execution.clients import fresh_params, make_learner

        states = state_folder(str(context.node_config.get("state-dir") or context.run_config.get("state-dir") or ""))
        record = bool(SELECTORS[config.selector]().requires - {"mean_return"})
        template = fresh_params(make_learner(config, make_world(config)), config.seed)
        params = params_from_record(message.content.array_records["params"], template)
        remote = RemoteClient(config, client, states, record=record)
        content["arrays"] = to_record(remote.answer(request, params))
    return Message(content, reply_to=message)
