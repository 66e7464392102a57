"""The whole file: what it shows of which runs, and what it never does."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from grpo.diagnosis import finding as real_finding
from grpo.diagnosis.finding import Diagnosis, Evidence
from grpo.metrics.metric_schema import SCHEMA
from grpo.run import run_settings
from scripts.report import headline
from scripts.report.__main__ import main
from scripts.report.chart import draw
from scripts.report.page import render
from scripts.report.panels import missing, panels
from scripts.report.runs import read
from tests.scripts.report.conftest import UNSEEN, Finding, make_eval_line, make_sample, write_lines

HOSTILE = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&"


class Page(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def read_data(html: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))


def count_panels(html: str) -> int:
    return sum("data-panel" in attributes for _, attributes in Page(html).tags)


def test_one_run(make_run, capsys):
    folder = make_run()
    assert main([str(folder)]) == 0
    out = folder / "report.html"
    assert capsys.readouterr().out.strip() == str(out)
    page = Page(out.read_text(encoding="utf-8"))
    for metric in SCHEMA:
        assert metric.name in page.text or metric.when  # drawn or named as missing, if no option has to be on
    assert count_panels(out.read_text()) == len(SCHEMA) - len(UNSEEN)
    for words in ("held-out exact match", "+0.667", "seconds.old_log_probs", "thought 3", "Other columns"):
        assert (words in page.text) == (words != "Other columns"), words


def test_several_runs_are_compared(make_run, tmp_path):
    folders = [make_run("a", seed=1, n_samples=8), make_run("b", seed=2, n_samples=16), make_run("c", seed=1, steps=9)]
    out = tmp_path / "all.html"
    assert main([*map(str, folders), "--out", str(out)]) == 0
    runs = read(folders)
    assert run_settings.differences(runs) == {
        "name": ["a", "b", "c"],
        "seed": ["1", "2", "1"],
        "n_samples": ["8", "16", run_settings.ABSENT],
    }
    page = Page(out.read_text())
    assert "held-out, against a" in page.text and count_panels(out.read_text()) == len(SCHEMA) - len(UNSEEN)
    panel = read_data(out.read_text())["panels"][1]
    assert [curve["run"] for curve in panel["curves"]] == [0, 1, 2]
    assert [len(curve["steps"]) for curve in panel["curves"]] == [30, 30, 9]


def test_file_contents_never_become_markup(make_run, tmp_path):
    folder = make_run("x & <b>")
    plain = Page(render(read([folder])))
    write_lines(
        folder / "samples" / "step_30.jsonl", [make_sample(1, 0.0, 0.5, HOSTILE) | {HOSTILE: 1, "prompt": HOSTILE}]
    )
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 31, HOSTILE: 1.0}) + "\n")
    with (folder / "eval.jsonl").open("a") as file:
        sources = {HOSTILE: {"exact_match": 0.5}, "other": {HOSTILE: 2}}
        file.write(json.dumps({"step": 31, "exact_match": 0.5, "by_source": sources}) + "\n")
    (folder / "config.json").write_text(json.dumps({"flags": {HOSTILE: HOSTILE}, "given": {HOSTILE: [HOSTILE]}}))
    (folder / "env.json").write_text(json.dumps({HOSTILE: {HOSTILE: HOSTILE}}))
    (folder / "resumes.jsonl").write_text(json.dumps({"step": 3, "changed": {HOSTILE: [HOSTILE, "b"]}}) + "\n")
    runs = read([folder])
    html = render(runs, {runs[0].name: Diagnosis(3, 0, [Finding(HOSTILE, 3, HOSTILE, HOSTILE, [HOSTILE])])})
    page = Page(html)
    assert page.count("script") == plain.count("script") == 2 and page.count("img") == 0
    assert page.text.count(HOSTILE) > 15
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_page_needs_nothing_from_outside(make_run):
    html = render(read([make_run()]))
    for tag, attributes in Page(html).tags:
        assert tag not in ("link", "iframe", "object", "embed", "img")
        for name in ("src", "href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith("#")
    assert "url(" not in html and "@import" not in html and "default-src 'none'" in html


def test_secrets_are_replaced_by_their_names(make_run, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "very-secret&value")
    html = render(read([make_run(oops="very-secret&value")]))
    assert "very-secret" not in html and Page(html).text.count("<SOME_API_KEY>") == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_that_has_just_begun(make_run, steps):
    folder = make_run(steps=1, evals=False)
    if not steps:
        (folder / "metrics.jsonl").unlink()
        (folder / "eval.jsonl").write_text('{"step": 0, "exa')
    html = render(read([folder]))
    assert ("No step has been logged yet." in html) == (steps == 0)
    assert (count_panels(html) > 50) == (steps == 1)
    assert "No evaluation was logged." in html


def test_only_an_evaluation(make_run):
    folder = make_run()
    (folder / "metrics.jsonl").unlink()
    html = render(read([folder]))
    assert "exact_match" in html and "No times were logged." in html


def test_findings_are_shown_and_marked(make_run):
    runs = read([make_run("a"), make_run("b"), make_run("c")])
    diagnoses = {
        "a": Diagnosis(9, 0, [Finding("spike", 7, "loss was 12"), Finding("vague", None, "no step")]),
        "b": Diagnosis(9, 0, fine={"x": ""}, not_judged={"y": "too few steps"}),
    }
    html = render(runs, diagnoses)
    assert (
        "loss was 12" in html
        and html.count("No findings; 1 of 2 rules cannot be judged yet") == 1
        and "LEARNING_RATE=5e-7" in html
    )
    marks = [attributes for tag, attributes in Page(html).tags if tag == "text" and "data-step" in attributes]
    assert len(marks) == count_panels(html) and {mark["data-step"] for mark in marks} == {"7"}
    assert "data-step" not in render(runs)


def test_critical_findings_look_unlike_warnings_and_watched_ones_are_named(make_run):
    evidence = Evidence("correct", 3, 9, {"before": 0.5, "after": 0.4})
    watched = real_finding.Finding("correctness_fall", "watch", 5, 9, (evidence,), "noise", ())
    diagnosis = Diagnosis(9, 0, [Finding("bad", 7, "a", severity="critical"), Finding("odd", 7, "b")], [watched])
    html = render(read([make_run()]), {"run": diagnosis})
    classes = [attributes.get("class") for tag, attributes in Page(html).tags if tag == "article"]
    assert classes == ["finding critical", "finding warning"]
    assert "To watch: correctness fall since step 5 (correct, steps 3 to 9: before 0.5, after 0.4)" in Page(html).text


def test_rollouts_follow_the_question_whether_it_learns(make_run):
    html = render(read([make_run()]))
    sections = [attributes["id"] for tag, attributes in Page(html).tags if tag == "section"]
    assert sections[:4] == ["result", "tier-1", "samples", "tier-2"] and len(sections) == len(set(sections))
    links = [attributes["href"] for tag, attributes in Page(html).tags if tag == "a"]
    assert links == [f"#{name}" for name in sections[1:]]


def test_numbers_that_never_change_are_folded_and_rounding_is_not_drawn_large(make_run):
    folder = make_run()
    rounding = [{"advantage_mean": -4e-8 * (step % 3), "lost_writes": 0, "truncated": 0.9} for step in range(30)]
    write_lines(folder / "metrics.jsonl", [{"step": step, **row} for step, row in enumerate(rounding, 1)])
    html = render(read([folder]))
    folded = re.findall(r'<details class="constant">.*?</details>', html, re.DOTALL)
    assert [name for name in ("advantage_mean", "lost_writes") if any(name in part for part in folded)] == [
        "advantage_mean",
        "lost_writes",
    ]
    assert not any("<h3>truncated" in part for part in folded), "it is out of its range"
    axes = {panel.metric.name: draw(panel, (1, 30)).data["axis"] for panel in panels(read([folder]))}
    low, high = axes["advantage_mean"]
    assert low < -0.005 and high > 0.005


def test_the_score_of_an_own_reward_has_its_held_out_curve_in_the_first_section(make_run):
    folder = make_run()
    lines = [{"step": step, "score": 0.3 + step / 100, "n": 18} for step in (0, 15, 30)]
    write_lines(folder / "eval.jsonl", lines)
    first = panels(read([folder]))[0]
    assert (first.metric.name, first.metric.tier) == ("score", 1)
    assert [point.value for point in first.curves[0].held_out] == pytest.approx([0.3, 0.45, 0.6])


def test_the_options_are_set_by_the_user_and_a_judge_that_is_off_has_no_settings(make_run):
    config = {"judge": {"JUDGE": "1"}, "judge_off": "REWARD is your own function", "changes": {"REWARD": ["r.py", ""]}}
    folder = make_run()
    (folder / "config.json").write_text(json.dumps(config | {"options": ["--tiny", "--steps", "8"]}))
    (run,) = read([folder])
    assert run_settings.set_by_user(run) == {"REWARD": ["r.py", ""], "--tiny": ["", ""], "--steps": ["8", ""]}
    assert "JUDGE" not in run_settings.settings(run) and "JUDGE" not in run_settings.read_given(run)


def test_it_says_why_runs_are_not_compared(make_run):
    ours, own, empty = make_run("ours"), make_run("own"), make_run("empty", evals=False)
    for file in (own / "samples").glob("eval_*.jsonl"):
        write_lines(file, [make_sample(1, 0.0, 0.5) | {"measure": "score", "score": 0.5}])
    for pair, why in (
        ((ours, own), "ours measures the exact match and own the score"),
        ((empty, ours), "empty has no"),
    ):
        notes = {tile.label: tile.note for tile in headline.tiles(*reversed(read(pair)))}
        assert notes[f"held-out, against {pair[0].name}"].startswith(why)


def test_what_an_environment_counts_as_solved_is_not_called_exact_match(make_run):
    folder = make_run()
    write_lines(folder / "eval.jsonl", [{**make_eval_line(step, 0.5), "in_environment": True} for step in (0, 30)])
    assert panels(read([folder]))[0].metric.name == "solved"
    assert ">exact_match<" not in render(read([folder]))


def test_metrics_of_our_reward_are_not_missing_with_another_one(make_run):
    run = read([make_run(steps=0, evals=False, remote_rm_url="user_reward.py")])[0]
    assert not {"correct", "judge_calls", "high_reward_wrong"} & set(missing(run)) and "reward" in missing(run)


def test_resumptions_are_marked_and_their_changes_listed(make_run):
    folder = make_run()
    write_lines(folder / "resumes.jsonl", [{"step": 8, "changed": {"JUDGE_RPM": ["60", "120"]}}, {"step": 8}])
    html = render(read([folder]))
    assert "resumed 2 times" in html and run_settings.changes(read([folder])[0]) == [("8", "JUDGE_RPM", "60", "120")]
    (resumed,) = [a["d"] for tag, a in Page(html).tags if tag == "path" and a.get("class") == "resumed"]
    assert resumed.count("M") == 1


def test_phases_add_up_to_the_step(make_run):
    phases = headline.phases(read([make_run()])[0])
    assert [phase.name for phase in phases] == ["generate", "train", "sync", "other"]
    assert sum(phase.share for phase in phases) == pytest.approx(1)
    assert sum(phase.seconds for phase in phases) == pytest.approx(9)


def test_the_interval_of_a_training_curve_covers_its_mean(make_run):
    (run,) = read([make_run()])
    tiles = {tile.label: tile for tile in headline.tiles(run, run)}
    low, _, high = tiles["train correct"].interval.split()
    assert float(low) < float(tiles["train correct"].value) < float(high)
    assert tiles["held-out exact match"].interval == "0.600 to 0.800"
    low, _, high = tiles["held-out, change since the start"].interval.split()
    assert float(low) < 12 / 18 < float(high)


def test_a_long_run_takes_few_megabytes(make_run):
    folder = make_run(steps=1000)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    extra = {f"extra_{number}": number / 7 for number in range(80 - len(rows[0]))}
    write_lines(folder / "metrics.jsonl", [row | extra for row in rows])
    html = render(read([folder]))
    assert count_panels(html) >= 80 and len(html.encode()) < 5_000_000


def test_bad_calls_are_refused(make_run, tmp_path, capsys):
    folder = make_run()
    assert main([str(tmp_path / "none")]) == 2 and "is not a folder" in capsys.readouterr().err
    assert main([str(folder), "--out", str(tmp_path / "none" / "x.html")]) == 2 and "--out" in capsys.readouterr().err
    assert main([str(folder), "--out", str(tmp_path)]) == 2
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert not (Path(folder) / "report.html").exists()
