"""The page in a real browser, as wide as a phone and as a desk's screen, light and dark."""

import json
import re
from pathlib import Path

import pytest

from grpo.diagnosis.finding import Diagnosis
from grpo.metrics.metric_schema import SCHEMA
from scripts.report.page import render
from scripts.report.runs import read
from tests.scripts.report.browser import PROGRAMS, Browser, find_program
from tests.scripts.report.conftest import UNSEEN, Finding, make_sample, write_lines

pytestmark = pytest.mark.skipif(
    find_program() is None, reason=f"no browser on this machine ({', '.join(PROGRAMS)}): apt-get install chromium"
)

WIDTHS = (390, 1280)
# What each chart has to show: a curve or a point of every run, with a size, inside of the page.
CHARTS = """[...document.querySelectorAll('[data-panel]')].map(figure => {
    const box = figure.querySelector('.chart').getBoundingClientRect();
    return {
        name: figure.querySelector('h3').textContent.trim().split(' ')[0],
        width: box.width, height: box.height, left: box.left, right: box.right,
        ink: [...figure.querySelectorAll('.plot > g')].map(run => [...run.querySelectorAll('path')].some(
            path => path.getTotalLength() > 0 || path.classList.contains('dots'))),
        labels: [...figure.querySelectorAll('.y text, .x text')].map(text => text.textContent),
        places: [...figure.querySelectorAll('.y text, .x text')].map(text => Math.round(text.getAttribute('x'))),
    };
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    page = Browser(tmp_path_factory.mktemp("browser"))
    yield page
    page.close()


@pytest.fixture
def several_runs(make_run, tmp_path) -> Path:
    """A report of two runs of other lengths, with findings, a resumption and hostile texts."""
    folders = [make_run("first", steps=120), make_run("second", steps=60, seed=1)]
    response = "<script>window.hit = 1</script><img src='http://127.0.0.1:9/x.png' onerror='window.hit = 2'>"
    write_lines(folders[0] / "samples" / "step_120.jsonl", [make_sample(1, 0.0, 0.5, response)])
    write_lines(folders[1] / "resumes.jsonl", [{"step": 30, "changed": {}}])
    runs = read(folders)
    diagnosis = Diagnosis(50, 0, [Finding("spike", 40, "loss"), Finding("x", 41, "y")])
    return write(tmp_path / "several.html", render(runs, {"first": diagnosis}))


def write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def open_page(browser: Browser, page: Path, **how) -> None:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(page, **how)


def check_page(browser: Browser, page: Path, width: int) -> list[dict]:
    """Check what holds for every page, and return its charts."""
    assert browser.errors == []
    assert browser.requests == [page.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    charts = browser.evaluate(CHARTS)
    for chart in charts:
        if not chart["width"]:  # in a folded part
            continue
        assert chart["width"] > 250 and chart["height"] > 100 and 0 <= chart["left"] < chart["right"] <= width, chart
        assert all(chart["ink"]) and len(chart["labels"]) >= 4, chart
    return charts


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_there(browser, several_runs, width, scheme):
    open_page(browser, several_runs, width=width, scheme=scheme, touch=width == min(WIDTHS))
    charts = check_page(browser, several_runs, width)
    assert {chart["name"] for chart in charts} == {m.name for m in SCHEMA if m.name not in UNSEEN}
    assert all(len(chart["ink"]) == 2 for chart in charts)
    assert browser.evaluate("window.hit") is None


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_that_has_just_begun(browser, make_run, tmp_path, steps):
    folder = make_run(steps=steps, evals=False)
    page = write(tmp_path / "page.html", render(read([folder])))
    open_page(browser, page)
    assert len(check_page(browser, page, 1280)) > 50
    browser.send_mouse("mouseMoved", *scroll_to(browser, "reward"))
    assert read_readout(browser, "reward")[0] in ("step 1", "step 2") and browser.errors == []


def test_a_run_without_a_step(browser, make_run, tmp_path):
    folder = make_run(evals=False)
    (folder / "metrics.jsonl").unlink()
    page = write(tmp_path / "page.html", render(read([folder])))
    open_page(browser, page)
    assert check_page(browser, page, 1280) == [] and browser.evaluate("document.body.innerText.includes('No step')")


def scroll_to(browser: Browser, name: str, share: float = 0.5) -> tuple[float, float]:
    """Scroll a metric's plot into sight, and return a point of it."""
    box = browser.evaluate(
        f"(() => {{ const plot = {select_figure(name)}.querySelector('.chart');"
        " plot.scrollIntoView({block: 'center'});"
        " const box = plot.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"
    )
    left, top, width, height = box
    return left + width * (44 + 306 * share) / 360, top + height / 2


