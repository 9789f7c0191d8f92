"""A search for good settings: many runs, each with settings that Optuna proposes. Extra: sweep.

The folder of a sweep holds its definition, Optuna's journal and a run folder per trial. A sweep that was stopped goes
on with the trial that was running, from its last checkpoint.
"""

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedpohcs.core.config import ExperimentConfig, flat_dict, flatten, from_dict, to_dict
from fedpohcs.core.errors import UserError, require, require_known
from fedpohcs.core.files import replace_file
from fedpohcs.core.locks import FolderLock
from fedpohcs.core.reading import parse_json_object, parse_toml, read_settings
from fedpohcs.core.toml import overlay, parse_value, to_toml
from fedpohcs.core.types import RoundRecord
from fedpohcs.runs.checks import check_config
from fedpohcs.runs.experiment import resume_experiment, run_experiment
from fedpohcs.runs.folder import round_figures
from fedpohcs.runs.layout import SCORES, is_run
from fedpohcs.runs.loading import read_rounds

DEFINITION, JOURNAL, BEST = "sweep.json", "study.journal", "best.toml"
FIXED = ("world", "rounds", "seed")
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
STARTUP_TRIALS = 5  # that the median is taken of, at least
REDUCTION = 3  # of successive halving: one trial of so many goes on

Pruner = Literal["median", "halving", "none"]


class Range(NamedTuple):
    """Numbers from low to high, both included."""

    low: float
    high: float
    log: bool
    whole: bool

    def distribution(self, optuna: Any) -> Any:
        """In Optuna's terms."""
        kind = optuna.distributions.IntDistribution if self.whole else optuna.distributions.FloatDistribution
        return kind(self.low, self.high, log=self.log)

    def examples(self) -> tuple[Any, ...]:
        """Values that a config must accept."""
        return self.low, self.high


class Choice(NamedTuple):
    """One of several values, written as in TOML."""

    texts: tuple[str, ...]

    def distribution(self, optuna: Any) -> Any:
        """In Optuna's terms."""
        return optuna.distributions.CategoricalDistribution(self.texts)

    def examples(self) -> tuple[Any, ...]:
        """Values that a config must accept."""
        return self.texts


@dataclass(frozen=True)
class Sweep:
    """What is searched, and how."""

    config: ExperimentConfig
    search: Mapping[str, str]  # setting to `LOW..HIGH`, `LOW..HIGH:log` or values joined by commas
    metric: str = "mean_return"
    window: int = 5
    pruner: Pruner = "median"
    warmup: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        require_known("metric", self.metric, SCORES)
        require(self.window > 0, "window", self.window, "must be at least 1")
        require(self.warmup >= 0, "warmup", self.warmup, "must be 0 or more")
        require(0 <= self.seed < 2**31, "sampler-seed", self.seed, "must be at least 0 and below 2**31")
        require(len(self.search) > 0, "search", "none", "must name at least one setting", EXAMPLE)
        for key, one in self.space().items():
            for value in one.examples():
                self.settings({key: value})

    def space(self) -> dict[str, Range | Choice]:
        """The values that are tried, by setting."""
        known = {key: value for key, value in flat_dict(self.config).items() if key not in FIXED}
        for key in self.search:
            require_known("search", key, known)
        return {key: parse_values(key, text, known[key]) for key, text in self.search.items()}

    def settings(self, values: Mapping[str, Any]) -> ExperimentConfig:
        """The config of a trial."""
        nested = [_nested(key, parse_value(v) if isinstance(v, str) else v) for key, v in values.items()]
        return from_dict(reduce(overlay, nested, to_dict(self.config)))

    def definition(self) -> dict[str, Any]:
        """As plain values, to be stored."""
        values = {"config": to_dict(self.config), "search": dict(self.search)}
        names = ("metric", "window", "pruner", "warmup", "seed")
        return json.loads(json.dumps(values | {name: getattr(self, name) for name in names}))


EXAMPLE = "For instance: --search learner.learning_rate=1e-4..1e-1:log"


def parse_search(texts: tuple[str, ...]) -> dict[str, str]:
    """Settings and their values, of texts such as `learner.epochs=1..10`."""
    found = {}
    for text in texts:
        key, equals, values = text.partition("=")
        require(bool(key and equals and values), "search", text, "must be KEY=VALUES", EXAMPLE)
        found[key.strip().replace("-", "_")] = values.strip()
    return found


