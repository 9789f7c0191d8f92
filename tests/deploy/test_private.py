"""Private selection over Flower's messages: the same scores as in one process, and keys that never leave a node."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedpohcs.core.config import ExperimentConfig, FederationConfig, ProtectionConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.types import RoundRecord
from fedpohcs.deploy.executor import Limits
from fedpohcs.deploy.keys import Keys, load_identity, load_members, make_keys
from fedpohcs.deploy.member import FILE
from fedpohcs.deploy.private import make_flower_executor
from fedpohcs.privacy.messages import Kind, parse
from fedpohcs.runs.experiment import Training, resume_experiment, run_experiment, start_training

from .loop import LoopGrid, node_config
from .test_executor import SHORT, Interrupted, StopAfter, assert_same, in_process, tables

FEDERATION = FederationConfig(num_clients=6, num_candidates=5, num_selected=3, evaluation_episodes=8)
COHORT = ProtectionConfig(sketch_size=1024, min_cohort=3)

pytestmark = pytest.mark.usefixtures("no_sleep")


@pytest.fixture
def config() -> ExperimentConfig:
    return replace(preset("tabular"), rounds=2, federation=FEDERATION, privacy="masked", protection=COHORT)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("fleet") / "keys", 6, ["localhost"])


def training_on(grid: LoopGrid, config: ExperimentConfig, keys: Keys, limits: Limits = SHORT) -> Training:
    members = load_members(keys.members)
    return start_training(config, partial(make_flower_executor, grid=grid, limits=limits, members=members))


def assert_same_privately(one: RoundRecord, other: RoundRecord) -> None:
    assert_same(one, other)
    jax.tree.map(np.testing.assert_array_equal, one.asked_costs, other.asked_costs)


def message_in(message: Message) -> bytes:
    """The protocol's message that a message of Flower carries."""
    records = message.content.array_records
    arrays = records.get("message") or records.get("arrays", {})
    names = ("message", "measured/weighted_advantage")
    return next((array.data for name, array in arrays.items() if name in names), b"")


