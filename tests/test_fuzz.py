"""Damaged and hostile files and messages: whatever they hold, the answer is a documented error and no traceback.

Bytes of real files and messages are flipped, cut, repeated and replaced by words that parsers stumble over. Seeds are
fixed. By default 600 cases are tried, in the slow set 12,000.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.rendering import to_latex, to_markdown
from fedpohcs.analysis.report import render_report
from fedpohcs.analysis.tables import statistics_tables, to_csv
from fedpohcs.core.array_rules import BadReplyError
from fedpohcs.core.config import flatten, from_dict, to_dict
from fedpohcs.core.errors import UserError
from fedpohcs.core.presets import preset
from fedpohcs.core.toml import read_toml, to_toml
from fedpohcs.runs.checkpoints import checkpoint_files, latest_checkpoint, stored_weight_bytes
from fedpohcs.runs.export import load_run_policy
from fedpohcs.runs.loading import read_config
from fedpohcs.runs.onnx import to_onnx
from fedpohcs.runs.policy import load_policy

STORED = Path(__file__).parent / "runs" / "stored" / "resumed-masked" / "stopped"
WORDS = [
    *(b"-1", b"0", b"999999", b"1099511627776", b"9" * 5000, b"1e999", b"NaN", b"-Infinity", b"null", b"true", b"{}"),
    *(b"[]", b'""', b"[" * 3000, b'{"a":' * 3000, b"a." * 3000, b"\n", b",", b"\x00", b"\xff\xfe", b"\x1b[2J", b'"'),
    *(b"|O", b"<f8", b"\\ud800", b"0x" + b"f" * 5000, b"__class__", b" ", b"-", b"=1+1", b"<!--<script>", b"$x"),
]
TARGETS = 10
CASES = pytest.mark.parametrize(
    "number", [500 // TARGETS, pytest.param(10_000 // TARGETS, marks=pytest.mark.slow)], ids=["few", "many"]
)


def altered(data: bytes, generator: np.random.Generator) -> bytes:
    """The bytes with one to three mistakes in them."""
    changed = bytearray(data)
    for _ in range(generator.integers(1, 4)):
        begin = int(generator.integers(len(changed) + 1))
        end = min(len(changed), begin + int(generator.integers(1, 40)))
        kind = generator.integers(5)
        if kind == 0 and begin < len(changed):
            changed[begin] ^= 1 << int(generator.integers(8))
        elif kind == 1:
            del changed[begin:end]
        elif kind == 2:
            changed[begin:begin] = changed[begin:end]
        elif kind == 3:
            changed[begin:end] = WORDS[generator.integers(len(WORDS))]
        else:
            _replace_number(changed, begin, WORDS[generator.integers(len(WORDS))])
    return bytes(changed)


def _replace_number(changed: bytearray, begin: int, word: bytes) -> None:
    """Replace the next run of digits after `begin`, so that the file still parses."""
    while begin < len(changed) and not chr(changed[begin]).isdigit():
        begin += 1
    end = begin
    while end < len(changed) and chr(changed[end]).isdigit():
        end += 1
    changed[begin:end] = word


def cases(number: int, seed: int) -> Iterator[np.random.Generator]:
    return (np.random.default_rng([seed, case]) for case in range(number))


def attempt(read: Callable[[], Any], *allowed: type[Exception]) -> bool:
    """Whether `read` refuses with one of its documented errors. Warnings of NumPy are none of its errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read()
        except allowed:
            return True
    return False


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of a real run, with checkpoint and policy."""
    return shutil.copytree(STORED, tmp_path / "run")


def analyse(run: Path) -> None:
    """All that table and report read."""
    groups = load_groups([run])
    tables = statistics_tables(groups)
    for text in (to_markdown(tables), to_latex(tables), to_csv(groups), render_report(groups, "title")):
        text.encode()


def export(run: Path) -> None:
    to_onnx(load_run_policy(run), 0)


@CASES
@pytest.mark.parametrize("name", ["config.json", "origin.json", "rounds.csv", "clients.csv", "timings.csv"])
def test_a_damaged_run_folder_is_analysed_or_refused(name: str, number: int, run: Path) -> None:
    whole, refused = (run / name).read_bytes(), 0
    for generator in cases(number, seed=1):
        (run / name).write_bytes(altered(whole, generator))
        refused += attempt(lambda: analyse(run), UserError)
    assert refused > number // 20
    (run / name).write_bytes(whole)
    assert not attempt(lambda: analyse(run), UserError)


@CASES
def test_a_damaged_policy_is_exported_or_refused(number: int, run: Path) -> None:
    stored = run / "policy.npz"
    whole, refused = stored.read_bytes(), 0
    for generator in cases(number, seed=2):
        stored.write_bytes(altered(whole, generator))
        refused += attempt(lambda: export(run), UserError)
        attempt(lambda: load_policy(stored), ValueError)
        attempt(lambda: analyse(run), UserError)
    assert refused > number // 2


def with_checksum(body: bytes) -> bytes:
    return f"fedpohcs-checkpoint-1 {hashlib.sha256(body).hexdigest()} {len(body)}\n".encode() + body


@CASES
def test_a_checkpoint_with_wrong_content_and_a_sound_checksum_is_read_or_refused(number: int, run: Path) -> None:
    (path,), config, refused = checkpoint_files(run), read_config(run), 0
    head, _, arrays = path.read_bytes().partition(b"\n")[2].partition(b"\n")
    for generator in cases(number, seed=3):
        path.write_bytes(with_checksum(altered(head, generator) + b"\n" + arrays))
        refused += attempt(lambda: latest_checkpoint(run, config, 1), UserError)
        stored_weight_bytes(run)
    assert refused > number // 2


@CASES
def test_a_damaged_config_file_is_read_or_refused(number: int, tmp_path: Path) -> None:
    whole, path, refused = to_toml(preset("mountain-cars")).encode(), tmp_path / "exp.toml", 0
    for generator in cases(number, seed=4):
        path.write_bytes(altered(whole, generator))
        refused += attempt(lambda: read_toml(path), UserError)
    assert refused > number // 10


@CASES
def test_a_damaged_message_of_private_selection_is_answered_or_refused(number: int) -> None:
    pytest.importorskip("cryptography")
    from fedpohcs.privacy.errors import RefusedError
    from privacy.federation import IDS, Federation

    draw = {"form": "number", "prefers": "proportional"}
    makers = (lambda: Federation(4), lambda: Federation(4, IDS), lambda: Federation(4, IDS, **draw))
    refused = 0
    for place, generator in enumerate(cases(number, seed=5)):
        federation = makers[place % 3]()
        federation.numbers = dict.fromkeys(range(4), 1.0)
        wrong, seen = int(generator.integers(40)), 0

        def tamper(client: int, message: bytes, generator: Any = generator, wrong: int = wrong) -> bytes:
            nonlocal seen
            seen += 1
            return altered(message, generator) if seen == wrong else message

        federation.down = federation.up = tamper
        refused += attempt(lambda: federation.start().select(), RefusedError)  # noqa: B023
        refused += bool(federation.refusals or federation.server.refusals)
    assert refused > number // 3


@CASES
def test_a_damaged_plan_is_read_or_refused(number: int) -> None:
    """As it arrives, and with a damage that the operator's own key has signed."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fedpohcs.privacy.errors import RefusedError
    from fedpohcs.privacy.plan import LABEL, TITLE, new_plan, read_plan, server_plan, sign_plan

    operator, refused = Ed25519PrivateKey.generate(), 0
    public, plan = operator.public_key().public_bytes_raw(), new_plan(preset("tabular"), {0: bytes(32)}, 1)
    for generator in cases(number, seed=8):
        damaged = altered(sign_plan(plan, operator), generator)
        try:
            assert read_plan(damaged, public) == plan  # such as a letter of the signature in upper case
        except RefusedError:
            refused += 1
        attempt(lambda: server_plan(damaged), RefusedError)  # noqa: B023
        text = altered(plan.text(), generator)
        signature = operator.sign(TITLE + b"\n" + text).hex().encode()
        signed = b"\n".join((TITLE, LABEL + signature, text))
        refused += attempt(lambda: read_plan(signed, public), RefusedError)  # noqa: B023
    assert refused > 1.4 * number


