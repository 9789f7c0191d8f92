"""The documentation keeps what it promises: commands work, examples run, names and links are right."""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest
import tyro

import fedpohcs
from conftest import made_up_records
from fedpohcs.cli import main
from fedpohcs.core.config import (
    AttackConfig,
    DefenceConfig,
    ExperimentConfig,
    FederationConfig,
    ModellingConfig,
    ProtectionConfig,
    ServerOptimiserConfig,
    TimeConfig,
    flat_dict,
)
from fedpohcs.core.learning import DQNConfig, PPOConfig, QAvgConfig, SarsaConfig, learner_class
from fedpohcs.core.registries import (
    AGGREGATORS,
    ALGORITHMS,
    ATTACKS,
    METRICS,
    OPTIMISERS,
    PRESETS,
    REGISTRIES,
    SELECTORS,
    WORLDS,
)
from fedpohcs.core.types import CandidateMetrics, WeightedAdvantage
from fedpohcs.metrics.base import Metric
from fedpohcs.runs import experiment
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.layout import CLIENT_COLUMNS, ROUND_COLUMNS, TIMING_COLUMNS
from fedpohcs.runs.loading import load_run
from fedpohcs.runs.policy import load_policy
from fedpohcs.server.optimisers import Proposal
from fedpohcs.server.selection import Question, by_score
from fedpohcs.worlds import make_world, world_levels
from fedpohcs.worlds.control import ControlConfig
from fedpohcs.worlds.gym import GymConfig
from fedpohcs.worlds.hongkong.settings import TrafficConfig
from fedpohcs.worlds.tables import PerturbedKernelsConfig, RandomMDPsConfig
from notebook import run_notebook

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONFIGS = (
    ExperimentConfig,
    FederationConfig,
    ServerOptimiserConfig,
    PPOConfig,
    DQNConfig,
    QAvgConfig,
    SarsaConfig,
    ModellingConfig,
    TrafficConfig,
    GymConfig,
    RandomMDPsConfig,
    PerturbedKernelsConfig,
    ControlConfig,
    ProtectionConfig,
    DefenceConfig,
    AttackConfig,
    TimeConfig,
)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", read(page), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    lines = [line for block in blocks(page, "console") for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("fedpohcs ")]


def anchors(page: Path) -> set[str]:
    """The anchors MkDocs gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```$", "", read(page), flags=re.M | re.S), flags=re.M)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


@pytest.fixture
def registries() -> Iterator[None]:
    """Put back what an example registers."""
    before = [(registry, dict(registry.entries)) for registry in REGISTRIES.values()]
    yield
    for registry, entries in before:
        registry.entries = entries


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a comparison one after the other in this process: a process of its own takes seconds to start."""
    monkeypatch.setattr("fedpohcs.cli.compare.available_cores", lambda: [0])


@pytest.fixture
def made_up_runs(one_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training replaced by made-up records."""

    def run(config: ExperimentConfig, out: Path, *, overwrite: bool = False, observers: Sequence, **rest: int) -> None:
        folder = RunFolder.create(out, config, overwrite)
        for record in made_up_records(config):
            folder.append(record)
        folder.save_policy({}, 0)

    monkeypatch.setattr(experiment, "run_experiment", run)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, registries: None):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for name in [name for name in sys.modules if name.startswith(("own_", "newcomer", "reachers"))]:
        monkeypatch.delitem(sys.modules, name)  # importing an example registers its names again
    return importlib.import_module


def test_the_commands_of_the_quick_start_work_in_their_order(made_up_runs: None) -> None:
    found = commands(DOCS / "quickstart.md")
    assert len(found) >= 8
    for arguments in found:
        assert main(arguments) == 0, " ".join(arguments)


def test_the_commands_of_the_page_on_experiments_work(one_core: None) -> None:
    page = DOCS / "how-to" / "run-experiments.md"
    for arguments in commands(page):
        arguments = arguments[: arguments.index(">")] if ">" in arguments else arguments
        assert main(arguments) == 0, " ".join(arguments)
    for code in blocks(page, "python"):
        exec(compile(code, "documentation", "exec"), {})


def test_the_commands_of_the_readme_work(made_up_runs: None) -> None:
    for arguments in commands(ROOT / "README.md"):
        assert main(arguments) == 0, " ".join(arguments)


class ParsedError(Exception):
    """The options of a command are right; nothing else is done."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_options_of_every_command_in_the_documentation_exist(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = tyro.cli

    def parse(*values: Any, **options: Any) -> None:
        cli(*values, **options)
        raise ParsedError

    monkeypatch.setattr(tyro, "cli", parse)
    for command in commands(page):
        arguments = list(itertools.takewhile(lambda word: word not in (">", "|", "&", "&&"), command))
        placeholder = any(re.fullmatch(r"[A-Z]+(@\w+)?|\.{3}|\[.*", word) for word in arguments)
        if placeholder or "--config" in arguments or not set(arguments) - {"--help", "--version"}:
            continue
        with contextlib.suppress(ParsedError):
            code, error = main(arguments), capsys.readouterr().err
            assert code == 0 or "is not a file" in error, error  # keys of a fleet come later than its options


def test_the_make_targets_in_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), flags=re.MULTILINE))
    pages = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {name for page in pages for b in blocks(page, "console") for name in re.findall(r"^make ([a-z]+)", b, re.M)}
    assert {"run", "test"} <= {
        name for b in blocks(ROOT / "README.md", "console") for name in re.findall(r"^make ([a-z]+)", b, re.M)
    }
    assert named <= targets


