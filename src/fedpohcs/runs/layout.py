"""The files of a run folder: names, columns and roles that its writer and its readers share.

`config.json`, `rounds.csv` and `clients.csv` are pure functions of the config, so two runs can be compared byte by
byte. Facts that depend on the machine are in separate files, `origin.json` and `timings.csv`.
"""

from pathlib import Path

ROUND_COLUMNS = (
    "round",
    "mean_return",  # over the clients, each counting the same
    "min_return",
    "max_return",
    "weighted_return",  # over the clients, weighted by q_n
    "train_steps",
    "evaluation_steps",
    "num_rejected",
    "candidates",  # ids, joined by spaces
    "selected",
    "worst_tenth",  # mean over the tenth of the clients, rounded up, with the lowest returns
    "num_evaluated",  # clients whose returns are counted
)
FIRST_COLUMNS = ROUND_COLUMNS[:-2]  # of release 0.1
TIME_COLUMNS = (*ROUND_COLUMNS, "simulated_seconds", "num_late")  # of runs in simulated time
SAMPLE_COLUMNS = ("mean_return_low", "mean_return_high")  # of runs that evaluate a sample: 95 % interval of the mean
SCORES = ("mean_return", "min_return", "max_return", "weighted_return", "worst_tenth")
"""Columns by which one policy is better than another."""
CLIENT_COLUMNS = ("round", "client", "role", "metric", "value")
PHASES = ("measure", "select", "train", "aggregate", "evaluate", "total")
TIMING_COLUMNS = ("round", *PHASES)
TABLES = {"rounds": ROUND_COLUMNS, "clients": CLIENT_COLUMNS, "timings": TIMING_COLUMNS}
FILTER_PREFIX = "filters/"  # of the arrays of policy.npz that belong to clients
POLICY_ROUND = "round"  # the array of policy.npz that says after which round the policy was stored
BAD_REPLY = "bad-reply"  # role of a client whose reply was left out
HELD_OUT = "held-out"  # role of a client that is evaluated and never trains
FINETUNED = "finetuned"  # role of a client that was evaluated after further training of its own


def round_columns(*, timed: bool, sampled: bool) -> tuple[str, ...]:
    """The columns of `rounds.csv`."""
    return (*(TIME_COLUMNS if timed else ROUND_COLUMNS), *(SAMPLE_COLUMNS if sampled else ()))


ALL_COLUMNS = (FIRST_COLUMNS, *(round_columns(timed=a, sampled=b) for a in (False, True) for b in (False, True)))
"""Every set of columns that a `rounds.csv` may have."""


def is_run(path: Path) -> bool:
    """Whether this folder was made by `RunFolder.create`."""
    return all((path / name).is_file() for name in ("config.json", "origin.json", "rounds.csv"))