def read_space(path: Path) -> dict[str, str]:
    """Settings and their values of a TOML file: a text as on the command line, or a list of values."""
    try:
        tables = parse_toml(read_settings(path))
    except (OSError, ValueError) as error:
        raise UserError(
            f"space (={str(path)!r}) cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error
    found = {}
    for key, values in flatten(tables).items():
        is_list = isinstance(values, list)
        require(is_list or isinstance(values, str), key, values, f"in {path} must be a list, or a text such as '1..10'")
        found[key] = ",".join(map(json.dumps, values)) if is_list else values
    return found


def parse_values(key: str, text: str, present: Any) -> Range | Choice:
    """The values of a setting. A range has whole numbers if its ends are, unless the present value is a float."""
    matched = re.fullmatch(rf"({NUMBER})\.\.({NUMBER})(:log)?", text)
    if matched is None:
        texts = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", text))
        rule = "must be LOW..HIGH, LOW..HIGH:log, or different values joined by commas"
        require(len(texts) > 1 and "" not in texts and len(set(texts)) == len(texts), key, text, rule)
        return Choice(texts)
    low, high, log = float(matched[1]), float(matched[2]), matched[3] is not None
    require(low < high and (low > 0 or not log), key, text, "must rise, and with :log start above 0")
    ends = [re.fullmatch(r"[+-]?\d+", end) is not None for end in matched.group(1, 2)]
    whole = all(ends) and not isinstance(present, float)
    return Range(int(low), int(high), log, whole) if whole else Range(low, high, log, whole)


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


class Outcome(NamedTuple):
    """What became of a trial."""

    number: int
    state: str  # complete, pruned, failed or running
    score: float
    rounds: int
    values: dict[str, Any]
    error: str = ""


class Watcher:
    """Tells Optuna the score after every evaluation, and stops the run if the trial is pruned."""

    def __init__(self, trial: Any, sweep: Sweep, folder: Path) -> None:
        self.trial = trial
        self.sweep = sweep
        self.pruned = False
        self.reported = set(trial.study.trials[trial.number].intermediate_values)
        rounds = read_rounds(folder) if is_run(folder) else {"round": [], sweep.metric: []}
        self.values = {int(n): float(v) for n, v in zip(rounds["round"], rounds[sweep.metric], strict=True)}

    def on_start(self, config: ExperimentConfig) -> None:
        """Remember the config."""
        self.config = config

    def on_round(self, record: RoundRecord) -> bool:
        """Report the score of the round."""
        self.values[record.round] = round_figures(record, self.config)[self.sweep.metric]
        score = self.score(record.round)
        if not math.isfinite(score):
            return False
        if record.round not in self.reported:
            self.trial.report(score, record.round)
        self.pruned = record.round < self.config.rounds and self.trial.should_prune()
        return self.pruned

    def on_finish(self) -> None:
        """Do nothing."""

    def score(self, last: int | None = None) -> float:
        """Mean of the metric over the latest evaluations up to a round; NaN if there were none."""
        there = [value for n, value in sorted(self.values.items()) if last is None or n <= last]
        finite = [value for value in there if math.isfinite(value)][-self.sweep.window :]
        return float(np.mean(finite)) if finite else math.nan


def run_sweep(sweep: Sweep, out: Path, trials: int, show: Callable[[Outcome], None]) -> list[Outcome]:
    """Run trials until the sweep has so many in all; those that are there count. The best config is `best.toml`.

    Args:
        sweep: what is searched.
        out: folder of the sweep.
        trials: in all.
        show: called with every trial that ends.
    """
    require(trials > 0, "trials", trials, "must be at least 1")
    optuna = find_optuna()
    check_config(sweep.config)
    _prepare(sweep, out)
    with FolderLock(out, text=f"sweep (={str(out)!r})"):
        study = _open_study(optuna, sweep, out)
        for trial in _remaining(optuna, study, sweep, trials):
            _run_trial(optuna, study, trial, sweep, out)
            outcome = _outcomes(study)[trial.number]
            show(outcome)
            _write_best(sweep, _outcomes(study), out)
        return _outcomes(study)


def find_optuna() -> Any:
    """The package Optuna, quiet."""
    try:
        import optuna
    except ImportError as error:
        raise UserError("sweep needs the extra sweep. Install it: pip install 'fedpohcs[sweep]'.") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _prepare(sweep: Sweep, out: Path) -> None:
    """Make the folder with its definition, or refuse one of something else."""
    path, name = out / DEFINITION, f"out (={str(out)!r})"
    if not path.is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{name} exists and is not a sweep. Name another folder.")
        out.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(sweep.definition(), indent=2).encode())
        return
    try:
        stored = flatten(parse_json_object(read_settings(path)))
    except (OSError, ValueError) as error:
        raise UserError(f"{name} has a {DEFINITION} that cannot be read: {error}.") from error
    wanted = flatten(sweep.definition())
    differing = sorted(key for key in {*stored, *wanted} if stored.get(key) != wanted.get(key))
    if differing:
        raise UserError(f"{name} holds a sweep with another {', '.join(differing[:3])}. Name another folder.")


