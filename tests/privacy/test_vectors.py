"""The specification's test vectors are what the code computes."""

import hmac
import struct
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.privacy.choice import choose, common_coin
from fedpohcs.privacy.masking import Lanes, keystream, round_keys, stream
from fedpohcs.privacy.sealing import seal
from fedpohcs.privacy.sketch import count_sketch, sketch_seed
from fedpohcs.privacy.terms import Ask, Invitation, Parameters, session_name

SPECIFICATION = (Path(__file__).parents[2] / "docs" / "privacy-protocol.md").read_text(encoding="utf-8")
ZEROS = bytes(32)


def test_the_specification_shows_what_the_code_computes() -> None:
    ask = Ask(rounds=150, seed=0, num_candidates=18, num_selected=6, weights=(1 / 64,) * 64)
    parameters = Parameters("masked", ZEROS, ProtectionConfig(), ask)
    session = session_name(parameters, b"")
    context = Invitation(7, (0, 1, 2)).context(session, ZEROS)
    seed = sketch_seed(ZEROS, 7)
    table = WeightedAdvantage(np.array([1, 2, 3], np.uint64), np.array([1.0, 2.0, 4.0]))
    sketch = count_sketch(table, seed, parameters.num_slots)
    slots = ", ".join(f"slot {slot}: {sketch[slot]:g}".replace("-", "−") for slot in np.flatnonzero(sketch))
    lanes = Lanes(ZEROS, context, (0, 1, 2), parameters.num_slots)
    shown = (
        parameters.digest.hex(),
        session.hex(),
        context.hex(),
        f"{seed:016x}",
        slots,
        keystream(ZEROS, b"blind", context, 16).tobytes().hex(),
        ", ".join(map(str, lanes.codes.values())),
        str(lanes.checksum(np.arange(parameters.num_slots))),
        ", ".join(map(str, parameters.cohort(7, range(64)))),
        round_keys(ZEROS, context).mask.hex(),
        seal(round_keys(ZEROS, context).seal, 2, b"\1\5\0\0\0").hex(),
    )
    assert [vector for vector in shown if vector not in SPECIFICATION] == []


def test_a_stream_is_aes_in_counter_mode_from_the_second_block() -> None:
    key = bytes(range(32))
    cipher = Cipher(algorithms.AES(key), modes.CTR((2).to_bytes(16, "big"))).encryptor()
    assert stream(key, 1000).tobytes() == cipher.update(bytes(1000))


def test_the_keys_of_a_round_are_the_halves_of_one_hmac() -> None:
    whole = hmac.digest(ZEROS, b"round" + bytes(range(32)), "sha512")
    assert b"".join(round_keys(ZEROS, bytes(range(32)))) == whole


def test_the_specification_draws_as_the_code_does() -> None:
    """18 clients with numbers 1 to 18, the nonces of all being two halves, and then client 3 with a number of 200."""
    ask = Ask(150, 0, 18, 6, (1 / 64,) * 64, "number", "proportional")
    parameters = Parameters("masked", ZEROS, ProtectionConfig(), ask)
    values = {n: b"\1" + struct.pack("<f2d", n + 1, 0.5, 0.5) for n in range(18)}
    shown = [common_coin(values, 7).to_bytes(32, "little").hex(), choose(values, parameters, 7)]
    values[3] = b"\1" + struct.pack("<f2d", 200, 0.5, 0.5)
    shown.append(choose(values, parameters, 7))
    texts = [x if isinstance(x, str) else ", ".join(map(str, x.clients)) for x in shown]
    assert [text for text in texts if text not in SPECIFICATION] == []
    assert shown[1].weights == (1.0,) * 6 and sorted(shown[2].weights)[-2:] == [1.0, 6.0]
