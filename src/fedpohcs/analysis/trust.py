"""What Byzantine clients gained and what defences did in a run, from its files."""

import numpy as np

from fedpohcs.core.types import Vector
from fedpohcs.runs.loading import Run


def trust_figures(run: Run) -> dict[str, float]:
    """Figures by name; empty for a run without attack, without defence and without rejected updates."""
    figures, num_rounds = {}, max(len(run.rounds["round"]) - 1, 1)
    attack, defence = run.config.attack, run.config.defence
    if run.rounds["num_rejected"].any():
        figures["updates left out, per round"] = run.rounds["num_rejected"].sum() / num_rounds
    if defence.max_selections is not None:
        figures["candidates capped, per round"] = len(_values(run, "capped", "capped")) / num_rounds
    if defence.table_clip is not None:
        figures["tables clipped, per round"] = (_values(run, "candidate", "table_scale") < 1).sum() / num_rounds
    if attack.kind is not None and not isinstance(attack.clients, str):
        figures["selections of a Byzantine client, per round"] = (
            run.times_selected[list(attack.clients)].mean() / num_rounds
        )
    counted, lied = _by_client(run, "counted"), _by_client(run, "lied")
    for name, attacked in (("an honest update", False), ("a Byzantine update", True)):
        shares = [share for key, share in counted.items() if bool(lied.get(key)) == attacked]
        if shares:
            figures[f"share of {name} that counted"] = float(np.mean(shares))
    return figures


def _by_client(run: Run, metric: str) -> dict[tuple[int, int], float]:
    """A value of the selected clients, by round and client."""
    table = run.clients
    rows = (table["role"] == "selected") & (table["metric"] == metric)
    keys = zip(table["round"][rows].tolist(), table["client"][rows].tolist(), strict=True)
    return dict(zip(keys, table["value"][rows].tolist(), strict=True))


def _values(run: Run, role: str, metric: str) -> Vector:
    table = run.clients
    return table["value"][(table["role"] == role) & (table["metric"] == metric)]
