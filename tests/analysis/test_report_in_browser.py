"""The report in a real browser: it draws, listens, fits, complains of nothing and asks nobody for anything."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import browser
import pytest
from browser import Page, open_page

from conftest import MakeRun, made_up_records
from fedpohcs.analysis.groups import load_groups
from fedpohcs.analysis.live import LiveReport, serve
from fedpohcs.analysis.report import write_report
from fedpohcs.core.presets import preset
from fedpohcs.runs.folder import RunFolder
from fedpohcs.runs.loading import read_config

pytestmark = pytest.mark.skipif(browser.CHROMIUM is None, reason="needs Chromium; on Debian: apt install chromium")

FIGURES = ("curves", "selection", "returns", "scores", "client", "client-score", "seconds")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_page() as page:
        yield page


@pytest.fixture(autouse=True)
def no_complaints(page: Page) -> Iterator[None]:
    page.problems.clear()
    page.requests.clear()
    yield
    page.run("1")  # takes in what is still on its way
    assert page.problems == []
    own = ("file:", "data:", "http://127.0.0.1:")
    assert [url for url in page.requests if not url.startswith(own)] == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two levels, three selectors, two seeds."""
    folder = tmp_path_factory.mktemp("report")
    for level in ("low", "high"):
        for slope, selector in enumerate(("fedavg", "fedpohcs", "power-of-choice")):
            for seed in (0, 1):
                config = replace(preset("tabular", level, selector), seed=seed, rounds=15)
                run = RunFolder.create(folder / "runs" / f"{level}-{selector}-{seed}", config)
                for record in made_up_records(config, slope + 1.0):
                    run.append(record)
    write_report(load_groups([folder / "runs"]), folder / "report.html")
    return (folder / "report.html").as_uri()


def count(page: Page, selector: str) -> int:
    return page.run(f"document.querySelectorAll({selector!r}).length")


def choose(page: Page, select: str, value: str) -> None:
    page.run(f"{{const it = byId({select!r}); it.value = {value!r}; it.dispatchEvent(new Event('change'))}}")


def curve(page: Page, index: int = 0) -> str:
    return page.run(f"document.querySelectorAll('#fig-curves .curve')[{index}].getAttribute('d')")


def test_every_chart_is_drawn_with_labelled_axes(page: Page, report: str) -> None:
    page.open(report)
    for figure in FIGURES:
        assert count(page, f"#fig-{figure} svg.chart :is(path, rect, image, circle)") > 0, figure
        assert page.run(f"document.querySelector('#fig-{figure} svg').getAttribute('aria-label').length") > 10
        assert "NaN" not in page.run(f"document.querySelector('#fig-{figure}').innerHTML")
    text = page.run("document.querySelector('#fig-curves').textContent")
    assert "mean return over all clients" in text and "round" in text
    assert count(page, "#participation figure") == 3
    assert count(page, "#participation .bar") == 3 * 12
    assert count(page, "#forests figure") >= 6
    assert count(page, "#tables table tbody tr") > 10
    assert '"num_candidates": 6' in page.run("byId('configs').textContent")


def test_the_page_begins_with_what_the_runs_show_and_leads_to_each_world(page: Page, report: str) -> None:
    page.open(report)
    assert page.run("document.querySelector('#findings').compareDocumentPosition(byId('controls')) & 4") == 4  # before
    titles = page.run("[...document.querySelectorAll('.finding h3')].map((it) => it.textContent)")
    assert titles == ["tabular, high", "tabular, low"]
    first = page.run("document.querySelector('.finding p').textContent")
    assert first == "power-of-choice ends highest, with a mean return of 26.5 [26.0, 27.0] over rounds 6-15 (2 seeds)."
    page.run("document.querySelectorAll('.finding button')[1].click()")
    assert page.run("byId('level').value") == "tabular, low"
    assert "low heterogeneity" in page.run("byId('tables').textContent").lower()


