"""Whom does federating help? Returns of every client beside those of the same client that trained alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedpohcs.analysis.groups import Group
from fedpohcs.core.types import Vector
from fedpohcs.runs.loading import Run


class Gain(NamedTuple):
    """How much more clients get under a scheme than alone."""

    label: str
    scheme: str  # the label of its group
    by_seed: Vector  # [seeds, N]; NaN where a client was not evaluated

    @property
    def by_client(self) -> Vector:
        """The mean over seeds, [N]."""
        return self.by_seed.mean(axis=0)


def gains_over_local(groups: Sequence[Group]) -> list[Gain]:
    """The gains of all schemes of one world and level; none without runs in which every client is alone."""
    alone = next((group for group in groups if is_alone(group)), None)
    if alone is None:
        return []
    base = {run.config.seed: run.final_returns for run in alone.runs}
    return [gain for group in groups if group is not alone for gain in _gains(group, base)]


def is_alone(group: Group) -> bool:
    """Whether the clients of these runs share nothing."""
    return group.runs[0].config.federation.personal == "all"


def _gains(group: Group, base: dict[int, Vector]) -> list[Gain]:
    """The gain of the shared policy and, if the clients were fine-tuned, of what they then had."""
    runs = [run for run in group.runs if run.config.seed in base]
    tuned = [run for run in runs if run.finetuned_returns is not None]
    found = [(group.label if not tuned else f"{group.label}, before", [run.final_returns for run in runs], runs)]
    found.append((f"{group.label}, after", [_tuned(run) for run in tuned], tuned))
    return [
        Gain(label, group.label, np.array(returns) - np.array([base[run.config.seed] for run in some]))
        for label, returns, some in found
        if some
    ]


def _tuned(run: Run) -> Vector:
    assert run.finetuned_returns is not None
    return run.finetuned_returns[: run.config.federation.num_clients]


def gain_figures(gain: Vector) -> dict[str, float]:
    """What the gains of all clients of one run say, by name; NaN if no client has one."""
    known = gain[np.isfinite(gain)]
    if not len(known):
        known = np.array([np.nan])
    return {
        "share of clients above training alone": float((known > 0).mean()) if np.isfinite(known[0]) else np.nan,
        "gain of a client, mean": float(known.mean()),
        "gain of the client that loses most": float(known.min()),
        "gain of the client that gains most": float(known.max()),
    }
