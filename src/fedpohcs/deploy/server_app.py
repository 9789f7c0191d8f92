"""The Flower app of the server: the same experiment as in one process, with clients that a grid connects."""

import json
import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError
from fedpohcs.core.files import replace_file
from fedpohcs.deploy.eager import EagerGrid
from fedpohcs.deploy.keys import load_members
from fedpohcs.deploy.members import load_owners
from fedpohcs.deploy.protocol import config_from_text
from fedpohcs.deploy.status import FleetStatus
from fedpohcs.runs.checkpoints import NUM_KEPT
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.server.protocols import Executor

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start a run, or resume one, according to the run config."""
    given = dict(context.run_config)
    _show_log()
    outcome: dict[str, Any] = {"error": "the server app was ended."}
    try:
        _run(grid, given)
        outcome = {"error": None}
    except UserError as error:
        outcome = {"error": str(error)}
        raise
    finally:
        if given["outcome"]:
            replace_file(Path(str(given["outcome"])), json.dumps(outcome).encode())


def _show_log() -> None:
    """Show every round where Flower shows the output of this app: `flwr run --stream`, `flwr log`, the server."""
    log = logging.getLogger("fedpohcs")
    log.setLevel(logging.INFO)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False


def _run(grid: Grid, given: dict[str, Any]) -> None:
    cadence = int(given["checkpoint-every"])
    config, out = config_from_text(str(given["config"])), Path(str(given["out"]))
    status = FleetStatus(out)

    def make_clients(config: ExperimentConfig, **rest: Any) -> Executor:
        from fedpohcs.deploy.executor import Limits  # imports JAX, which must be configured before
        from fedpohcs.deploy.private import make_flower_executor

        limits = Limits(
            phase_timeout=float(given["phase-timeout"]),
            startup_timeout=float(given["startup-timeout"]),
            min_clients=int(given["min-clients"]),
            keep_rounds=NUM_KEPT * max(cadence, 1) + 1,
        )
        path = Path(str(given["members"]))
        members = load_members(path) if config.privacy != "none" else None
        owners = load_owners(path) if given["members"] else None
        eager = EagerGrid(grid)
        plan = str(given["plan"]).encode()
        made: Any = make_flower_executor(
            config, grid=eager, limits=limits, members=members, owners=owners, plan=plan, **rest
        )
        status.executor = getattr(made, "within", made)
        return made

    shared: dict[str, Any] = {"checkpoint_every": cadence, "make_clients": make_clients, "elsewhere": True}
    shared |= {"observers": [status], "keep_records": False}
    if given["resume"]:
        resume_experiment(out, rounds=config.rounds, **shared)
    else:
        run_experiment(config, out, overwrite=bool(given["overwrite"]), **shared)