def _open_study(optuna: Any, sweep: Sweep, out: Path) -> Any:
    journal = optuna.storages.journal
    path = str(out / JOURNAL)
    backend = journal.JournalFileBackend(path, lock_obj=journal.JournalFileOpenLock(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parts of Optuna that are new call themselves experimental
        return optuna.create_study(
            study_name="sweep",
            storage=optuna.storages.JournalStorage(backend),
            direction="maximize",
            pruner=_pruner(optuna, sweep),
            load_if_exists=True,
        )


def _pruner(optuna: Any, sweep: Sweep) -> Any:
    if sweep.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=sweep.warmup)
    if sweep.pruner == "halving":
        least = max(sweep.warmup, 1)
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=least, reduction_factor=REDUCTION)
    return optuna.pruners.NopPruner()


def _remaining(optuna: Any, study: Any, sweep: Sweep, trials: int) -> Iterator[Any]:
    """The trial that was running when the sweep stopped, then new ones."""
    for frozen in study.trials:
        if frozen.state == optuna.trial.TrialState.RUNNING:
            yield optuna.trial.Trial(study, frozen._trial_id)
    space = {key: one.distribution(optuna) for key, one in sweep.space().items()}
    while len(study.trials) < trials:
        seed = np.random.SeedSequence([sweep.seed, len(study.trials)]).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed))  # of the trial, so that a resumed sweep is the same
        yield study.ask(space)


def _run_trial(optuna: Any, study: Any, trial: Any, sweep: Sweep, out: Path) -> None:
    """Train a trial, or what is missing of it, and tell Optuna how it ended."""
    folder, states = out / f"trial-{trial.number:03d}", optuna.trial.TrialState
    watcher = Watcher(trial, sweep, folder)
    try:
        if is_run(folder):
            resume_experiment(folder, observers=[watcher], keep_records=False)
        else:
            run_experiment(sweep.settings(trial.params), folder, observers=[watcher], keep_records=False)
    except UserError as error:
        trial.set_user_attr("error", str(error))
        study.tell(trial.number, state=states.FAIL)
        return
    score = watcher.score()
    trial.set_user_attr("rounds", max(watcher.values, default=0))
    if watcher.pruned:
        study.tell(trial.number, state=states.PRUNED)
    elif math.isfinite(score):
        study.tell(trial.number, score)
    else:
        study.tell(trial.number, state=states.FAIL)


STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


def _outcomes(study: Any) -> list[Outcome]:
    found = []
    for trial in study.trials:
        scores = trial.intermediate_values
        score = scores[max(scores)] if scores else math.nan
        rounds = trial.user_attrs.get("rounds", max(scores, default=0))
        error = trial.user_attrs.get("error", "")
        found.append(Outcome(trial.number, STATES[trial.state.name], score, rounds, dict(trial.params), error))
    return found


def best_of(outcomes: list[Outcome]) -> Outcome | None:
    """The complete trial with the highest score."""
    complete = [one for one in outcomes if one.state == "complete"]
    return max(complete, key=lambda one: one.score, default=None)


def _write_best(sweep: Sweep, outcomes: list[Outcome], out: Path) -> None:
    best = best_of(outcomes)
    if best is not None:
        replace_file(out / BEST, to_toml(sweep.settings(best.values)).encode())
