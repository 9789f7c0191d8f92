"""The default observation filter of a fleet: the statistics of all clients together, for devices that never trained.

Without privacy clients send their statistics with every evaluation. With privacy the server gets their masked sum, once
at the end of the run.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.errors import UserError
from fedpohcs.core.files import make_private_folder, replace_file
from fedpohcs.deploy.device import STATISTICS, kept_statistics
from fedpohcs.privacy.errors import RefusedError, demand
from fedpohcs.privacy.ledger import opened_ledger
from fedpohcs.privacy.pooling import Pledge, PoolingClient, make_roster, read_sum, roster_clients
from fedpohcs.runs.checkpoints import Checkpoint, DamagedError, from_bytes, to_bytes
from fedpohcs.runs.policy import DEFAULT_MEAN, DEFAULT_VARIANCE, default_moments

FILE = "pooling.secret"
ATTEMPTS = 3  # to get the reply of a client that said it is there
log = logging.getLogger("fedpohcs")
Exchange = Callable[[Mapping[int, bytes]], dict[int, bytes]]
"""Sends a message to each client and returns the replies that came."""


def pooled(statistics: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The default filter of clients whose statistics are known; nothing if there are none."""
    rows = list(statistics)
    if not rows:
        return {}
    moments = default_moments({name: np.stack([row[name] for row in rows]) for name in STATISTICS})
    assert moments is not None
    return _named(*moments)


def pool_secretly(exchange: Exchange, clients: Iterable[int], size: int, least: int) -> dict[str, np.ndarray]:
    """The default filter from a masked sum, or `UserError` if there is none.

    Args:
        exchange: to the clients. An empty message asks for a key; the list of all keys asks for the upload.
        clients: that can be reached.
        size: of an observation.
        least: number of clients that must take part.
    """
    roster = make_roster(exchange(dict.fromkeys(clients, b"")))
    cohort = roster_clients(roster)
    if len(cohort) < least:
        raise UserError(f"only {len(cohort)} clients of at least {least} take part in the sum of filters.")
    uploads: dict[int, bytes] = {}
    for _ in range(ATTEMPTS):  # a reply may be lost; another set of clients would reveal the difference
        missing = [client for client in cohort if not uploads.get(client)]
        uploads |= exchange(dict.fromkeys(missing, roster)) if missing else {}
    missing = [client for client in cohort if not uploads.get(client)]
    if missing:
        raise UserError(f"the clients {missing[:5]} did not add their filters to the sum.")
    try:
        count, *sums = read_sum(uploads.values(), 1 + 2 * size)
    except RefusedError as error:
        raise UserError(f"the sum of filters cannot be read: {error}.") from error
    return _from_sums(count, np.array(sums[:size]), np.array(sums[size:]))


def _from_sums(count: float, total: np.ndarray, squares: np.ndarray) -> dict[str, np.ndarray]:
    mean = total / max(count, 1)
    variance = squares / max(count, 1) - mean**2
    if not (count > 0 and np.isfinite(total).all() and np.isfinite(squares).all()):
        raise UserError("the sum of filters is not one of statistics.")
    return _named(mean, np.maximum(variance, 0))


def _named(mean: np.ndarray, variance: np.ndarray) -> dict[str, np.ndarray]:
    return {DEFAULT_MEAN: mean.astype(np.float32), DEFAULT_VARIANCE: variance.astype(np.float32)}


def summands(statistics: Mapping[str, np.ndarray]) -> list[float]:
    """The numbers of one client that add up: the count of observations, their sums, and the sums of their squares."""
    count, mean, variance = (np.asarray(statistics[name], float) for name in STATISTICS)
    return [float(count), *(count * mean).tolist(), *(count * (variance + mean**2)).tolist()]


class PoolingMember:
    """Answers for one client in one run; what it must remember is on disk before a reply leaves."""

    def __init__(self, party: PoolingClient, folder: Path, ledger: Path, run: bytes) -> None:
        """`run` names the run in its plan, by which the client's `ledger` has the cohort of its sum."""
        self.party, self.folder, self.ledger, self.run = party, folder, ledger, run

    def answer(self, message: bytes, round_number: int) -> bytes:
        """The reply to a message; nothing if it is refused."""
        try:
            pledge = self._load()
            if not message:
                pledge, reply = self.party.announce(pledge)
            else:
                pledge, reply = self._upload(pledge, message, round_number)
        except RefusedError as reason:
            log.warning("client %d adds nothing to a sum of filters: %s", self.party.client, reason)
            return b""
        make_private_folder(self.folder)
        replace_file(self.folder / FILE, to_bytes(Checkpoint(0, {}, _stored(pledge))), mode=0o600)
        return reply

    def _upload(self, pledge: Pledge | None, roster: bytes, round_number: int) -> tuple[Pledge, bytes]:
        statistics = kept_statistics(self.folder)
        if pledge is None or len(statistics) < len(STATISTICS):
            raise RefusedError("it has announced no key, or has no filter")
        pledge, upload = self.party.upload(pledge, roster, round_number, summands(statistics))
        cohort = hashlib.sha256(repr(pledge.cohort).encode()).digest()
        with opened_ledger(self.ledger, self.run) as ledger:  # the server names the folder, but not the plan
            demand(ledger.answer(0, "filters", lambda: cohort) == cohort, "it was in a sum over others before")
        return pledge, upload

    def _load(self) -> Pledge | None:
        try:
            state: Any = from_bytes((self.folder / FILE).read_bytes()).state
            secret, cohort, last, context, upload = state
            return Pledge(secret.tobytes(), tuple(map(int, cohort)), int(last), context.tobytes(), upload.tobytes())
        except FileNotFoundError:
            return None
        except (DamagedError, OSError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RefusedError(f"{self.folder / FILE} {error}") from error  # a new key would forget the cohort


def _stored(pledge: Pledge) -> list[Any]:
    secret, context, upload = (np.frombuffer(x, np.uint8) for x in (pledge.secret, pledge.context, pledge.upload))
    return [secret, np.array(pledge.cohort, np.int64), pledge.round, context, upload]
