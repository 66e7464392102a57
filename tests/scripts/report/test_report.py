"""The whole file: what it shows of which runs, what it never does, and how a browser draws it."""

import json
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from shutil import which

import pytest
from PIL import Image

from grpo.diagnosis.diagnose import diagnose
from scripts.report.__main__ import main, read_runs, render
from tests.scripts.report.conftest import make_eval_line, make_sample, write_lines

HOSTILE = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&"
BROWSER = which("chromium") or which("chromium-browser") or which("google-chrome")


class Page(HTMLParser):
    """The elements and the text of a page, without its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._is_script = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes += attributes
        self._is_script = tag == "script"

    def handle_endtag(self, tag):
        self._is_script = False

    def handle_data(self, data):
        self.text += "" if self._is_script else data


def show(folder: Path, *others: Path) -> str:
    runs = read_runs([folder, *others])
    return render(runs, {run.name: diagnose(run.metrics, run.evals, run.config) for run in runs})


def test_one_run(make_run, capsys):
    folder = make_run()
    assert main([str(folder)]) == 0
    out = folder / "report.html"
    assert capsys.readouterr().out.strip() == str(out)
    page = Page(out.read_text(encoding="utf-8"))
    written = {name for row in (folder / "metrics.jsonl").read_text().splitlines() for name in json.loads(row)}
    assert [name for name in written - {"time", "seconds", "step"} if name not in page.text] == []
    for words in ("held-out exact match", "+0.667", "thought 6", "\\boxed{6}", "generate"):
        assert words in page.text, words


def test_several_runs_are_compared(make_run, tmp_path):
    folders = [make_run("a", seed=1, n_samples=8), make_run("b", seed=2, n_samples=16), make_run("c", seed=1, steps=9)]
    out = tmp_path / "all.html"
    assert main([*map(str, folders), "--out", str(out)]) == 0
    page = Page(out.read_text())
    assert "against a" in page.text and "differs in" in page.text and "n_samples" in page.text
    assert main([str(folders[0]), str(folders[0])]) == 2, "named twice"
    assert main([str(tmp_path)]) == 2, "no run"


def test_contents_of_files_never_become_markup_and_the_page_needs_no_network(make_run):
    folder = make_run("x & <b>")
    plain = Page(show(folder))
    write_lines(
        folder / "samples" / "step_30.jsonl", [make_sample(1, 0.0, 0.5, HOSTILE) | {HOSTILE: 1, "prompt": HOSTILE}]
    )
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 31, HOSTILE: 1.0}) + "\n" + json.dumps({"step": 32, HOSTILE: 2.0}) + "\n")
    (folder / "config.json").write_text(json.dumps({"flags": {HOSTILE: HOSTILE}, "changes": {HOSTILE: [HOSTILE, ""]}}))
    (folder / "env.json").write_text(json.dumps({HOSTILE: {HOSTILE: HOSTILE}}))
    (folder / "resumes.jsonl").write_text(json.dumps({"step": 3, "changed": {HOSTILE: [HOSTILE, "b"]}}) + "\n")
    html = show(folder)
    page = Page(html)
    assert page.tags["script"] == plain.tags["script"] and page.tags["img"] == 0 and page.text.count(HOSTILE) > 8
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert {value for name, value in page.attributes if name in ("src", "href", "action")} == set()
    assert "default-src 'none'" in html


def test_secrets_are_replaced_by_their_names(make_run, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "very-secret&value")
    html = show(make_run(oops="very-secret&value"))
    assert "very-secret" not in html and "<SOME_API_KEY>" in Page(html).text


@pytest.mark.parametrize(
    "lines", ["", "{}\n", '{"step": 1}\n', '{"step": 1, "reward": 1e400, "x": "y"}\n[1]\nnonsense\n']
)
def test_a_run_with_hardly_anything_has_a_page(make_run, lines):
    folder = make_run(evals=False)
    (folder / "metrics.jsonl").write_text(lines)
    assert "Rollouts" in Page(show(folder)).text


@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine: apt-get install chromium")
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_a_browser_draws_the_curves(make_run, tmp_path, is_dark):
    folder = make_run("first", steps=120)
    response = "<script>document.body.remove()</script>"
    write_lines(folder / "samples" / "step_120.jsonl", [make_sample(1, 0.0, 0.5, response)])
    with (folder / "eval.jsonl").open("a") as file:
        file.write(json.dumps(make_eval_line(121, 0.9)) + "\n")
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(show(folder))
    words = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'user'}",
    ]
    words += ["--window-size=1280,2000", "--virtual-time-budget=20000", f"--screenshot={picture}"]
    words += ["--blink-settings=preferredColorScheme=0"] if is_dark else []
    done = subprocess.run([str(BROWSER), *words, page.as_uri()], capture_output=True, text=True, timeout=110)
    lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "[bokeh" not in line]
    assert lines == [], "an error, or a request that the page's policy refuses"
    with Image.open(picture).convert("RGB") as image:
        colors = Counter(image.getdata())
    background, blue = colors.most_common(1)[0][0], colors[0x1F, 0x77, 0xB4]
    assert (sum(background) < 200) == is_dark and blue > 2000, "curves and evaluations"
