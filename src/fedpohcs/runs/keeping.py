"""Which policies a run keeps, and under which names: the last, the best by a column of rounds.csv, and every k-th."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fedpohcs.core.errors import UserError, require_known
from fedpohcs.runs.layout import SCORES

LAST, BEST = "last", "best"
LAST_FILE, FOLDER = "policy.npz", "policies"
DEFAULT_SCORE = "mean_return"
_WANTED = re.compile(r"best(?::(?P<score>\w+))?|every:(?P<step>[1-9]\d{0,8})")


class Keep(NamedTuple):
    """What to keep besides the last policy."""

    best: tuple[str, ...] = (DEFAULT_SCORE,)  # scores; the policy with the highest of each
    every: int | None = None  # the policies of every k-th round


KEEP_BEST = Keep()


def parse_keep(text: str) -> Keep:
    """Read a list such as `best,best:worst_tenth,every:20`; empty: nothing but the last.

    Example:
        >>> parse_keep("best,best:worst_tenth,every:20")
        Keep(best=('mean_return', 'worst_tenth'), every=20)
    """
    best, every = [], None
    for part in filter(None, map(str.strip, text.split(","))):
        found = _WANTED.fullmatch(part)
        if found is None:
            raise UserError(f"keep (={text!r}) must be best, best:COLUMN and every:NUMBER, joined by commas.")
        if found["step"]:
            every = int(found["step"])
            continue
        score = found["score"] or DEFAULT_SCORE
        require_known("keep", score, SCORES)
        best.append(score)
    return Keep(tuple(dict.fromkeys(best)), every)


def policy_file(which: str) -> str:
    """Where a run folder has the policy that is `last`, `best`, `best:COLUMN`, or of a round.

    Example:
        >>> [policy_file(which) for which in ("last", "best", "best:worst_tenth", "120")]
        ['policy.npz', 'policies/best.npz', 'policies/best-worst_tenth.npz', 'policies/round-000120.npz']
    """
    if which == LAST:
        return LAST_FILE
    if which.isdecimal():
        return f"{FOLDER}/round-{int(which):06d}.npz"
    return f"{FOLDER}/{which.replace(':', '-').removesuffix(f'-{DEFAULT_SCORE}')}.npz"


class Keeper:
    """Decides after every round which of the kept policies the new one replaces."""

    def __init__(
        self, keep: Keep, rounds: Sequence[Mapping[str, Any]] = (), compared: Collection[int] | None = None
    ) -> None:
        """Start, or go on after some rounds.

        Args:
            keep: what to keep.
            rounds: the rows of the rounds that a resumed run has done.
            compared: rounds among which the best is found, because they evaluate all clients and others a sample: the
                lowest of many returns is no match for the lowest of few. None: all rounds.
        """
        self.keep, self._best, self.compared = keep, dict.fromkeys(keep.best, -math.inf), compared
        for row in rounds:
            self.names(row)

    def names(self, row: Mapping[str, Any]) -> list[str]:
        """The names under which the policy of this round is stored; of equal ones the first stays the best."""
        names = []
        for score, best in self._best.items():
            value = row.get(score, math.nan)  # runs of release 0.1 have fewer columns
            comparable = self.compared is None or row["round"] in self.compared
            if comparable and value > best:  # never for NaN: without an evaluation there is nothing to compare
                self._best[score] = value
                names.append(BEST if score == DEFAULT_SCORE else f"{BEST}:{score}")
        if self.keep.every is not None and row["round"] % self.keep.every == 0:
            names.append(str(row["round"]))
        return names
