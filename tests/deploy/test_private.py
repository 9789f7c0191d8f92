"""Private selection over Flower's messages: the same scores as in one process, and keys that never leave a node."""

import re
import shutil
import warnings
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
from fedpohcs.deploy.executor import FlowerExecutor, Limits
from fedpohcs.deploy.keys import Keys, load_identity, load_members, make_keys
from fedpohcs.deploy.member import FILE
from fedpohcs.deploy.private import make_flower_executor
from fedpohcs.privacy.messages import Kind, parse
from fedpohcs.runs.experiment import Training, resume_experiment, run_experiment, start_training

from .loop import LoopGrid, give_plan, node_config
from .test_executor import SHORT, Interrupted, StopAfter, assert_same, in_process, tables

FEDERATION = FederationConfig(num_clients=6, num_candidates=5, num_selected=3, evaluation_episodes=8)
COHORT = ProtectionConfig(sketch_size=1024, min_cohort=3)
SCORES = replace(COHORT, release="scores")

pytestmark = pytest.mark.usefixtures("no_sleep")


@pytest.fixture
def config() -> ExperimentConfig:
    return replace(preset("tabular"), rounds=2, federation=FEDERATION, privacy="masked", protection=COHORT)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("fleet") / "keys", 6, ["localhost"])


def clients_on(grid: LoopGrid, config: ExperimentConfig, keys: Keys, limits: Limits = SHORT) -> Any:
    """With a new plan, which the nodes get as well."""
    plan = give_plan(grid, config, keys)
    members = load_members(keys.members)
    return partial(make_flower_executor, grid=grid, limits=limits, members=members, plan=plan)


def training_on(grid: LoopGrid, config: ExperimentConfig, keys: Keys, limits: Limits = SHORT) -> Training:
    return start_training(config, clients_on(grid, config, keys, limits))


def assert_same_privately(one: RoundRecord, other: RoundRecord) -> None:
    assert_same(one, other)
    jax.tree.map(np.testing.assert_array_equal, one.asked_costs, other.asked_costs)


def message_in(message: Message) -> bytes:
    """The protocol's message that a message of Flower carries."""
    records = message.content.array_records
    arrays = records.get("message") or records.get("arrays", {})
    names = ("message", "measured/weighted_advantage")
    return next((array.data for name, array in arrays.items() if name in names), b"")


@pytest.mark.parametrize(
    ("selector", "protection"),
    [
        ("fedpohcs", COHORT),
        ("fedpohcs", SCORES),
        ("power-of-choice", COHORT),
        ("power-of-choice", SCORES),
        ("gradient-norm", COHORT),
        ("fedavg", COHORT),
    ],
)
def test_a_private_run_over_messages_equals_one_in_process(
    selector: str, protection: ProtectionConfig, config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    config = replace(config, selector=selector, protection=protection)
    there, here = training_on(LoopGrid(config, states, keys=keys), config, keys), in_process(config)
    for one, other in zip(there.remaining_rounds(), here.remaining_rounds(), strict=True):
        assert_same_privately(one, other)
    jax.tree.map(np.testing.assert_array_equal, there.state.params, here.state.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": "he"}, "privacy (='he') is for simulations: a server that alters ciphertexts"),
        ({"selector": "fedpohcs-one-phase", "protection": SCORES}, "lets the server name the cohorts"),
    ],
)
def test_what_is_safe_in_simulations_only_is_refused_by_server_and_nodes(
    changes: dict, message: str, config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    config = replace(config, **changes)
    grid = LoopGrid(config, states, keys=keys)
    with pytest.raises(UserError, match=re.escape(message)):
        training_on(grid, config, keys)
    with pytest.raises(UserError, match=re.escape(message)):  # a server that does not refuse
        FlowerExecutor(config, grid=grid, limits=SHORT)


def test_a_private_round_costs_two_more_messages_to_each_candidate(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, keys=keys)
    list(training_on(grid, config, keys).remaining_rounds())
    session = 6 + 6 + 5  # hello, roster, and the group key to all but the one that made it
    assert grid.counts == {"query.hello": 6, "query.private": session + 2 * 2 * 5, "evaluate": 3 * 6, "train": 2 * 3}


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
    grid, names, kinds = LoopGrid(config, states, keys=keys), set(), set()

    def listen(question: Message, answer: Message) -> Message:
        for record in answer.content.array_records.values():
            names.update((name, array.dtype) for name, array in record.items() if not name.startswith("params/"))
            kinds.update(parse(array.data).kind for array in record.values() if array.dtype == "|u1")
        return answer

    grid.fault = listen
    list(training_on(grid, config, keys).remaining_rounds())
    metric = {"fedpohcs": "weighted_advantage", "power-of-choice": "mean_return"}[selector]
    secret, plain = {(f"measured/{metric}", "|u1"), ("message", "|u1")}, {("mean_return", "<f8"), ("steps", "<i8")}
    assert {pair for pair in names if not pair[0].startswith("info/")} == secret | plain
    assert Kind.SCORE not in kinds and Kind.CHOICE in kinds


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


def test_a_round_with_a_lost_candidate_selects_at_random_and_the_next_one_goes_on_without_it(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, keys=keys)
    rounds = training_on(grid, replace(config, rounds=3), keys).remaining_rounds()
    gone = 2
    next(rounds)
    grid.fault = lambda question, answer: None if question.metadata.dst_node_id == grid.node_of(gone) else answer
    with pytest.warns(UserWarning, match="round 1 has no private selection.*lost before the choice: client 2"):
        assert len(next(rounds).selection.client) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        record = next(rounds)
    assert gone not in record.candidates and len(record.selection.client) == 3


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
    with pytest.warns(UserWarning, match="round 1 has no private selection"):
        next(rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        there = [1 in record.candidates for record in rounds]
    assert there == [False, False, False, False, True, True]


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
    assert grid.counts["query.private"] == (5 + 5 + 4) + (6 + 6 + 5) + 2 * (5 + 6 + 6)


def test_with_too_few_clients_the_choice_is_random_and_the_log_says_so(
    config: ExperimentConfig, keys: Keys, states: Path
) -> None:
    grid = LoopGrid(config, states, clients=[0, 1], keys=keys)
    training = training_on(grid, config, keys, Limits(startup_timeout=0.01, min_clients=2))
    rounds = training.remaining_rounds()
    next(rounds)
    with pytest.warns(UserWarning, match="round 1 has no private selection"):
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
        if keys not in made:  # a run that goes on has the same plan
            made[keys] = clients_on(LoopGrid(config, states, keys=keys), config, keys)
        return made[keys]

    made: dict[Keys, Any] = {}
    interruption = {"observers": [StopAfter(2)], "checkpoint_every": 2}
    with pytest.raises(Interrupted):
        run_experiment(config, tmp_path / "broken", make_clients=clients_with(keys), **interruption)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a repeated round is answered as before
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
    with pytest.raises(UserError, match="the plan has another list of members"):
        training_on(grid, config, Keys(mixed))
    # A server that lets the others have the plan of the honest list has no use for its own client.
    plan, members = give_plan(grid, config, keys), load_members(mixed / "members")
    with pytest.raises(UserError, match="plan: the plan has another list of members"):
        make_flower_executor(config, grid=grid, limits=SHORT, members=members, plan=plan)


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
