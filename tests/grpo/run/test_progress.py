"""What the launcher prints of steps and evaluations while a run goes on, and at its end."""

import json
import os
from pathlib import Path

import pytest

from grpo.run.progress import Progress, find_adapter
from grpo.run.run_files import RunFiles
from grpo.stack.json_files import replace

STEP = {
    "step": 3,
    "time": 1.0,
    "seconds": {"generate": 31.04, "train": 20.0, "total": 52.5},
    "reward": 0.41249,
    "correct": 0.5,
    "response_length": 812.4,
    "grad_norm": 0.0312,
    "ppo_kl": 0.00012,
}
EVAL = {"step": 0, "exact_match": 0.25, "ci_low": 0.2, "ci_high": 0.31, "n": 256}


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path, tmp_path)


def append(path: Path, row: dict, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + end)


def summarize(files: RunFiles) -> str:
    progress = Progress(files, None)
    progress.poll()
    return "\n".join(progress.results(files.folder, files.final, files.folder / "checkpoints"))


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, "step 3/40  reward 0.412  correct 0.500  length 812  grad 0.0312"),
        ({"reward_missing": 0.125}, "no reward 12%"),
        ({"turns": 2.25, "tool_calls": 0.0}, "turns 2.2  tool calls 0.0"),
        ({"judge_quality": 0.6234, "judge_failed": 0.125}, "quality 0.623  unjudged 12%"),
        ({"reward.right": 0.25, "reward.short": -0.125}, "reward.right 0.250  reward.short -0.125"),
        ({"reward": None, "seconds": {"train": None}}, "step 3/40  correct"),
        ({"reward": None, "seconds": 3.0}, "step 3/40  correct"),
    ],
)
def test_a_step_is_one_line_of_the_metrics_that_it_has(files, more: dict, shown: str) -> None:
    append(files.metrics, STEP | more)
    [line] = Progress(files, 40).poll()
    assert shown in line


def test_a_comparison_that_waits_for_the_same_engines_is_shown_once(files) -> None:
    row = {"has_adapter": True, "table": [], "limit": 0.05, "since": 1, "problems": [], "routing": ""}
    progress, shown = Progress(files, None), []
    for step, waits in enumerate(("engines 0 and 1", "engines 0 and 1", "engine 1", "")):
        append(files.folder / "parity.jsonl", row | {"step": step + 1, "waits": waits})
        shown.append(len(progress.poll()))
        ended = "\n".join(progress.summary(files.folder, files.folder, files.folder))
        assert (waits in ended) if waits else ("parity" not in ended), "a run that ends first says so"
    assert shown == [1, 0, 1, 1]


def test_each_line_is_shown_once_when_it_is_complete_and_broken_ones_never(files) -> None:
    progress = Progress(files, 40)
    assert progress.poll() == [], "there is no file yet"
    files.metrics.write_text('{"step": 1, "rew\n3\n[]\n{"reward": 1}\n')
    assert progress.poll() == [] and progress.step == 0 and progress.metrics.broken == 4
    append(files.metrics, STEP | {"step": 4}, end="")
    assert progress.poll() == []
    with files.metrics.open("a") as file:
        file.write("\n")
    assert progress.poll()[0].startswith("step 4/40") and progress.poll() == []


