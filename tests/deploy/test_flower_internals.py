"""What is used of Flower besides its public interface: each name, and how it is called."""

import ast
import inspect
import typing
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.serverapp import Grid

import fedpohcs
from fedpohcs.core.errors import UserError
from fedpohcs.deploy import flower_internals, local, node_command, resident
from fedpohcs.deploy.flower_internals import MODULES, SUPPORTED
from fedpohcs.deploy.node_command import EXIT_UNSUPPORTED, NodeOptions, run_node

SOURCE = Path(fedpohcs.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}

PARAMETERS = {
    "HeartbeatSender": ["heartbeat_fn"],
    "RuntimeHttpClient.from_server_address": ["server_address", "insecure", "root_certificates", "interceptors"],
    "RuntimeTokenHttpInterceptor": ["token"],
    "RuntimeVersionHttpInterceptor": ["component_name"],
    "SuperExecAuthHttpInterceptor": [],
    "flower_superlink": [],
    "flower_supernode": [],
    "get_middleware": [],
    "make_simple_http_retry_invoker": [],
    "make_task_heartbeat_fn_http": ["client"],
    "pull_task_input": ["client"],
    "push_message": ["client", "message", "context"],
    "push_task_output": ["client", "context", "sub_status", "details"],
    "start_parent_process_monitor": ["parent_pid"],
}
"""The positional parameters of what is called, in their order."""

MEMBERS = {
    "AcquireTaskRequest": ["SUPPORTED_TASK_TYPES_FIELD_NUMBER"],
    "ErrorCode": ["CLIENT_APP_RAISED_EXCEPTION"],
    "HeartbeatSender": ["start", "stop"],
    "RuntimeHttpClient": ["AcquireTask", "close", "from_server_address"],
    "SubStatus": ["COMPLETED", "FAILED"],
    "TaskType": ["CLIENT_APP"],
}
"""The attributes that are read."""


def describe(name: str) -> str:
    return f"flwr {version('flwr')} changed {MODULES[name.partition('.')[0]]}.{name}, which deploy/resident.py uses"


@pytest.mark.parametrize("name", MODULES)
def test_flower_has_the_name(name: str) -> None:
    try:
        getattr(flower_internals, name)
    except UserError as error:
        pytest.fail(str(error))


@pytest.mark.parametrize("name", PARAMETERS)
def test_flower_takes_the_arguments_in_this_order(name: str) -> None:
    first, _, method = name.partition(".")
    called = getattr(flower_internals, first)
    signature = inspect.signature(getattr(called, method) if method else called)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [one.name for one in signature.parameters.values() if one.kind in kinds]
    assert positional == PARAMETERS[name], describe(name)


@pytest.mark.parametrize("name", MEMBERS)
def test_flower_has_the_attributes(name: str) -> None:
    owner = getattr(flower_internals, name)
    assert [one for one in MEMBERS[name] if not hasattr(owner, one)] == [], describe(name)


def test_every_name_is_checked_for_its_use() -> None:
    assert {name.partition(".")[0] for name in (*PARAMETERS, *MEMBERS)} == MODULES.keys()


def test_a_task_is_a_message_a_context_a_run_and_a_bundle() -> None:
    returned = typing.get_args(typing.get_type_hints(flower_internals.pull_task_input)["return"])
    assert [one.__name__ for one in returned] == ["Message", "Context", "Run", "Fab"], describe("pull_task_input")
    assert "fab_id" in returned[2].__annotations__, describe("pull_task_input")


def test_the_client_app_signs_the_call_that_a_supernode_protects() -> None:
    from flwr.supercore.superexec.run_superexec import _SUPEREXEC_AUTH_METHODS

    assert {flower_internals.ACQUIRE_TASK} == _SUPEREXEC_AUTH_METHODS
    keywords = inspect.signature(flower_internals.SuperExecAuthHttpInterceptor).parameters
    assert keywords.keys() == {"master_secret", "protected_methods"}, describe("SuperExecAuthHttpInterceptor")