def test_the_python_of_quick_start_run_folder_page_and_readme_runs() -> None:
    (train,) = blocks(DOCS / "quickstart.md", "python")
    (read_back,) = blocks(DOCS / "run-folder.md", "python")
    for code in (train, read_back, *blocks(ROOT / "README.md", "python")):
        exec(compile(code, "documentation", "exec"), {})
    assert load_run(Path("runs/from-python")).complete


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_python_in_the_documentation_parses(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


def test_the_short_selector_of_the_how_to_selects(registries: None) -> None:
    *_, short, _ = blocks(DOCS / "how-to" / "add-a-selector.md", "python")
    exec(compile(short, "add-a-selector.md", "exec"), {})
    config = dataclasses.replace(PRESETS["tabular"](), selector="highest-return", rounds=1)
    assert len(experiment.run_experiment(config).records[1].selection.client) == 3


def test_the_aggregator_and_the_attack_of_the_how_to_work_together(example) -> None:
    for code in blocks(DOCS / "how-to" / "add-an-aggregator.md", "python"):
        exec(compile(code, "add-an-aggregator.md", "exec"), {})
    names = ["--federation.aggregator", "geometric-median", "--attack.kind", "stubborn-update"]
    names += ["--attack.clients", "0", "1"]
    assert main(["train", "tabular", "--selector", "full", "--rounds", "2", "--out", "run", *names]) == 0
    table = load_run(Path("run")).clients
    assert table["value"][table["metric"] == "lied"].tolist() == [1, 1, *[0] * 10] * 2


def test_the_example_of_a_metric_runs_in_the_clear_and_hidden_and_selects_by_it(example) -> None:
    module = example("own_metric")
    for privacy in ("none", "masked"):
        shown = ["--protection.release", "scores"]
        assert module.main(["--privacy", privacy, *shown, "--rounds", "1", "--out", privacy]) == 0
        run = load_run(Path(privacy))
        rows = run.clients["metric"] == "loss"
        loss = dict(zip(run.clients["client"][rows].tolist(), run.clients["value"][rows].tolist(), strict=True))
        selected = {int(client) for client in run.rounds["selected"][1].split()}
        assert len(loss) == 6
        assert min(loss[client] for client in selected) >= max(loss[client] for client in loss.keys() - selected)


def test_the_vector_metric_of_the_how_to_is_measured(registries: None) -> None:
    *_, vector, _ = blocks(DOCS / "how-to" / "add-a-metric.md", "python")
    exec(compile(vector, "add-a-metric.md", "exec"), {})
    SELECTORS["by-place"] = lambda: by_score(
        "place", "mean_observation", lambda question, metrics: {"place": metrics.column("mean_observation")[:, 0]}
    )
    config = dataclasses.replace(PRESETS["tabular"](), selector="by-place", rounds=1)
    record = experiment.run_experiment(config).records[1]
    assert np.isfinite(record.selection.scores["place"]).all()
    assert set(record.upload_bytes.values()) == {6 * 4}  # one-hot states of 6, as float32


def test_every_metric_is_on_the_page_on_metrics() -> None:
    page = read(DOCS / "how-to" / "add-a-metric.md")
    assert all(f"| `{name}` |" in page for name in METRICS)
    assert all(f"`{field}`" in page for field in Metric._fields)


def test_every_attack_is_on_the_page_on_trust() -> None:
    page = read(DOCS / "trust.md")
    assert all(f"`{name}`" in page for name in ATTACKS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_how_to_pages_show_the_examples_as_they_are(path: Path) -> None:
    shown = [block for page in PAGES for block in blocks(page, "python")]
    assert read(path) in shown


def test_the_example_of_a_selector_runs_and_its_scores_are_stored(example) -> None:
    assert example("own_selector").main(["--rounds", "4", "--out", "out", "--jobs", "1"]) == 0
    run = load_run(Path("out/medium/fair-fedpohcs/seed-0"))
    assert run.complete
    assert {"mix", "trainings", "selection_metric"} <= set(run.clients["metric"])
    assert run.times_selected.sum() == 4 * 3


def test_the_example_of_a_selector_prefers_who_trained_less_when_only_fairness_counts(example, monkeypatch) -> None:
    module = example("own_selector")
    monkeypatch.setattr(module, "FAIRNESS", 1.0)
    clients = np.arange(4)
    table = WeightedAdvantage(np.array([7], np.uint64), np.ones(1))
    question = Question(clients, 2, 4, np.full(4, 0.25), np.random.default_rng(0))
    metrics = CandidateMetrics(clients, {"weighted_advantage": (table,) * 4})
    selection, state = module.fair_fedpohcs().select(question, metrics, {0: 5, 2: 1, 3: 4})
    assert selection.client.tolist() == [1, 2]
    assert state == {0: 5, 1: 1, 2: 2, 3: 4}


def test_the_sampling_selector_of_the_how_to_draws_in_proportion_to_the_potential(registries: None) -> None:
    _, sampling, *_ = blocks(DOCS / "how-to" / "add-a-selector.md", "python")
    names: dict = {}
    exec(compile(sampling, "add-a-selector.md", "exec"), names)
    probability = names["inclusion_probabilities"](np.array([8.0, 1.0, 1.0, 2.0]), 2)
    np.testing.assert_allclose(probability, [1, 0.25, 0.25, 0.5])
    config = dataclasses.replace(PRESETS["tabular"](), selector="potential-sampling", rounds=2)
    for record in experiment.run_experiment(config).records[1:]:
        assert len(record.selection.client) == 3
        potential = record.selection.scores["learning_potential"]
        chosen = np.isin(record.candidates, record.selection.client)
        expected = names["inclusion_probabilities"](potential, 3)[chosen]
        np.testing.assert_allclose(record.updates_info["probability"], expected)


def test_the_example_of_an_aggregator_runs_and_finds_the_geometric_median(example) -> None:
    module = example("own_aggregator")
    assert module.main(["--rounds", "2", "--out", "out"]) == 0
    table = load_run(Path("out")).clients
    assert (table["metric"] == "counted").sum() == 2 * 3
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0], [1e6, 1e6]])
    centre, share = module.nearest_to_all(corners)
    assert np.linalg.norm(centre - 4) < 2
    assert share.argmin() == 4