@pytest.mark.parametrize("privacy", ["masked", "he"])
@pytest.mark.parametrize("selector", ["fedpohcs", "fedpohcs-one-phase", "power-of-choice", "gradient-norm", "fedavg"])
def test_a_private_run_over_messages_equals_one_in_process(
    privacy: str, selector: str, config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    if privacy == "he":
        pytest.importorskip("tenseal")
        if not selector.startswith("fedpohcs"):
            pytest.skip("nothing is encrypted there")
    config = replace(config, selector=selector, privacy=privacy)
    there, here = training_on(LoopGrid(config, states, keys=keys), config, keys), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same_privately(one, other)
    jax.tree.map(np.testing.assert_array_equal, there.state.params, here.state.params)


def test_a_private_round_costs_one_more_message_to_each_candidate(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, keys=keys)
    list(training_on(grid, config, keys).remaining_rounds())
    session = 6 + 6 + 5  # hello, roster, and the group key to all but the one that made it
    assert grid.counts == {"query.hello": 6, "query.private": session + 2 * 5, "evaluate": 3 * 6, "train": 2 * 3}


def test_rounds_without_evaluation_are_private_too(config: ExperimentConfig, keys: Keys, states: Path) -> None:
    config = replace(config, rounds=3, federation=replace(config.federation, evaluation_every=2))
    rounds = training_on(LoopGrid(config, states, keys=keys), config, keys).remaining_rounds()
    for one, other in zip(rounds, in_process(config).remaining_rounds(), strict=True):
        assert_same_privately(one, other)


@pytest.mark.parametrize("selector", ["fedpohcs", "power-of-choice"])
def test_no_answer_holds_a_table_or_a_number_in_the_clear(
    selector: str, config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    config = replace(config, selector=selector, rounds=1)
    grid, names = LoopGrid(config, states, keys=keys), set()

    def listen(question: Message, answer: Message) -> Message:
        for record in answer.content.array_records.values():
            names.update((name, array.dtype) for name, array in record.items() if not name.startswith("params/"))
        return answer

    grid.fault = listen
    list(training_on(grid, config, keys).remaining_rounds())
    secret = {("measured/weighted_advantage", "|u1"), ("message", "|u1")} if selector == "fedpohcs" else set()
    secret |= {("measured/mean_return", "|u1")} if selector == "power-of-choice" else set()
    plain = {("mean_return", "<f8"), ("steps", "<i8")}
    assert {pair for pair in names if not pair[0].startswith("info/")} == secret | plain


def test_secrets_stay_on_the_node_for_its_owner_alone(config: ExperimentConfig, keys: Keys, states: Path) -> None:
    """No window of 8 bytes of a stored secret, a group key or an own table is in any message."""
    grid, seen = LoopGrid(config, states, keys=keys), b""

    def listen(question: Message, answer: Message) -> Message:
        nonlocal seen
        for message in (question, answer):
            for record in message.content.array_records.values():
                seen += b"".join(array.data for array in record.values())
        return answer

    grid.fault = listen
    list(training_on(grid, config, keys).remaining_rounds())
    from fedpohcs.runs.checkpoints import from_bytes

    files = list(states.glob(f"*/client-*/*/{FILE}"))
    assert len(files) == 6
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        kept = from_bytes(path.read_bytes()).state
        private = [kept.membership.secret, kept.membership.group_key, kept.table.pair, kept.table.value]
        for data in (array.tobytes() for array in private):
            windows = {data[start : start + 8] for start in range(0, len(data) - 7)}
            assert not any(window in seen for window in windows if len(set(window)) >= 5)


def test_a_candidate_that_is_lost_costs_an_attempt_and_is_not_selected(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, keys=keys)
    training = training_on(grid, config, keys)
    rounds = training.remaining_rounds()
    gone = 2
    grid.fault = lambda question, answer: (
        None
        if question.metadata.message_type == "evaluate" and question.metadata.dst_node_id == grid.node_of(gone)
        else answer
    )
    next(rounds)
    record = next(rounds)
    assert gone not in record.candidates
    assert set(record.asked_costs["attempts"].tolist()) == {2.0}
    assert np.isfinite(record.selection.scores["selection_metric"]).all()
    assert len(record.selection.client) == 3


def test_a_candidate_that_is_lost_after_its_upload_costs_no_attempt(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, keys=keys)
    rounds = training_on(grid, config, keys).remaining_rounds()
    next(rounds)

    def lose(question: Message, answer: Message) -> Message | None:
        sent = message_in(question)
        lost = sent and parse(sent).kind == Kind.TOTAL and question.metadata.dst_node_id == grid.node_of(2)
        return None if lost else answer

    grid.fault = lose
    record = next(rounds)
    assert 2 not in record.candidates
    assert set(record.asked_costs["attempts"].tolist()) == {1.0}
    assert len(record.selection.client) == 3


def test_an_altered_upload_makes_everyone_refuse_and_the_choice_random(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, keys=keys)

    def alter(question: Message, answer: Message) -> Message:
        sent = message_in(answer)
        if not sent or parse(sent).kind != Kind.UPLOAD or question.metadata.dst_node_id != grid.node_of(2):
            return answer
        arrays = dict(answer.content.array_records["arrays"])
        wrong = bytes([*sent[:-1], sent[-1] ^ 1])
        arrays["measured/weighted_advantage"] = Array("|u1", (len(wrong),), "fedpohcs.plain", wrong)
        content = RecordDict({"answer": answer.content["answer"], "arrays": ArrayRecord(arrays)})
        return Message(content, reply_to=question)

    grid.fault = alter
    rounds = training_on(grid, config, keys).remaining_rounds()
    next(rounds)
    with pytest.warns(UserWarning, match="every candidate refused the total.*client 1 refused; its log says why"):
        record = next(rounds)
    assert np.isnan(record.selection.scores["selection_metric"]).all()
    assert len(record.selection.client) == 3
    grid.fault = lambda question, answer: answer
    with pytest.warns(UserWarning, match="round 2 has no private scores"):  # its upload came before the fault went away
        next(rounds)


def test_an_invitation_that_comes_again_is_refused_by_a_new_process(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid, replies = LoopGrid(config, states, keys=keys), []

    def replay(question: Message, answer: Message) -> Message:
        sent = message_in(question)
        if sent and parse(sent).kind == Kind.INVITATION and not replies:
            again = RecordDict(dict(question.content.items()))
            repeated = Message(again, dst_node_id=question.metadata.dst_node_id, message_type="evaluate")
            replies.append((message_in(answer), message_in(grid.answer(repeated))))
        return answer

    grid.fault = replay
    rounds = training_on(grid, config, keys).remaining_rounds()
    next(rounds)
    ((first, second),) = replies
    assert parse(first).kind == Kind.UPLOAD
    assert second == b""


def test_a_client_that_lost_its_keys_is_left_out_and_later_taken_into_a_new_session(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    config = replace(config, rounds=7, federation=replace(config.federation, num_candidates=6))
    grid = LoopGrid(config, states, keys=keys)
    rounds = training_on(grid, config, keys).remaining_rounds()
    next(rounds)
    for path in states.glob(f"*/client-1/*/{FILE}"):
        path.unlink()
    there = [1 in record.candidates for record in rounds]
    assert there == [False, False, False, False, False, False, True]


def test_a_client_that_joins_late_is_taken_into_a_new_session(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    config = replace(config, rounds=3, federation=replace(config.federation, num_candidates=6))
    grid = LoopGrid(config, states, clients=range(5), keys=keys)
    training = training_on(grid, config, keys, Limits(startup_timeout=0.01, min_clients=5))
    rounds = training.remaining_rounds()
    next(rounds)
    grid.node_configs[77] = node_config(5, states, keys)
    assert [5 in record.candidates for record in rounds] == [False, True, True]


def test_with_too_few_clients_the_choice_is_random_and_the_log_says_so(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, clients=[0, 1], keys=keys)
    training = training_on(grid, config, keys, Limits(startup_timeout=0.01, min_clients=2))
    rounds = training.remaining_rounds()
    next(rounds)
    with pytest.warns(UserWarning, match="round 1 has no private scores"):
        record = next(rounds)
    assert set(record.selection.client.tolist()) == {0, 1} & set(record.candidates.tolist())
    assert "query.private" not in grid.counts


@pytest.mark.parametrize("others", ["session keys", "identities"])
def test_a_resumed_private_run_writes_the_same_bytes_with_other_keys(
    others: str, config: ExperimentConfig, keys: Keys, states: Path, tmp_path: Path
) -> None:
    """A fleet that is started again has new identities, too."""
    config = replace(config, rounds=3)
    run_experiment(replace(config, executor="one-by-one"), tmp_path / "whole")
    later = make_keys(tmp_path / "later", 6, ["localhost"]) if others == "identities" else keys

    def clients_with(keys: Keys) -> Any:
        grid, members = LoopGrid(config, states, keys=keys), load_members(keys.members)
        return partial(make_flower_executor, grid=grid, limits=SHORT, members=members)

    interruption = {"observers": [StopAfter(2)], "checkpoint_every": 2}
    with pytest.raises(Interrupted):
        run_experiment(config, tmp_path / "broken", make_clients=clients_with(keys), **interruption)
    resume_experiment(tmp_path / "broken", make_clients=clients_with(later))
    assert tables(tmp_path / "broken") == tables(tmp_path / "whole")


def test_a_node_without_an_identity_is_told_how_to_get_one(config: ExperimentConfig, keys: Keys, states: Path) -> None:
    with pytest.raises(UserError, match=r"identity \(=none\) must be in the node config with privacy 'masked'"):
        training_on(LoopGrid(config, states), config, keys)


def test_a_node_with_a_strange_identity_is_refused(
    config: ExperimentConfig, keys: Keys, states: Path, tmp_path: Path
) -> None:
    grid = LoopGrid(config, states, keys=keys)
    stranger = make_keys(tmp_path / "stranger", 6, ["localhost"])
    grid.node_configs[grid.node_of(4)]["identity"] = str(stranger.identity(4))
    with pytest.raises(UserError, match="is not the key of client 4 in the list of members"):
        training_on(grid, config, keys)


def test_a_server_cannot_put_its_own_client_into_a_session(
    config: ExperimentConfig, keys: Keys, states: Path, tmp_path: Path
) -> None:
    """It has another list of members, with a key of its own making for client 4; the others do not join."""
    forged = make_keys(tmp_path / "forged", 6, ["localhost"])
    mixed = tmp_path / "mixed"
    shutil.copytree(keys.folder, mixed)
    lines = keys.members.read_text().splitlines()
    lines[4] = forged.members.read_text().splitlines()[4]
    (mixed / "members").write_text("\n".join(lines))
    grid = LoopGrid(config, states, keys=keys)
    grid.node_configs[grid.node_of(4)] |= {"identity": str(forged.identity(4)), "members": str(mixed / "members")}
    rounds = training_on(grid, config, Keys(mixed)).remaining_rounds()
    next(rounds)
    with pytest.warns(UserWarning, match="round 1 has no private scores"):
        next(rounds)


def test_a_node_with_an_identity_takes_part_in_private_runs_only(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    config = replace(config, privacy="none")
    with pytest.raises(UserError, match=r"privacy \(='none'\) is not enough for client"):
        training_on(LoopGrid(config, states, keys=keys), config, keys)


BAD_LISTS = ["1 ssh-ed25519 AAAA", "-1 {key}", "1 {key}\n1 {key}", "{key}", "one {key}", "9999999999 {key}"]


@pytest.mark.parametrize("text", ["", *BAD_LISTS])
def test_a_list_of_members_that_cannot_be_right_is_refused(text: str, keys: Keys, tmp_path: Path) -> None:
    _, _, key = keys.members.read_text().splitlines()[0].partition(" ")
    (tmp_path / "members").write_text(text.format(key=key))
    if text:
        with pytest.raises(
            UserError,
            match=r"must say CLIENT-ID ssh-ed25519 KEY or CLIENT-ID ecdsa-... KEY in line \d, each client once",
        ):
            load_members(tmp_path / "members")
    else:
        assert load_members(tmp_path / "members") == {}


def test_an_identity_of_another_kind_is_refused(keys: Keys) -> None:
    with pytest.raises(UserError, match="must be an Ed25519 key in OpenSSH's format"):
        load_identity(keys.node_key(0), 0, load_members(keys.members))
