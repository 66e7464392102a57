"""The live view: what it shows of runs in every state, and that nothing in a file can break it."""

import json

import pytest

from grpo.metrics.metric_schema import SCHEMA
from grpo.run.run_state import Run
from scripts import watch
from scripts.report.__main__ import render

SAMPLE = {"prompt": "<|start|>user<|message|>What is 2+2?<|end|>", "response": "it is 4", "reward": 0.6, "correct": 1.0}


def run_watch(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert watch.main([str(word) for word in words]) == 0
    output = capsys.readouterr()
    assert "\x1b" not in output.out and not output.err
    return output.out


def test_a_run_without_a_step(make_run, capsys):
    run = make_run()
    assert "crashed" in run_watch(capsys, run.folder)
    run.hold()
    assert "the run is starting" in run_watch(capsys, run.folder, "--once")


def test_a_stand_in_for_the_judge_is_named_in_view_and_report(make_run, capsys):
    folder = make_run().folder
    for is_stand_in in (False, True):
        (folder / "config.json").write_text(json.dumps({"judge_is_stand_in": is_stand_in}))
        page = render([Run(folder)], {folder.name: []})
        for text in (run_watch(capsys, folder), page):
            assert ("stood in for the judge" in text) is is_stand_in


def test_one_view_of_an_active_run(make_run, capsys):
    run = make_run()
    run.hold()
    run.evaluate(0, 0.25)
    names = {one.name for one in SCHEMA if one.tier <= 2 and one.name != "exact_match" and "*" not in one.name}
    for step in range(1, 11):
        run.step(step, **dict.fromkeys(names, 0.5))
    run.evaluate(10, 0.5)
    text = run_watch(capsys, run.folder, "--once")
    assert "running" in text and "step 10/40" in text and " left" in text and "held-out exact match" in text
    assert [name for name in names if name[:26] not in text] == []
    assert "0.5!" in text, "out of its range"
    assert "adapter" not in text, "the summary is for the end"


@pytest.mark.parametrize(
    ("code", "state"), [(0, "finished"), (130, "stopped"), (None, "crashed"), (3, "stopped"), (4, "crashed")]
)
def test_a_run_that_has_ended_is_summed_up(make_run, capsys, code, state):
    run = make_run()
    run.hold()
    run.step(5)
    run.evaluate(5, 0.5)
    run.let_go(code)
    text = run_watch(capsys, run.folder)
    assert "step 5/40" in text and state in text and ("driver.log" in text) == (code != 0)
    assert "exact match  0.500 [0.400, 0.600] (n=18) at step 5" in text


def test_a_long_text_ends_where_it_ends_and_says_that_it_begins_earlier(make_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    run = make_run()
    run.step(1)
    (run.folder / "samples").mkdir(exist_ok=True)
    row = SAMPLE | {"prompt": "word " * 100 + "the end"}
    (run.folder / "samples" / "step_1.jsonl").write_text(json.dumps(row) + "\n")
    [line] = {line.rstrip() for line in run_watch(capsys, run.folder, "--once").splitlines() if "  prompt " in line}
    assert line.split()[1].startswith("…") and line.endswith("the end") and len(line) <= 90


@pytest.mark.parametrize("text", ["\x1b[2J", "[bold red]x[/]", "a\nb", "\u202e", "字" * 300], ids=repr)
def test_no_text_of_a_file_reaches_the_terminal_as_a_command(make_run, capsys, text):
    run = make_run()
    run.step(1, **{text: 1.0})
    rows = [SAMPLE | {"prompt": text, "response": text}]
    (run.folder / "samples").mkdir(exist_ok=True)
    (run.folder / "samples" / "step_1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = run_watch(capsys, run.folder, "--once")
    assert not {"\x1b", "\u202e"} & set(shown) and ("bold" in text) == ("[bold red]x[/]" in shown)