def test_the_example_of_a_server_optimiser_runs_and_its_steps_shrink(example) -> None:
    module = example("own_optimiser")
    assert module.main(["--rounds", "2", "--out", "out"]) == 0
    assert load_run(Path("out")).config.federation.server_optimiser == "adagrad"
    optimiser = module.adagrad(ServerOptimiserConfig(learning_rate=1.0, epsilon=1e-9))
    params, state = {"q": np.zeros(1)}, optimiser.init({"q": np.zeros(1)})
    for expected in (1.0, 1 / np.sqrt(2), 1 / np.sqrt(3)):
        proposal = Proposal({"q": params["q"] + 7}, {"q": params["q"][None] + 7}, np.ones(1))
        new, state = optimiser.apply(state, params, proposal)
        assert (new["q"] - params["q"]).item() == pytest.approx(expected)
        params = new


def test_the_optimiser_without_parts_of_the_how_to_goes_half_of_the_way(registries: None) -> None:
    _, halfway, _ = blocks(DOCS / "how-to" / "add-a-server-optimiser.md", "python")
    exec(compile(halfway, "add-a-server-optimiser.md", "exec"), {})
    base = dataclasses.replace(PRESETS["tabular"](), rounds=1)
    slow = dataclasses.replace(base, federation=dataclasses.replace(base.federation, server_optimiser="halfway"))
    start = experiment.start_training(base).executor.initial_params()
    whole, half = experiment.run_experiment(base).params, experiment.run_experiment(slow).params
    np.testing.assert_allclose(half.critic[0].bias, (start.critic[0].bias + whole.critic[0].bias) / 2, rtol=1e-6)
    assert half.kl_coefficient == whole.kl_coefficient