def test_inside_one_run_opens_on_the_best_run_of_the_level(page: Page, report: str) -> None:
    page.open(report)
    assert page.run("[byId('run-scheme').value, byId('run-seed').value]") == ["power-of-choice", "1"]
    choose(page, "run-scheme", "fedavg")
    assert page.run("[byId('run-scheme').value, byId('run-seed').value]") == ["fedavg", "0"]
    choose(page, "level", "tabular, low")
    assert page.run("[byId('run-scheme').value, byId('run-seed').value]") == ["power-of-choice", "1"]


def test_axes_have_units_and_labels_that_differ(page: Page, report: str) -> None:
    page.open(report)
    assert "of messages are not recorded" in page.run("byId('fig-bytes').textContent")  # made-up runs have no policy
    assert "seconds per round" in page.run("document.querySelector('#fig-seconds svg').textContent")
    for clock, label in (("minutes", "time without evaluation (minutes)"), ("rounds", "round")):
        choose(page, "clock", clock)
        assert label in page.run("document.querySelector('#fig-curves svg').textContent")
    assert page.run("tickLabels([0, 2e-7, 4e-7])") == ["0.0e+0", "2.0e\u22127", "4.0e\u22127"]
    assert page.run("tickLabels([0, 0.00005, 0.0001])") == ["0.00000", "0.00005", "0.00010"]
    repeated = page.run("""[...document.querySelectorAll('svg.chart')].filter((chart) => {
      const labels = [...chart.querySelectorAll("text[text-anchor=middle]")].map((it) => it.textContent);
      return new Set(labels).size < labels.length;
    }).length""")
    assert repeated == 0


def test_small_messages_are_shown_in_a_unit_that_fits(page: Page, report: str) -> None:
    page.open(report)
    page.run("{ for (const group of panel().groups) group.bytes = { measure: 120, train: 4800 }; draw(); }")
    text = page.run("document.querySelector('#fig-bytes svg').textContent")
    assert "4.92 kilobytes per round" in text


