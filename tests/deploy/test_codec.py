"""Arrays on their way: type, shape and plain bytes, and nothing else is ever made into an array."""

import io

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord

from fedpohcs.core.array_rules import ArrayRule, BadReplyError
from fedpohcs.deploy.codec import PLAIN, from_record, to_record
from fedpohcs.server.replies import checked_arrays

NUMBERS = np.array([[1.5, -2.0, 3.25], [0.0, 7.0, 1e300]])
EXPECTED = {"x": ArrayRule(np.float64, (None, 3))}


def received(array: Array) -> np.ndarray:
    return checked_arrays(from_record(ArrayRecord({"x": array})), EXPECTED)["x"]


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<u8", "<i8", "|u1", "|b1"])
def test_arrays_come_back_to_the_last_bit(dtype: str) -> None:
    given = np.frombuffer(np.random.default_rng(0).bytes(96), np.uint8).view(dtype if dtype != "|b1" else "|u1")
    given = (given % 2).astype(bool) if dtype == "|b1" else given
    for array in (given, given[::2], given.reshape(2, -1).T, given[:0], given[0]):
        expected = {"x": ArrayRule(array.dtype, array.shape, finite=False)}
        again = checked_arrays(from_record(to_record({"x": array})), expected)["x"]
        np.testing.assert_array_equal(again, array, strict=True)


def test_an_array_is_laid_out_as_plain_bytes_in_c_order() -> None:
    (sent,) = to_record({"x": np.asfortranarray(NUMBERS)}).values()
    assert (sent.dtype, tuple(sent.shape), sent.stype, sent.data) == ("<f8", (2, 3), PLAIN, NUMBERS.tobytes())


def numpy_file(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


FOREIGN = {
    "the layout of a NumPy file": Array("<f8", (2, 3), "numpy.ndarray", numpy_file(NUMBERS)),
    "another layout with the right bytes": Array("<f8", (2, 3), "numpy.ndarray", NUMBERS.tobytes()),
    "a layout that calls itself by the type": Array("|O", (2, 3), "<f8", NUMBERS.tobytes()),
    "pickled objects": Array("|O", (2, 3), "numpy.ndarray", numpy_file(NUMBERS.astype(object))),
    "objects": Array("|O", (2, 3), PLAIN, NUMBERS.tobytes()),
    "big-endian numbers": Array(">f8", (2, 3), PLAIN, NUMBERS.astype(">f8").tobytes()),
    "a type by another name": Array("float64", (2, 3), PLAIN, NUMBERS.tobytes()),
    "fields for numbers": Array("[('a', '<f8')]", (2, 3), PLAIN, NUMBERS.tobytes()),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_any_other_layout_or_type_is_refused_before_an_array_is_made(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*rest: object, **options: object) -> None:
        raise AssertionError("an array was made of what was to be refused")

    for name in ("frombuffer", "load", "fromstring"):
        monkeypatch.setattr(np, name, made)
    monkeypatch.setattr(Array, "numpy", made)
    with pytest.raises(BadReplyError, match=r"^x is of type") as refused:
        received(FOREIGN[kind])
    assert refused.value.rule == "type"