@CASES
def test_a_damaged_ledger_is_read_or_refused(number: int, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from fedpohcs.privacy.errors import RefusedError
    from fedpohcs.privacy.ledger import opened_ledger

    path, refused = tmp_path / "identity.ledger", 0
    path.touch()
    with opened_ledger(path, bytes(32)) as ledger:
        ledger.open_session()
        for round_number in range(4):
            ledger.ask(round_number, bytes(32), bytes(32))
            ledger.answer(round_number, "", lambda: bytes(4))
    whole = path.read_bytes()

    def reopen() -> None:
        with opened_ledger(path, bytes(32)) as ledger:
            assert ledger.latest <= 3

    for generator in cases(number, seed=9):
        path.write_bytes(altered(whole, generator))
        refused += attempt(reopen, RefusedError)
    assert refused > number // 2


@CASES
def test_a_damaged_array_of_a_flower_message_is_decoded_or_refused(number: int) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord

    from fedpohcs.deploy.codec import PLAIN, extra_from_record, params_from_record

    template = {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}
    sizes, refused = [-1, 0, 1, 2, 3, 6, 2**31, 2**62, 2**200], 0

    def damaged(array: np.ndarray, generator: np.random.Generator) -> Array:
        kind, shape, layout, data = array.dtype.str, array.shape, PLAIN, array.tobytes()
        if (choice := generator.integers(4)) == 0:
            kind = altered(kind.encode(), generator).decode("latin-1")
        elif choice == 1:
            shape = tuple(sizes[place] for place in generator.integers(len(sizes), size=generator.integers(4)))
        elif choice == 2:
            layout = altered(layout.encode(), generator).decode("latin-1")
        else:
            data = altered(data, generator)
        return Array(kind, shape, layout, data)

    for generator in cases(number, seed=6):
        arrays = {name: damaged(array, generator) for name, array in template.items()}
        refused += attempt(lambda: params_from_record(ArrayRecord(arrays), template), BadReplyError)  # noqa: B023
        attempt(lambda: extra_from_record(ArrayRecord(arrays)), BadReplyError)  # noqa: B023
    assert refused > number // 2


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([2**31, 2**40, -(2**70), 10**400, 0]),
        st.floats(),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
KEYS = sorted(flatten(to_dict(preset("hongkong"))) | flatten(to_dict(preset("tabular"))))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.sampled_from([*KEYS, "learner", "scenario", "other", "env", "traffic"]), anything, max_size=3)
)
def test_a_config_of_any_values_is_made_or_refused(changes: dict[str, Any]) -> None:
    values: dict[str, Any] = {"world": "a world that is not here"} if len(changes) == 2 else {}
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        place = values.setdefault(section, {}) if section else values
        if isinstance(place, dict):
            place[name] = value
    attempt(lambda: json.dumps(to_dict(from_dict(values))), UserError)