def test_the_curve_shows_the_numbers_of_the_runs(page: Page, report: str) -> None:
    page.open(report)
    page.run("byId('whole').click()")
    heights = [float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", curve(page))]
    assert len(heights) == 16
    steps = [before - after for before, after in pairwise(heights)]
    assert max(steps) - min(steps) < 0.3  # a straight line upwards, as the made-up returns are
    assert min(steps) > 0


def test_heat_maps_have_a_pixel_for_every_client_and_round(page: Page, report: str) -> None:
    page.open(report)
    sizes = page.run("""[...document.querySelectorAll('#inside image')].map((image) => {
      const bytes = atob(image.getAttribute('href').split(',')[1]);
      const number = (at) => [0, 1, 2, 3].reduce((sum, i) => sum * 256 + bytes.charCodeAt(at + i), 0);
      return [number(16), number(20)];
    })""")
    assert sizes == [[16, 12]] * 3


def test_schemes_can_be_switched_off_and_on(page: Page, report: str) -> None:
    page.open(report)
    assert count(page, "#fig-curves .curve") == 3
    page.run("document.querySelector('.chip').click()")
    assert count(page, "#fig-curves .curve") == 2
    assert count(page, "#participation figure") == 2
    assert page.run("document.querySelector('.chip').getAttribute('aria-pressed')") == "false"
    for chip in (1, 2):
        page.run(f"document.querySelectorAll('.chip')[{chip}].click()")
    assert "switch one on" in page.run("byId('fig-curves').textContent")
    page.run("document.querySelector('.chip').click()")
    assert count(page, "#fig-curves .curve") == 1


def test_smoothing_seeds_bands_axis_and_level_change_the_curves(page: Page, report: str) -> None:
    page.open(report)
    before = curve(page)
    page.run("{const it = byId('smoothing'); it.value = 5; it.dispatchEvent(new Event('input'))}")
    assert curve(page) != before
    assert page.run("byId('smoothing-value').textContent") == "5 rounds"
    page.run("byId('seeds').click()")
    assert count(page, "#fig-curves .seed") == 6
    assert count(page, "#fig-curves .band") == 3
    page.run("byId('bands').click()")
    assert count(page, "#fig-curves .band") == 0
    choose(page, "clock", "minutes")
    assert "minutes" in page.run("document.querySelector('#fig-curves svg').textContent")
    choose(page, "level", "tabular, high")
    assert "high heterogeneity" in page.run("byId('tables').textContent").lower()


def test_another_run_score_and_client_can_be_looked_at(page: Page, report: str) -> None:
    page.open(report)
    choose(page, "run-scheme", "power-of-choice")
    choose(page, "run-seed", "1")
    page.run("{const it = byId('run-client'); it.value = 5; it.dispatchEvent(new Event('input'))}")
    assert "Return of client 5" in page.run("byId('fig-client').textContent")
    assert "power-of-choice, seed 1" in page.run(
        "document.querySelector('#fig-returns svg').getAttribute('aria-label')"
    )


def test_charts_can_be_walked_with_the_keyboard(page: Page, report: str) -> None:
    page.open(report)
    page.run("document.querySelector('#fig-curves svg').focus()")
    page.press("ArrowLeft")
    assert page.run("document.querySelector('#fig-curves .readout').textContent").startswith("round 14: fedavg 9.00")
    page.run("document.querySelector('#fig-selection svg').focus()")
    page.press("ArrowUp")
    assert page.run("document.querySelector('#fig-selection .readout').textContent") == "round 15, client 1: selected"
    page.press("Enter")
    assert "Return of client 1" in page.run("byId('fig-client').textContent")
    assert page.run("document.activeElement.closest('figure').id") == "fig-selection"


def test_controls_are_reached_by_the_tab_key_and_have_names(page: Page, report: str) -> None:
    page.open(report)
    nameless = page.run("""[...document.querySelectorAll('button, select, input')].filter((it) =>
      !it.labels?.length && !it.textContent.trim() && !it.getAttribute('aria-label')).map((it) => it.id)""")
    assert nameless == []
    assert count(page, "[tabindex]:not([tabindex='0'])") == 0


def test_dark_follows_the_system_and_can_be_switched(page: Page, report: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page.open(report, dark=True)
    assert page.run(background) == "rgb(13, 17, 23)"
    page.run("byId('theme').click()")
    assert page.run(background) == "rgb(255, 255, 255)"
    page.open(report)
    assert page.run(background) == "rgb(255, 255, 255)"
    page.run("byId('theme').click()")
    assert page.run(background) == "rgb(13, 17, 23)"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_is_wider_than_a_small_screen(page: Page, report: str, width: int) -> None:
    page.open(report, width=width)
    page.run("document.querySelectorAll('details').forEach((it) => { it.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_print_is_light_and_shows_all_tables(page: Page, report: str) -> None:
    page.open(report, dark=True)
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("[...document.querySelectorAll('#tables details')].every((it) => it.open)")
    page.call("Emulation.setEmulatedMedia", media="")


def test_a_run_of_round_0_alone_is_shown(page: Page, make_run: MakeRun, tmp_path: Path) -> None:
    write_report(load_groups([make_run(rounds=5, stop_after=0)]), tmp_path / "start.html")
    page.open((tmp_path / "start.html").as_uri())
    assert "1 of them stopped early" in page.run("byId('summary').textContent")
    assert "No round has been trained yet" in page.run("byId('fig-seconds').textContent")
    assert count(page, "#fig-returns image") == 1


def test_a_watched_page_follows_the_run_and_keeps_what_the_reader_chose(
    page: Page, make_run: MakeRun, tmp_path: Path
) -> None:
    path = make_run("runs/live", rounds=20, stop_after=3)
    make_run("runs/done", rounds=20, selector="fedavg")
    with serve(LiveReport([tmp_path / "runs"], "Live")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{server.server_port}/")
        assert "1 under way" in page.run("byId('summary').textContent")
        page.run("document.querySelector('[data-label=fedavg]').click()")
        choose(page, "run-scheme", "fedpohcs")
        config = read_config(path)
        for record in made_up_records(config):
            if record.round > 3:
                RunFolder(path, config).append(record)
        page.wait_for("!byId('summary').textContent.includes('under way')")
        assert count(page, "#fig-curves .curve") == 1
        assert page.run("document.querySelector('#fig-curves .curve').getAttribute('d').split('L').length") == 21
        assert page.run("byId('run-scheme').value") == "fedpohcs"
        server.shutdown()
