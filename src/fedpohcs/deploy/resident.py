"""A client app that stays: one process answers all messages of a SuperNode.

Flower starts a process per message, which imports and compiles everything again. That takes seconds, while the work
itself takes milliseconds. A SuperNode with `--isolation process` starts none: this process asks it for messages, and
keeps its compiled code. It runs the installed client app only, and never code that a server sends.
"""

import logging
import sys
import time
from pathlib import Path
from typing import Any

from flwr.app import Error, Message

from fedpohcs.core.errors import UserError
from fedpohcs.deploy import flower_internals as flower
from fedpohcs.deploy.app_folder import APP_ID
from fedpohcs.deploy.client_app import app
from fedpohcs.deploy.node_command import EXIT_UNSUPPORTED

SECONDS_PER_POLL = 0.1
log = logging.getLogger("fedpohcs")


def serve(address: str, secret: bytes) -> None:
    """Answer the messages of the SuperNode whose runtime is at `address`, one after the other, until stopped.

    The SuperNode gives messages only to the process that has its `secret`.
    """
    version = flower.RuntimeVersionHttpInterceptor(component_name="SuperExec")
    sign = flower.SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={flower.ACQUIRE_TASK})
    supernode = _connect(address, version, sign)
    request = flower.AcquireTaskRequest(supported_task_types=[flower.TaskType.CLIENT_APP])
    while True:
        found = supernode.AcquireTask(request)
        if found.token:
            answer_task(address, found.token)
        else:
            time.sleep(SECONDS_PER_POLL)


def answer_task(address: str, token: str) -> None:
    """Answer the message that belongs to the token; if that fails, the reply is an error."""
    version = flower.RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    client = _connect(address, version, flower.RuntimeTokenHttpInterceptor(token))
    heartbeat = flower.HeartbeatSender(flower.make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        message, context, run, _ = flower.pull_task_input(client)
        status, details = flower.SubStatus.COMPLETED, ""
        try:
            reply = _answer(message, context, run.fab_id)
        except Exception as error:
            log.exception("a message could not be answered")
            status, details = flower.SubStatus.FAILED, str(error)
            reply = Message(Error(flower.ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        flower.push_message(client, reply, context)
        flower.push_task_output(client, context, status, details)
    finally:
        heartbeat.stop()
        client.close()


def _answer(message: Message, context: Any, app_id: str) -> Message:
    if app_id != APP_ID:
        raise UserError(f"app (={app_id!r}) is not {APP_ID!r}, and this node answers no other.")
    start = time.monotonic()
    reply = app(message, context)
    log.info("%s answered in %.2f s", message.metadata.message_type, time.monotonic() - start)
    return reply


def _prepare() -> None:
    """Import the slow modules before the first message comes."""
    from fedpohcs.execution import configure_jax

    configure_jax(1)
    import fedpohcs.deploy.client  # noqa: F401


def _connect(address: str, *interceptors: Any) -> Any:
    """Open a connection to the runtime of a SuperNode on this machine, over loopback."""
    retry = flower.make_simple_http_retry_invoker()
    return flower.RuntimeHttpClient.from_server_address(address, True, None, list(interceptors), retry_invoker=retry)


def main(address: str, parent: int, secret: Path) -> int:
    """Serve the SuperNode at `address` until the process `parent` ends; `parent` reports an unsupported Flower."""
    try:
        flower.check_internals()
    except UserError:
        return EXIT_UNSUPPORTED
    flower.start_parent_process_monitor(parent)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    _prepare()
    serve(address, secret.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