def test_an_acquired_task_has_a_token() -> None:
    acquire = flower_internals.RuntimeHttpClient.AcquireTask
    returned = typing.get_type_hints(acquire)["return"]
    assert "token" in returned.DESCRIPTOR.fields_by_name, describe("RuntimeHttpClient.AcquireTask")


def test_a_client_can_be_given_a_way_to_retry() -> None:
    signature = inspect.signature(flower_internals.RuntimeHttpClient.from_server_address)
    assert "retry_invoker" in signature.parameters, describe("RuntimeHttpClient.from_server_address")


@pytest.mark.parametrize(("method", "names"), [("push_messages", ["messages"]), ("pull_messages", ["message_ids"])])
def test_a_grid_sends_and_fetches_messages_by_one_argument(method: str, names: list[str]) -> None:
    """`EagerGrid` calls these; they are public, but announced to change."""
    parameters = inspect.signature(getattr(Grid, method)).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.name != "self"]
    assert needed == names, f"flwr {version('flwr')} changed flwr.serverapp.Grid.{method}, which deploy/eager.py uses"


def test_one_file_alone_names_internals() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            found |= {one for one in modules if one.partition(".")[0] == "flwr"}
    assert found == PUBLIC


def test_the_supported_versions_are_those_of_the_extras() -> None:
    first, _, last = SUPPORTED.partition(" and ")
    after = f"1.{int(last.partition('.')[2]) + 1}"
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"flwr>={first},<{after}"' in text
    assert f'"flwr[simulation]>={first},<{after}"' in text


REASONS = {"module": "flwr.supercore.no_such_module", "package": "flwr.gone.constant", "name": "flwr.supercore.retry"}


@pytest.fixture(params=REASONS)
def moved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message about a name that is no longer where it was."""
    module = REASONS[request.param]
    monkeypatch.setitem(MODULES, "TaskType", module)
    return f"flwr {version('flwr')} moved {module}.TaskType; fedpohcs supports {SUPPORTED}. "


def test_a_name_that_moved_is_named_with_the_supported_versions(moved: str) -> None:
    with pytest.raises(UserError) as caught:
        flower_internals.check_internals()
    assert str(caught.value).startswith(moved)
    assert "\n" not in str(caught.value)


def test_a_package_that_flower_needs_is_not_called_a_moved_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_flower.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(MODULES, "TaskType", "broken_flower")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        flower_internals.check_internals()


def test_a_name_that_was_never_there_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'TaskTyp'"):
        flower_internals.TaskTyp  # noqa: B018


def test_a_client_app_without_its_names_ends_with_a_code_of_its_own(moved: str) -> None:
    assert resident.main("127.0.0.1:1", 1, Path("secret")) == EXIT_UNSUPPORTED


class FakeProcess(SimpleNamespace):
    """A process that has ended with a code, or runs while that is None."""

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None: ...

    def wait(self, timeout: float) -> None: ...


def test_a_node_whose_client_app_lacks_a_name_ends_and_says_which(moved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(command: list[str], environment: Any) -> FakeProcess:
        return FakeProcess(returncode=EXIT_UNSUPPORTED if "fedpohcs.deploy.resident" in command else None)

    monkeypatch.setattr(node_command, "start_child", start)
    with pytest.raises(UserError) as caught:
        run_node(NodeOptions("localhost:1", 1, insecure=True))
    assert str(caught.value).startswith(moved)


def test_a_local_fleet_that_lacks_a_name_starts_no_process(moved: str, tmp_path: Path) -> None:
    fleet = local.LocalFleet(1, tmp_path / "logs", runtime="deployment", insecure=True)
    with pytest.raises(UserError) as caught, fleet:
        pass
    assert str(caught.value).startswith(moved)
    assert not fleet.processes
    assert not fleet.scratch.exists()
