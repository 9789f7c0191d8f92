"""Plans that an operator signs."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpohcs.core.presets import preset
from fedpohcs.privacy.errors import RefusedError
from fedpohcs.privacy.plan import DAY, Plan, members_digest, new_plan, read_plan, sign_plan

OPERATOR = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = OPERATOR.public_key().public_bytes_raw()
PLAN = Plan(b"r" * 32, preset("tabular"), b"m" * 32, expires=1000)


def test_a_signed_plan_is_read_back() -> None:
    assert read_plan(sign_plan(PLAN, OPERATOR), PUBLIC, now=999) == PLAN


def test_an_expired_plan_is_refused() -> None:
    with pytest.raises(RefusedError, match="expired"):
        read_plan(sign_plan(PLAN, OPERATOR), PUBLIC, now=1000)


def test_a_plan_of_another_operator_is_refused() -> None:
    with pytest.raises(RefusedError, match="not signed"):
        read_plan(sign_plan(PLAN, Ed25519PrivateKey.generate()), PUBLIC, now=0)


def test_no_byte_of_a_plan_can_be_changed() -> None:
    data = sign_plan(PLAN, OPERATOR)
    for place in range(0, len(data), 7):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(RefusedError):
            read_plan(changed, PUBLIC, now=0)


@pytest.mark.parametrize("cut", [0, 5, 20, 40, 200])
def test_a_plan_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(RefusedError):
        read_plan(sign_plan(PLAN, OPERATOR)[:cut], PUBLIC, now=0)


@pytest.mark.parametrize("text", [b"{}", b"[]", b"{", b'{"run": 1, "members": "", "expires": 1, "config": {}}'])
def test_a_signed_text_that_is_no_plan_is_refused(text: bytes) -> None:
    signature = OPERATOR.sign(b"fedpohcs plan 1\n" + text).hex().encode()
    with pytest.raises(RefusedError, match="read"):
        read_plan(b"fedpohcs plan 1\nsignature: " + signature + b"\n" + text, PUBLIC, now=0)


def test_new_plans_name_different_runs_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 50.5)
    plans = [new_plan(PLAN.config, {0: b"k" * 32}, days=2) for _ in range(2)]
    assert plans[0].run != plans[1].run
    assert plans[0].expires == 50 + 2 * DAY


def test_the_digest_tells_lists_of_members_apart() -> None:
    one, other = b"a" * 32, b"b" * 32
    digests = {
        members_digest(members) for members in ({0: one}, {1: one}, {0: other}, {0: one, 1: other}, {0: other, 1: one})
    }
    assert len(digests) == 5
    assert members_digest({1: other, 0: one}) == members_digest({0: one, 1: other})
