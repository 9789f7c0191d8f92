"""A model card beside an exported policy, in the form that Hugging Face reads: YAML, then Markdown."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedpohcs.core.config import ExperimentConfig
from fedpohcs.core.errors import UserError, printable
from fedpohcs.core.version import __version__
from fedpohcs.runs.loading import read_rounds
from fedpohcs.runs.stored import Stored

NAME = "README.md"
MARK = "<!-- made by fedpohcs export --card -->"
SHOWN = ("mean_return", "worst_tenth", "min_return", "max_return")

NUMPY_USE = """```python
from fedpohcs.runs.policy import load_policy  # needs NumPy alone

policy = load_policy("{file}")
action = policy.act(observation)  # raw observations, as the environment gives them
```"""
ONNX_USE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
action = session.run(["action"], {{"observation": observation[None]}})[0][0]  # raw observations, float32
```"""


def check_card(exported: Path) -> None:
    """Refuse to replace a README that is no model card."""
    path = exported.with_name(NAME)
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"card (={str(path)!r}) exists and is no model card. Export into a folder of its own.")


def make_card(stored: Stored, config: ExperimentConfig, about: dict[str, Any], exported: Path) -> str:
    """The card of an exported policy."""
    figures = _figures(stored, int(about["round"]))
    return f"---\n{_front_matter(config, figures)}---\n\n{_body(config, about, figures, exported)}"


def _figures(stored: Stored, round_number: int) -> dict[str, float]:
    """What the evaluation of that round found; empty if there was none."""
    rounds = read_rounds(stored.run)
    row = np.flatnonzero(rounds["round"] == round_number)
    found = {name: float(rounds[name][row[0]]) for name in SHOWN if name in rounds and len(row)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _front_matter(config: ExperimentConfig, figures: dict[str, float]) -> str:
    """Metadata. JSON is YAML, so texts and numbers are written as JSON."""
    tags = ["reinforcement-learning", "federated-learning", "fedpohcs", config.world, config.learner.kind]
    head = {"library_name": "fedpohcs", "pipeline_tag": "reinforcement-learning", "tags": tags}
    results = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": f"{config.world} ({config.level})", "type": config.world},
        "metrics": [{"type": name, "name": name.replace("_", " "), "value": value} for name, value in figures.items()],
    }
    index = [{"name": _name(config), "results": [results]}]
    lines = {**head, **({"model-index": index} if figures else {})}
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())


def _name(config: ExperimentConfig) -> str:
    return f"{config.world}-{config.level}-{config.method}"


def _body(config: ExperimentConfig, about: dict[str, Any], figures: dict[str, float], exported: Path) -> str:
    n, k = config.federation.num_clients, config.federation.num_selected
    settings = {
        "world": f"{config.world}, {config.level} heterogeneity",
        "clients": f"{n}, of which {k} train per round",
        "selector": config.method,
        "learner": config.learner.kind,
        "round": f"{about['round']} of {config.rounds}",
        "seed": config.seed,
        "software": f"fedpohcs {__version__}",
    }
    use = (ONNX_USE if exported.suffix == ".onnx" else NUMPY_USE).format(file=exported.name)
    sections = {
        f"# {_plain(_name(config))}": f"A policy that {n} clients with different environments trained together.",
        "## Training": _table(("setting", "value"), settings),
        "## Evaluation": _evaluation(figures),
        "## Use": f"{use}\n\n{_acting(config, about, exported)}",
    }
    return f"{MARK}\n\n" + "\n\n".join(f"{title}\n\n{text}" for title, text in sections.items()) + "\n"


def _evaluation(figures: dict[str, float]) -> str:
    if not figures:
        return "This round was not evaluated."
    shown = {name.replace("_", " "): f"{value:.4g}" for name, value in figures.items()}
    return (
        _table(("return over the clients", "value"), shown) + "\n\nUndiscounted returns of one seed, in the evaluation "
        "of the training run. If the policy was chosen as the best of its run, they are a little too high."
    )


def _acting(config: ExperimentConfig, about: dict[str, Any], exported: Path) -> str:
    if not about["filtered"]:
        return "Observations are used as they are."
    if exported.suffix == ".onnx":
        return "Observations are rescaled inside the graph."
    count = config.federation.num_clients
    return (
        f"Observations are rescaled: by the statistics of all clients, or with `client=0` to `client={count - 1}` by "
        "those of one client that trained."
    )


def _table(headers: tuple[str, str], rows: dict[str, Any]) -> str:
    lines = [headers, ("---", "---"), *((name, _plain(value)) for name, value in rows.items())]
    return "\n".join(f"| {name} | {value} |" for name, value in lines)


def _plain(value: object) -> str:
    """A value from a run folder without markup."""
    text = printable(str(value))
    return "".join(f"&#{ord(one)};" if one in "<>|`[]*\\" else one for one in text)