def test_ranks_of_the_example_share_ties(example) -> None:
    assert example("own_selector").ranks([3, 1, 3]).tolist() == [0.5, 0, 0.5]


def test_the_example_of_a_world_runs_and_its_preset_works_on_the_command_line(example, capsys) -> None:
    history = example("own_world").main(rounds=2, out=Path("run"))
    run = load_run(Path("run"))
    assert run.complete
    assert run.held_out_returns.shape == (3, 3)
    assert flat_dict(run.config)["scenario.wind"] == 0.2
    np.testing.assert_allclose(make_world(run.config).population.wind, np.full(11, 0.2), rtol=1e-6)
    assert history.mean_returns[-1] > history.mean_returns[0]
    *_, preset = blocks(DOCS / "how-to" / "add-a-world.md", "python")
    exec(compile(preset, "add-a-world.md", "exec"), {})
    assert main(["list"]) == 0
    assert "Points on a line." in capsys.readouterr().out
    assert main(["train", "point-mass", "--help"]) == 0
    assert "--scenario.wind FLOAT" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["selector", "aggregator", "optimiser", "metric", "world", "learner"])
def test_the_how_to_pages_show_how_to_check_a_plug_in(example, kind: str) -> None:
    article = "an" if kind == "aggregator" else "a"
    page = DOCS / "how-to" / f"add-{article}-{kind.replace('optimiser', 'server-optimiser')}.md"
    (check,) = [code for code in blocks(page, "python") if re.match(r"(import|from) own_", code)]
    assert f"\ncheck_{kind}(" in check
    exec(compile(check, page.name, "exec"), {})


def test_the_example_of_a_learner_checks_itself_as_its_page_does_and_improves_its_policy(example) -> None:
    module = example("own_learner")
    *_, check = blocks(DOCS / "how-to" / "add-a-learner.md", "python")
    assert check.splitlines()[-1] in inspect.getsource(module.check)
    returns = module.main(rounds=3, out=Path("run")).mean_returns
    assert load_run(Path("run")).complete
    assert returns[-1] > returns[0] + 1


def test_the_example_of_a_recurrent_network_remembers_what_others_cannot(example) -> None:
    module = example("recurrent_network")
    assert max(module.main(rounds=10).mean_returns[6:]) > 0.9
    assert max(module.main(rounds=6, window=1).mean_returns) < 0.75


def test_the_example_of_a_network_acts_row_by_row_and_trains(example) -> None:
    network = example("own_network").convolution(6, 3)
    weights = network.init(jax.random.key(0))
    seen = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    together = network.apply(weights, seen)
    assert together.shape == (4, 3)
    np.testing.assert_allclose(together, [network.apply(weights, row) for row in seen], rtol=1e-5, atol=1e-6)
    returns = example("own_network").main(rounds=3, out=Path("run")).mean_returns
    assert load_run(Path("run")).complete
    assert returns[-1] > returns[0] + 1