def select_figure(name: str) -> str:
    return (
        "[...document.querySelectorAll('[data-panel]')]"
        f".find(one => one.querySelector('h3').textContent.trim().split(' ')[0] === {json.dumps(name)})"
    )


def read_readout(browser: Browser, name: str) -> list[str]:
    return browser.evaluate(
        f"[...{select_figure(name)}.querySelector('.readout').children].map(one => one.textContent)"
    )


def set_range(browser: Browser, begin: int, end: int) -> None:
    browser.evaluate(
        f"(() => {{ const form = document.querySelector('.range'); form.from.value = {begin}; form.to.value = {end};"
        " form.dispatchEvent(new Event('change')); })()"
    )


def test_values_are_read_below_the_pointer(browser, several_runs):
    open_page(browser, several_runs)
    before = read_readout(browser, "reward")
    browser.send_mouse("mouseMoved", *scroll_to(browser, "reward"))
    label, *values = read_readout(browser, "reward")
    step = int(label.removeprefix("step "))
    assert 58 <= step <= 62  # of 0 to 120
    curves = read_data(several_runs, browser, "reward")["curves"]
    shown = [curve["values"][curve["steps"].index(step)] for curve in curves if step in curve["steps"]]
    assert len(shown) == len(values) and [float(value.split(";")[0]) for value in values] == pytest.approx(
        shown, rel=0.01
    )
    browser.send_mouse("mouseMoved", *scroll_to(browser, "exact_match"))
    assert read_readout(browser, "reward") == before
    assert "held-out 0.5 [0.4, 0.6]" in read_readout(browser, "exact_match")[1]


def read_data(page: Path, browser: Browser, name: str) -> dict:
    number = int(browser.evaluate(f"{select_figure(name)}.dataset.panel"))
    text = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert text
    return json.loads(text.group(1))["panels"][number]


def test_zooming_fits_the_axes_and_all_is_as_python_drew_it(browser, several_runs):
    open_page(browser, several_runs)
    drawn = browser.evaluate(CHARTS)
    set_range(browser, 50, 60)
    for chart in check_page(browser, several_runs, 1280):
        steps = [int(label) for label in chart["labels"] if label.isdigit()][-3:]
        assert all(50 <= step <= 60 for step in steps)
    box = [
        float(number)
        for number in browser.evaluate(
            f"{select_figure('reward')}.querySelector('.plot').getAttribute('viewBox')"
        ).split()
    ]
    assert 0 < box[0] < 10_000 and box[2] < 2_000
    browser.evaluate("document.querySelector('.range button').click()")
    again = browser.evaluate(CHARTS)
    for before, after in zip(drawn, again, strict=True):
        assert (before["labels"], before["places"]) == (after["labels"], after["places"]), before["name"]


def test_dragging_zooms(browser, several_runs):
    open_page(browser, several_runs)
    begin, end = scroll_to(browser, "reward", 0.25), scroll_to(browser, "reward", 0.5)
    browser.send_mouse("mousePressed", *begin, button="left", clickCount=1)
    browser.send_mouse("mouseMoved", *end, button="left", buttons=1)
    browser.send_mouse("mouseReleased", *end, button="left", clickCount=1)
    begin, end = (int(browser.evaluate(f"document.querySelector('.range').{name}.value")) for name in ("from", "to"))
    assert abs(begin - 30) <= 2 and abs(end - 60) <= 2 and browser.errors == []


def test_a_run_is_hidden_and_the_theme_changed(browser, several_runs):
    open_page(browser, several_runs, scheme="light")
    browser.evaluate("document.querySelector('[data-run=\"1\"]').click()")
    shown = browser.evaluate(
        f"[...{select_figure('reward')}.querySelectorAll('.plot > g')].map(g => getComputedStyle(g).display)"
    )
    assert shown == ["inline", "none"]
    light = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    browser.evaluate("document.querySelector('.theme').click()")
    assert (
        compute_brightness(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        < 0.05
        < compute_brightness(light)
    )


def compute_brightness(color: str) -> float:
    """The relative luminance of WCAG 2.1, 0 to 1, of an opaque color."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(browser, several_runs, scheme):
    open_page(browser, several_runs, scheme=scheme)
    for selector in (
        "h1",
        ".note",
        ".tile h3",
        ".meaning",
        ".healthy",
        ".off .healthy",
        ".chart text",
        ".mark",
        ".grade",
    ):
        ink = browser.evaluate(f"(style => style.fill !== 'rgb(0, 0, 0)' ? style.fill : style.color)"
                            f"(getComputedStyle(document.querySelector({json.dumps(selector)})))")  # fmt: skip
        for ground in ("body", ".tile"):
            paper = browser.evaluate(f"getComputedStyle(document.querySelector({json.dumps(ground)})).backgroundColor")
            low, high = sorted((compute_brightness(ink), compute_brightness(paper)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (selector, ink, paper)
