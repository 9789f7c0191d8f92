"""fedpohcs beside other libraries, in turns: learning, rounds of a tiny federation, and steps of environments.

Each library runs in a process of its own with an environment of its own, which this script makes below `--cache` with
the packages of benchmarks/peers/pins.toml. A library that cannot be installed or fails is reported with its error.

Measured, medians over turns (A B C A B C ...) after two turns that compile:
- `learning`: PPO on MountainCarContinuous with two tanh layers of 64, minibatches of 128 and one epoch, in environment
  steps. A shape is agents x environments per agent. Libraries that train one agent at a time have no shape with six;
- `federated`: rounds in which 10 of N clients take part and move a vector of 4 numbers by one step. For fedpohcs this
  is an episode of one step with a learner of its own; rounds with an episode in a table and PPO are shown besides;
- `stepping`: environment steps under a policy of the same size. Only fedpohcs stores trajectories and updates filters.

Processor seconds count all threads and all processes that a driver has started, those of Ray included. A case that
takes longer than its limit is ended and reported.

Results are kept by topic: a run with some topics keeps what is stored of the others, if their pins are still the same.

Goals, per processor second: learning >= 4 times rejax at the same shape and >= 3 times its best shape; less time per
participating client than each federated peer.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import tomllib
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from _common import HERE, RESULTS, Figure, Goal, argument_parser, machine_facts, print_table, write_results

sys.path.insert(0, str(HERE / "peers"))
from _serve import MARK, marked

NAME = "peers"
FOLDER = HERE / NAME
LIMIT = 180  # seconds of a turn, with what it compiles
OURS = "fedpohcs"
SELECTED = 10  # clients per round, as in the drivers
TURNS = 3
WARM_UP = 2  # the second turn of a JAX program may compile once more, for the types that the first one returned
SHAPES = ("6 agents x 1 env", "6 agents x 16 env", "1 agent x 16 env", "6 agents x 64 env")
FEW_ENVS = ("1 agent x 1 env", "1 agent x 16 env")
SIZES = ("60 clients", "1000 clients", "10000 clients")


class Driver(NamedTuple):
    """A script of benchmarks/peers: the environment it needs, and the cases it is asked for."""

    script: str
    environment: str
    cases: tuple[str, ...]
    warm_up: int = WARM_UP


TOPICS: dict[str, dict[str, Driver]] = {
    "learning": {
        OURS: Driver("ours.py", OURS, SHAPES),
        "rejax": Driver("rejax_ppo.py", "rejax", SHAPES),
        "sbx": Driver("sbx_ppo.py", "sbx", FEW_ENVS),
        "Stable-Baselines3": Driver("sb3_ppo.py", "sb3", FEW_ENVS),
    },
    "federated": {
        OURS: Driver("ours.py", OURS, (*SIZES, *(f"{size} with PPO" for size in SIZES))),
        "fedjax": Driver("fedjax_rounds.py", "fedjax", SIZES),
        "pfl": Driver("pfl_rounds.py", "pfl", SIZES),
        "Flower": Driver("flower_rounds.py", "flower", SIZES, warm_up=0),  # it does not time the first round of a turn
    },
    "stepping": {
        OURS: Driver("ours.py", OURS, ("600 env",)),
        "gymnax": Driver("gymnax_steps.py", "rejax", ("60 env", "600 env")),
        "envpool": Driver("envpool_steps.py", "envpool", ("600 env, 1 thread", "600 env, 2 threads")),
    },
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fedpohcs" / "peers")
    parser.add_argument("--topics", default=",".join(TOPICS), help="some of: " + ", ".join(TOPICS))
    arguments = parser.parse_args()
    samples = stored_samples(arguments.quick)
    for topic in arguments.topics.split(","):
        facts = machine_facts()
        answers = run_topic(TOPICS[topic], arguments.cache, arguments.quick)
        after = [round(load, 2) for load in os.getloadavg()]
        samples[topic] = {
            "answers": answers,
            "machine": facts | {"load_average_after": after},
            "pins": pins_of(topic),
        }
        print_answers(topic, answers)
        figures = [figure for name in TOPICS if name in samples for figure in headline(name, samples[name]["answers"])]
        write_results(NAME, facts, figures, samples, quick=arguments.quick)  # what is done is safe


def stored_samples(quick: bool) -> dict[str, Any]:
    """The samples of earlier runs, by topic, without topics whose pins have changed."""
    path = RESULTS / f"{NAME}{'-quick' if quick else ''}.json"
    stored = json.loads(path.read_text())["samples"] if path.exists() else {}
    return {topic: some for topic, some in stored.items() if topic in TOPICS and some.get("pins") == pins_of(topic)}


def pins_of(topic: str) -> dict[str, list[str]]:
    """The pins of the environments that a topic uses."""
    used = {driver.environment for driver in TOPICS[topic].values()} - {OURS}
    return {environment: pins()[environment] for environment in sorted(used)}


def pins() -> dict[str, list[str]]:
    return tomllib.loads((FOLDER / "pins.toml").read_text())


def interpreter(environment: str, cache: Path) -> str:
    """The Python of an environment, made if it is missing or its pins have changed."""
    if environment == OURS:
        return sys.executable
    packages, folder = pins()[environment], (cache / environment).absolute()
    python, made_of = folder / "bin" / "python", folder / "made-of.json"
    if not made_of.exists() or json.loads(made_of.read_text()) != packages:
        print(f"making the environment of {environment}", flush=True)
        for command in (
            [sys.executable, "-m", "venv", "--clear", folder],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        ):
            subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
        made_of.write_text(json.dumps(packages))
    return str(python)


class Process:
    """A driver that waits for the name of a case per line and answers each with a line."""

    def __init__(self, driver: Driver, cache: Path) -> None:
        self._errors, self._mark = tempfile.TemporaryFile("w+"), uuid.uuid4().hex  # noqa: SIM115
        environment = dict(os.environ) | {MARK: self._mark}
        if driver.environment != OURS:
            environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [interpreter(driver.environment, cache), driver.script],
            cwd=FOLDER,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, case: str) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        timer = threading.Timer(LIMIT, self._process.kill)
        timer.start()
        try:
            print(case, file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            if self._process.wait() == -signal.SIGKILL and not timer.is_alive():
                return {"error": f"a turn takes longer than {LIMIT} s"}
            self._errors.seek(0)
            return {"error": " ".join(["the process ended:", *self._errors.read().strip().splitlines()[-1:]])}
        finally:
            timer.cancel()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """End the driver, and what is left of its processes."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it ended before
            self._process.stdin.close()
        self._process.wait()
        for pid in marked(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Library:
    """A driver, which is started again after a case that ended it."""

    def __init__(self, driver: Driver, cache: Path) -> None:
        self._driver, self._cache, self._process = driver, cache, Process(driver, cache)

    def ask(self, case: str) -> dict[str, Any]:
        if self._process.ended:
            self._process.close()
            self._process = Process(self._driver, self._cache)
        return self._process.ask(case)

    def close(self) -> None:
        self._process.close()


def run_topic(drivers: dict[str, Driver], cache: Path, quick: bool) -> dict[str, Any]:
    """The counted answers by "library, case"; or the error of a library or case."""
    turns = 1 if quick else TURNS
    libraries: dict[str, Library] = {}
    answers: dict[str, Any] = {}
    for name, driver in drivers.items():
        try:
            libraries[name] = Library(driver, cache)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
            answers |= {f"{name}, {case}": f"not installed: {reason}" for case in driver.cases}
    wanted = [(name, case) for name in libraries for case in drivers[name].cases[: 1 if quick else None]]
    for turn in range(-WARM_UP, turns):
        for name, case in wanted:
            place = f"{name}, {case}"
            if isinstance(answers.get(place), str) or turn < -drivers[name].warm_up:  # it failed, or is warm
                continue
            answer = libraries[name].ask(case)
            if "error" in answer:
                answers[place] = f"failed: {answer['error']}"
            elif turn >= 0:
                answers.setdefault(place, []).append(answer)
    for library in libraries.values():
        library.close()
    return answers


def per_cpu_second(answers: Any) -> float:
    return statistics.median(answer["work"] / max(answer["cpu_seconds"], 1e-9) for answer in answers)


def per_second(answers: Any) -> float:
    return statistics.median(answer["work"] / answer["seconds"] for answer in answers)


def print_answers(topic: str, answers: dict[str, Any]) -> None:
    rows = [
        (place, some, "") if isinstance(some, str) else (place, per_second(some), per_cpu_second(some))
        for place, some in answers.items()
    ]
    unit = "rounds" if topic == "federated" else "steps"
    print_table(topic, ("library, case", f"{unit} per second", f"{unit} per processor second"), rows)


def headline(topic: str, answers: dict[str, Any]) -> list[Figure]:
    measured = {place: some for place, some in answers.items() if not isinstance(some, str)}
    if topic == "federated":
        return [figure for place, some in measured.items() for figure in overhead(place, some)] + overheads(measured)
    figures = []
    for place, some in measured.items():
        figures += [
            Figure(place, per_second(some), "steps/s"),
            Figure(f"{place}, per processor second", per_cpu_second(some), "steps/s"),
        ]
    ours = {place: per_cpu_second(some) for place, some in measured.items() if place.startswith(OURS)}
    if topic == "learning" and ours:
        figures += against_rejax(ours, measured)
    return figures


def against_rejax(ours: dict[str, float], measured: dict[str, Any]) -> list[Figure]:
    rejax = {place: per_cpu_second(some) for place, some in measured.items() if place.startswith("rejax")}
    figures = []
    for place, theirs in rejax.items():
        shape = place.split(", ")[1]
        if f"{OURS}, {shape}" in ours:
            name = f"{OURS} / {place}, per processor second"
            figures.append(Figure(name, ours[f"{OURS}, {shape}"] / theirs, "times", Goal(">=", 4, "times")))
    if rejax:
        ratio = max(ours.values()) / max(rejax.values())
        name = f"{OURS} / rejax, best shape of each, per processor second"
        figures.append(Figure(name, ratio, "times", Goal(">=", 3, "times")))
    return figures


def overhead(place: str, answers: Any) -> list[Figure]:
    return [
        Figure(f"{place}: a round", 1e3 / per_second(answers), "ms"),
        Figure(f"{place}: a participating client, processor time", client_ms(answers), "ms"),
    ]


def client_ms(answers: Any) -> float:
    return 1e3 / per_cpu_second(answers) / SELECTED


def overheads(measured: dict[str, Any]) -> list[Figure]:
    """Our time per participating client as a multiple of each peer's."""
    figures = []
    for place, some in measured.items():
        library, size = place.split(", ")
        ours = measured.get(f"{OURS}, {size}")
        if library != OURS and ours:
            ratio = client_ms(ours) / client_ms(some)
            figures.append(Figure(f"{OURS} / {place}, per client", ratio, "times", Goal("<", 1, "times")))
    return figures


if __name__ == "__main__":
    main()
