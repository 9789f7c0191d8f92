"""A client app that stays: answers every message of a SuperNode in one process.

Flower starts a process for each message, which imports and compiles everything anew: seconds, for milliseconds of
work. This one takes the SuperNode's place for client apps (`--isolation process`) and keeps what it has compiled. It
also runs the installed client app and no other, whatever code a server sends along.
"""

import logging
import sys
import time

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedpohcs.core.errors import UserError
from fedpohcs.deploy.app_folder import APP_ID
from fedpohcs.deploy.client_app import app

SECONDS_A_LOOK = 0.1
log = logging.getLogger("fedpohcs")


def serve(address: str) -> None:
    """Answer the messages of the SuperNode whose runtime is at `address`, one after the other, for ever."""
    supernode = _connect(address, RuntimeVersionHttpInterceptor(component_name="SuperExec"))
    while True:
        found = supernode.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if found.token:
            answer_task(address, found.token)
        else:
            time.sleep(SECONDS_A_LOOK)


def answer_task(address: str, token: str) -> None:
    """Answer the message that the token stands for; an error is an answer as well."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    client = _connect(address, version, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        message, context, run, _ = pull_task_input(client)
        status, details = SubStatus.COMPLETED, ""
        try:
            if run.fab_id != APP_ID:
                raise UserError(f"app (={run.fab_id!r}) is not {APP_ID!r}, and this node answers no other.")
            start = time.monotonic()
            reply = app(message, context)
            log.info("%s answered in %.2f s", message.metadata.message_type, time.monotonic() - start)
        except Exception as error:
            log.exception("a message could not be answered")
            status, details = SubStatus.FAILED, str(error)
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        push_message(client, reply, context)
        push_task_output(client, context, status, details)
    finally:
        heartbeat.stop()
        client.close()


def _prepare() -> None:
    """Import what takes long before the first message, not in it."""
    from fedpohcs.runs.experiment import configure_jax

    configure_jax(1)
    import fedpohcs.deploy.client  # noqa: F401


def _connect(address: str, *interceptors: object) -> RuntimeHttpClient:
    """To a SuperNode of this machine, over loopback."""
    retry = make_simple_http_retry_invoker()
    return RuntimeHttpClient.from_server_address(address, True, None, list(interceptors), retry_invoker=retry)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    start_parent_process_monitor(int(sys.argv[2]))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    _prepare()
    serve(sys.argv[1])