def test_only_changed_lines_of_a_replaced_file_are_new(files) -> None:
    file = files.metrics
    for step in (1, 2, 3):
        append(file, STEP | {"step": step})
    progress = Progress(files, 40)
    progress.poll()
    lines = file.read_text().splitlines(keepends=True)
    replace(file, "".join(lines).replace("}\n", ', "exact_match": 0.5}\n'))  # an evaluation
    assert progress.poll() == [] and progress.metrics.rows[-1]["exact_match"] == 0.5
    replace(file, lines[0])  # a resumed run
    assert progress.poll() == [] and progress.step == 1
    again = json.dumps(STEP | {"step": 2, "time": 2.0}) + "\n"
    replace(file, lines[0] + again)
    assert [line.split("  ")[0] for line in progress.poll()] == ["step 2/40"]
    replace(file, "".join(lines) * 3)  # as long as before, or longer: it is another file all the same
    assert len(progress.poll()) == 6 and len(progress.metrics.rows) == 9
    file.write_text(again)  # in place, as a copy does
    assert [line.split("  ")[0] for line in progress.poll()] == ["step 2/40"]


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (EVAL, "exact match 0.250 [0.200, 0.310] (n=256)"),
        (EVAL | {"pass_at_k": {"8": {"value": 0.625}}, "greedy": EVAL}, "(n=256), pass@8 0.625, greedy 0.250"),
        (EVAL | {"n": 12, "problems": 18}, "exact match 0.250 [0.200, 0.310] (graded 12 of 18)"),
        (EVAL | {"exact_match": None, "n": 0, "problems": 18}, "not graded (graded 0 of 18)"),
        (EVAL | {"in_environment": True}, "solved 0.250"),
        ({"step": 0, "score": 3.5, "ci_low": 3.0, "ci_high": 4.0, "n": 18}, "score 3.500 [3.000, 4.000] (n=18)"),
    ],
)
def test_an_evaluation_says_what_it_measured(files, row: dict, shown: str) -> None:
    append(files.evals, row)
    [line] = Progress(files, None).poll()
    assert line.startswith("eval at step 0: ") and shown in line


@pytest.mark.parametrize(
    ("row", "name"),
    [(EVAL, "exact match"), (EVAL | {"in_environment": True}, "solved"), ({"score": 3, "n": 9}, "score")],
)
def test_the_summary_has_the_first_and_the_last_evaluation(files, row: dict, name: str) -> None:
    for step in (0, 20, 40):
        append(files.evals, row | {"step": step})
    text = summarize(files)
    assert name in text and "at step 0" in text and "at step 40" in text and "step 20" not in text
    assert name == "exact match" or "exact match" not in text


def test_evaluations_of_different_problems_are_not_compared(files) -> None:
    append(files.evals, EVAL | {"n": 12, "problems": 18})
    append(files.evals, EVAL | {"step": 4, "n": 18, "problems": 18})
    assert "not comparable" in summarize(files)


def test_the_summary_of_a_resumed_run_tells_its_steps_from_earlier_ones(files) -> None:
    for step in range(1, 6):
        append(files.metrics, STEP | {"step": step})
    progress = Progress(files, 10)
    progress.skip()
    for step in range(6, 11):
        append(files.metrics, STEP | {"step": step})
    progress.poll()
    line = progress.summary(files.folder, files.final, files.folder / "checkpoints")[0]
    assert line.startswith("5 steps in") and "5 of earlier" in line


def test_the_adapter_of_a_run_is_that_of_its_last_step(files) -> None:
    final, checkpoints = files.final, files.folder / "checkpoints"
    assert "not saved" in summarize(files)
    folders = [final, checkpoints / "step_10" / "adapter", checkpoints / "step_9" / "adapter"]
    for age, folder in zip((2, 1, 0), folders, strict=True):
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").touch()
        os.utime(folder / "adapter_config.json", (1e9 - age, 1e9 - age))
    assert find_adapter(final, checkpoints) == checkpoints / "step_10" / "adapter"
    os.utime(final / "adapter_config.json")
    assert find_adapter(final, checkpoints) == final and str(final) in summarize(files)


@pytest.mark.parametrize(
    ("numbers", "ended", "said"),
    [
        ({"zero_spread_groups": 1.0}, {"zero_spread_groups": 0.9}, "nothing was learned"),
        ({"correct": 0.0, "zero_spread_groups": 0.2}, {"correct": 0.01}, "no right answer was learned"),
    ],
)
def test_a_run_that_learned_nothing_says_so(files, numbers: dict, ended: dict, said: str) -> None:
    for step in (1, 2):
        append(files.metrics, STEP | numbers | {"step": step})
    assert summarize(files).startswith(said)
    append(files.metrics, STEP | numbers | ended | {"step": 3})
    assert said not in summarize(files)