def test_the_newcomer_trains_exports_and_acts_without_jax(example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples"))  # for the workers that play
    module = example("newcomer")
    returns, arrays, graph = module.main(Path("runs"))
    assert max(returns) > returns[0] / 2  # the mean cost halves at least
    observed = np.random.default_rng(0).uniform((5, -10), (35, 30), (20, 2)).astype(np.float32)
    acted = load_policy(arrays).act(observed)
    (action, *_) = onnxruntime.InferenceSession(graph).run(["action"], {"observation": observed})
    np.testing.assert_allclose(action, acted, atol=1e-5)
    code = f"""import sys; sys.modules["jax"] = None
from pathlib import Path; import newcomer
print(newcomer.act(Path({str(arrays)!r}), newcomer.make_room(3), client=3))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(module.act(arrays, module.make_room(3), client=3))
    untrained = module.act(arrays, module.Room(leak=0.15))
    assert untrained > returns[0]  # a room that never trained gains as well


def test_reachers_differ_as_published(example) -> None:
    pytest.importorskip("mujoco")
    pytest.importorskip("imageio")
    module = example("reachers")
    offsets = np.array([module.offset_of(client) for client in range(2000)])
    assert abs(offsets).max() == 1  # 1.2 % of normal numbers are beyond
    assert offsets.std() == pytest.approx(0.4, abs=0.01)
    corners = np.array([module.corner_of(client) for client in range(64)])
    assert len(np.unique(corners, axis=0)) == 64
    np.testing.assert_allclose([corners.min(), corners.max()], [-0.2, 0.15])
    cell, both = module.with_goal(10), module.with_both(10)
    goals = np.array([cell.reset(seed=seed)[0][4:6] for seed in range(20)])
    assert ((goals >= corners[10]) & (goals <= corners[10] + 0.05)).all()
    assert len(np.unique(goals, axis=0)) == 20
    np.testing.assert_array_equal(both.reset(seed=0)[0], cell.reset(seed=0)[0])
    there, here = both.step(np.zeros(2, np.float32)), cell.step(module.offset_of(10))
    np.testing.assert_array_equal(there[0], here[0])


def test_a_federation_of_reachers_trains(example, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    pytest.importorskip("imageio")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples"))  # for the workers that play
    example("reachers")
    federation = ["--env", "reachers:with_both", "--clients", "3", "--federation.evaluation-episodes", "2"]
    learner = ["--learner.kind", "fedkl", "--learner.steps-per-iteration", "60", "--learner.filter-warmup-steps", "50"]
    assert main(["train", "gym", *federation, *learner, "--rounds", "1", "--groups", "1", "--out", "run"]) == 0
    assert len(set(load_run(Path("run")).client_returns[1].tolist())) == 3


def test_the_tutorial_notebook_runs_and_its_text_belongs_to_its_code(
    registries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell, printed in run_notebook(json.loads(read(DOCS / "tutorial.ipynb")), "tutorial_notebook"):
        stored = "".join(line for output in cell["outputs"] for line in output["text"])
        assert bool(printed.strip()) == bool(stored.strip())
        assert re.sub(r"[-+\d.]+", "#", printed).split()[:8] == re.sub(r"[-+\d.]+", "#", stored).split()[:8]
    module = sys.modules["tutorial_notebook"]
    monkeypatch.delitem(sys.modules, "tutorial_notebook")
    assert module.history.mean_returns[-1] > module.history.mean_returns[0] / 2
    assert Path("runs/tutorial/report.html").is_file()
    assert Path("runs/tutorial/policy.onnx").is_file()


def test_every_public_name_is_in_the_python_reference() -> None:
    listed = {
        name for page in (DOCS / "reference").glob("*.md") for name in re.findall(r"^::: (\S+)$", read(page), re.M)
    }
    assert [name for name in sorted(listed) if not exists(name)] == []
    short = {name.rpartition(".")[2] for name in listed}
    assert set(fedpohcs.__all__) - short == {"__version__"}


def test_every_page_is_in_the_navigation_once() -> None:
    linked = re.findall(r": ([\w/-]+\.md)$", read(ROOT / "mkdocs.yml"), flags=re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES] + ["tutorial.md"]  # made of the notebook
    assert sorted(linked) == sorted(pages)


def test_every_algorithm_has_a_row_on_its_page() -> None:
    page = read(DOCS / "how-to" / "algorithms.md")
    assert not [name for name in ALGORITHMS if f"| `{name}` |" not in page]


@pytest.mark.parametrize("kind", ["fedprox", "fedkl", "fmarl", "a2c", "npg", "trpo"])
def test_settings_that_a_relative_of_ppo_adds_are_documented_with_their_defaults(kind: str) -> None:
    config = learner_class(kind)()
    rows = re.findall(rf"^\| `{kind}` \| `(\w+)` \| `(.*?)` \|", read(DOCS / "configuration.md"), flags=re.MULTILINE)
    added = vars(type(config))["__annotations__"].keys() - {"kind", "algorithm"}
    assert dict(rows) == {name: repr(getattr(config, name)).replace("'", '"') for name in added}


@pytest.mark.parametrize(("kind", "relative"), [("dcpi", "dqn"), ("ddpg", "dqn"), ("td3", "ddpg"), ("sac", "dqn")])
def test_settings_in_which_a_relative_of_dqn_differs_are_documented_with_their_defaults(
    kind: str, relative: str
) -> None:
    config, usual = vars(learner_class(kind)()), vars(learner_class(relative)())
    rows = re.findall(rf"^\| `{kind}` \| `(\w+)` \| `(.*?)` \|", read(DOCS / "configuration.md"), flags=re.MULTILINE)
    differs = {name: value for name, value in config.items() if name not in usual or usual[name] != value}
    del differs["kind"]
    assert dict(rows) == {name: repr(value).replace("'", '"') for name, value in differs.items()}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_setting_is_documented_with_its_default(config: type) -> None:
    section = read(DOCS / "configuration.md").partition(f"## `{config.__name__}`\n")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", section, flags=re.MULTILINE))
    made = config()
    defaults = {field.name: getattr(made, field.name) for field in dataclasses.fields(config)}
    expected = {
        name: f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else repr(value).replace("'", '"')
        for name, value in defaults.items()
    }
    assert documented == expected


@pytest.mark.parametrize("kind", ["selectors", "worlds", "presets", "aggregators", "optimisers", "levels"])
def test_every_registered_name_is_on_the_first_page(kind: str) -> None:
    levels = {level for world in WORLDS for level in world_levels(world)}
    names = {"selectors": SELECTORS, "worlds": WORLDS, "presets": PRESETS, "aggregators": AGGREGATORS}
    names |= {"optimisers": OPTIMISERS, "levels": levels}
    missing = [name for name in names[kind] if f"`{name}`" not in read(DOCS / "index.md")]
    assert not missing


def test_every_column_and_file_of_a_run_is_documented(made_up_runs: None) -> None:
    page = read(DOCS / "run-folder.md")
    sections = {"rounds.csv": ROUND_COLUMNS, "clients.csv": CLIENT_COLUMNS, "timings.csv": TIMING_COLUMNS}
    for file, columns in sections.items():
        section = page.partition(f"## `{file}`\n")[2].partition("\n## ")[0]
        table = section.partition("| Column |")[2].partition("\n\n")[0]
        assert tuple(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == columns
    assert main(["train", "tabular", "--out", "run"]) == 0
    for path in Path("run").iterdir():
        assert f"## `{path.name}`" in page


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", read(page), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


def test_every_fault_has_a_row_and_every_test_named_there_exists() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", read(DOCS / "faults.md"), flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 53))
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", read(DOCS / "faults.md"))
    missing = [name for file, name in named if f"def {name}(" not in read(ROOT / "tests" / file)]
    assert not missing
    reasons = r"\| - \(.+\)$"
    assert not [number for number, row in rows if "::test_" not in row and not re.search(reasons, row)]


def test_every_name_of_the_paper_map_exists() -> None:
    names = set(re.findall(r"`((?:\w+\.)+\w+)`", read(DOCS / "paper-map.md")))
    names = {name for name in names if not re.search(r"\.(csv|toml|py|md)$", name)}
    assert len(names) > 40
    missing = [name for name in sorted(names) if not exists(name)]
    assert not missing


def exists(name: str) -> bool:
    """Whether a dotted name, relative to the package or to a module the map names in full, leads to something."""
    homes = ("", "core.config.", "execution.in_process.", "server.protocols.")
    return any(_resolves(f"fedpohcs.{home}{name.removeprefix('fedpohcs.')}".split(".")) for home in homes)


def _resolves(parts: list[str]) -> bool:
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            annotations = getattr(found, "__annotations__", {})
            if not hasattr(found, part) and part not in annotations:
                return False
            found = getattr(found, part, None)
        return True
    return False
