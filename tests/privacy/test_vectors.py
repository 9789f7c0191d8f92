"""The specification's test vectors are what the code computes."""

from pathlib import Path

import numpy as np

from fedpohcs.core.config import ProtectionConfig
from fedpohcs.core.types import WeightedAdvantage
from fedpohcs.privacy.masking import Lanes, keystream
from fedpohcs.privacy.sealing import pair_cipher, seal
from fedpohcs.privacy.sketch import count_sketch, sketch_seed
from fedpohcs.privacy.terms import Ask, Invitation, Parameters, session_name

SPECIFICATION = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
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
        keystream(ZEROS, b"mask", context, 16).tobytes().hex(),
        ", ".join(map(str, lanes.codes.values())),
        str(lanes.checksum(np.arange(parameters.num_slots))),
        ", ".join(map(str, parameters.cohort(7, range(64)))),
        seal(pair_cipher(ZEROS, context), 2, b"\1\5\0\0\0").hex(),
    )
    assert [vector for vector in shown if vector not in SPECIFICATION] == []
