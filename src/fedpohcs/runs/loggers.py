"""Optional observers that send every round to a tracking tool. Each is one class and one line in `LOGGERS`."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.config import ExperimentConfig, flat_dict
from fedpohcs.core.errors import UserError, require_known
from fedpohcs.core.types import RoundRecord


def round_scalars(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round that are logged, by name."""
    returns = record.evaluation.mean_return
    scalars = {}
    if len(returns):
        scalars |= {"return/mean": returns.mean(), "return/worst": returns.min(), "return/best": returns.max()}
    if len(record.held_out.client):
        scalars["return/held out"] = record.held_out.mean_return.mean()
    scalars |= {f"training/{name}": np.mean(values) for name, values in record.updates_info.items() if len(values)}
    scalars |= {f"selection/{name}": np.mean(values) for name, values in record.selection.scores.items() if len(values)}
    if record.bad_replies:
        scalars["answers/left out"] = len(record.bad_replies)
    scalars |= {f"seconds/{phase}": seconds for phase, seconds in record.seconds.items()}
    return {name: float(value) for name, value in scalars.items()}


class TensorBoardLogger:
    """Event files in the run folder."""

    def __init__(self, folder: Path) -> None:
        self._tool = _tool("tensorboardX", "tensorboard")
        self._folder = folder / "tensorboard"

    def on_start(self, config: ExperimentConfig) -> None:
        self._writer: Any = self._tool.SummaryWriter(str(self._folder))
        lines = (f"| {key} | {value} |" for key, value in flat_dict(config).items())
        self._writer.add_text("config", "\n".join(("| key | value |", "| --- | --- |", *lines)))

    def on_round(self, record: RoundRecord) -> None:
        for name, value in round_scalars(record).items():
            self._writer.add_scalar(name, value, record.round)

    def on_finish(self) -> None:
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases; the settings of that tool decide where it is stored."""

    def __init__(self, folder: Path) -> None:
        self._tool = _tool("wandb", "wandb")
        self._folder = folder

    def on_start(self, config: ExperimentConfig) -> None:
        self._run: Any = self._tool.init(project="fedpohcs", config=flat_dict(config), dir=str(self._folder))

    def on_round(self, record: RoundRecord) -> None:
        self._run.log(round_scalars(record), step=record.round)

    def on_finish(self) -> None:
        self._run.finish()


class MlflowLogger:
    """A run of MLflow; the settings of that tool decide where it is stored."""

    def __init__(self, folder: Path) -> None:
        self._tool = _tool("mlflow", "mlflow")
        self._name = str(folder)

    def on_start(self, config: ExperimentConfig) -> None:
        self._tool.set_experiment("fedpohcs")
        self._tool.start_run(run_name=self._name)
        self._tool.log_params(flat_dict(config))

    def on_round(self, record: RoundRecord) -> None:
        self._tool.log_metrics(round_scalars(record), step=record.round)

    def on_finish(self) -> None:
        self._tool.end_run()


LOGGERS: dict[str, Callable[[Path], Any]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


def make_loggers(names: Sequence[str], folder: Path) -> list[Any]:
    """The named loggers of the run in `folder`."""
    for name in names:
        require_known("log", name, LOGGERS)
    return [LOGGERS[name](folder) for name in names]


def _tool(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(f"log (={extra!r}) needs {module}. Install it: pip install 'fedpohcs[{extra}]'.") from error
