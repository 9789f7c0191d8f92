"""Bytes that the messages of a run hold, as if every client were on a machine of its own.

The content of messages is counted: weights as they are stored, and what candidates uploaded in phase one. Headers of
the transport are not counted. A part whose size is unknown is NaN, and so is every sum that contains it.
Pooled training sends episodes, which are not counted.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedpohcs.core.errors import UserError
from fedpohcs.core.registries import OPTIMISERS
from fedpohcs.core.types import Vector
from fedpohcs.runs.checkpoints import stored_weight_bytes
from fedpohcs.runs.layout import FILTER_PREFIX, POLICY_ROUND
from fedpohcs.runs.loading import Run
from fedpohcs.runs.policy import array_sizes
from fedpohcs.server.optimisers import ServerOptimiser, make_optimiser

STEP_COUNT_BYTES = RETURN_BYTES = 8
NOTHING_ELSE = ServerOptimiser._field_defaults["sends"]
ASKED_METRICS = ("upload_bytes", "download_bytes", "attempts", "privacy_loss")


class Traffic(NamedTuple):
    """Bytes of every round, [R + 1], down to the clients and up to the server together."""

    measure: Vector  # the policy to each client that is asked, and its reply
    train: Vector  # the policy, and what the server optimiser adds, to each client that trains; its weights and steps
    evaluate: Vector  # the policy to all clients, and their returns; used for reports, not for learning

    @property
    def learning(self) -> Vector:
        """Bytes that the algorithm itself needs. Evaluation is left out: only reports use it."""
        return self.measure + self.train


def traffic(run: Run) -> Traffic:
    """The messages of a run, round by round. Paper: Alg. 3."""
    weights = weight_bytes(run)
    num_selected = np.array([len(ids.split()) for ids in run.rounds["selected"]], float)
    evaluated = run.clients["round"][run.clients["role"] == "evaluated"]
    num_evaluated = np.bincount(evaluated, minlength=len(num_selected)).astype(float)
    return Traffic(
        measure=_measure_bytes(run, weights),
        train=num_selected * (np.nan if run.config.federation.pooled else _exchange_bytes(run, weights)),
        evaluate=num_evaluated * (weights + RETURN_BYTES),
    )


def _exchange_bytes(run: Run, weights: float) -> float:
    """What a client that trains receives and sends; some server optimisers send one more array per weight."""
    name = run.config.federation.server_optimiser
    constant = replace(run.config.server_optimiser, learning_rate_decay=1.0)  # a decay changes what `sends` is
    sends = make_optimiser(str(name), constant).sends if name in OPTIMISERS else NOTHING_ELSE
    return weights * (2 if sends is NOTHING_ELSE else 3) + STEP_COUNT_BYTES


def _measure_bytes(run: Run, weights: float) -> Vector:
    num_rounds = len(run.rounds["round"])
    table = run.clients
    asked = (table["role"] == "asked") & (table["metric"] == "upload_bytes")
    if not asked.any() and (table["role"] == "candidate").any():
        return np.full(num_rounds, np.nan)  # an old run, which did not record uploads
    num_asked = np.bincount(table["round"][asked], minlength=num_rounds).astype(float)
    messages = (table["role"] == "asked") & np.isin(table["metric"], ("upload_bytes", "download_bytes"))
    return num_asked * weights + np.bincount(table["round"][messages], table["value"][messages], minlength=num_rounds)


def phase_one(run: Run) -> dict[str, float]:
    """Costs of phase one, by name; empty if no client was asked, or if bytes were not recorded."""
    asked = run.clients["role"] == "asked"
    columns = {name: run.clients["value"][asked & (run.clients["metric"] == name)] for name in ASKED_METRICS}
    if not len(columns["upload_bytes"]):
        return {}
    down = columns["download_bytes"] if len(columns["download_bytes"]) else np.zeros(1)
    seconds = run.timings["measure"][1:] + run.timings["select"][1:]
    costs = {
        "clients asked per round": len(columns["upload_bytes"]) / max(len(run.rounds["round"]) - 1, 1),
        "kilobytes up, per client and round": columns["upload_bytes"].mean() / 1000,
        "kilobytes down, per client and round": (weight_bytes(run) + down.mean()) / 1000,
        "seconds per round (measure and select)": float(np.median(seconds)),
    }
    if len(columns["attempts"]):
        costs["attempts per round"] = columns["attempts"].mean()
    if len(columns["privacy_loss"]):
        costs["largest privacy loss (epsilon)"] = columns["privacy_loss"].max()
    return costs


def weight_bytes(run: Run) -> float:
    """Size of all weights that clients and server exchange, as stored; NaN before anything is stored."""
    stored = run.path / "policy.npz"
    if not stored.is_file():
        return stored_weight_bytes(run.path)
    try:
        sizes = array_sizes(stored)
    except (OSError, ValueError) as error:
        raise UserError(f"run (={str(run.path)!r}) has a policy.npz that cannot be read: {error}") from error
    sent = (size for name, size in sizes.items() if name != POLICY_ROUND and not name.startswith(FILTER_PREFIX))
    return float(sum(sent))
