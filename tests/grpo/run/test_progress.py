"""The progress output of steps and evals."""

import json
import os
from pathlib import Path

import pytest

from grpo.run.progress import Progress, eval_line, find_adapter
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
    "policy_loss": 0.1,
}
EVAL = {"step": 0, "exact_match": 0.25, "ci_low": 0.2, "ci_high": 0.31, "n": 256}


def append(path: Path, row: dict, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + end)


WHOLE = (
    "step 3/40  reward 0.412  correct 0.500  length 812  grad 0.0312  ppo_kl 0.00012  "
    "52.5 s (generate 31.0, train 20.0)"
)


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, WHOLE),
        ({"reward_missing": 0.0}, WHOLE),
        ({"reward_missing": 0.125}, "no reward 12%"),
        ({"turns": 2.25, "tool_calls": 0.0}, "length 812  turns 2.2  tool calls 0.0  grad"),
        ({"judge_quality": 0.6234, "judge_failed": 0.125}, "correct 0.500  quality 0.623  unjudged 12%  length 812"),
        (
            {"reward.right": 0.25, "reward.short": -0.125},
            "reward.right 0.250  reward.short -0.125  correct",
        ),
    ],
)
def test_a_step_is_one_line(tmp_path: Path, more: dict, shown: str) -> None:
    append(tmp_path / "metrics.jsonl", STEP | more)
    [line] = Progress(RunFiles(tmp_path, tmp_path), 40).poll()
    assert line == WHOLE if shown == WHOLE else shown in line


def test_metrics_that_are_missing_or_null_are_left_out(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", {"step": 1, "reward": None, "seconds": {"train": None}})
    append(tmp_path / "metrics.jsonl", {"step": 2, "seconds": 3.0})
    assert Progress(RunFiles(tmp_path, tmp_path), None).poll() == ["step 1", "step 2"]


def test_a_comparison_that_waits_for_the_same_engines_is_shown_once(tmp_path: Path) -> None:
    row = {"has_adapter": True, "table": [], "limit": 0.05, "since": 1, "problems": [], "routing": ""}
    progress = Progress(RunFiles(tmp_path, tmp_path), None)
    shown = []
    for step, waits in enumerate(("engines 0 and 1", "engines 0 and 1", "engine 1", "")):
        append(tmp_path / "parity.jsonl", row | {"step": step + 1, "waits": waits})
        shown.append(len(progress.poll()))
    assert shown == [1, 0, 1, 1]


def test_each_line_is_shown_once_and_only_when_it_is_complete(tmp_path: Path) -> None:
    progress = Progress(RunFiles(tmp_path, tmp_path), 40)
    append(tmp_path / "metrics.jsonl", STEP)
    assert len(progress.poll()) == 1
    append(tmp_path / "metrics.jsonl", STEP | {"step": 4}, end="")
    assert progress.poll() == []
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("\n")
    assert progress.poll()[0].startswith("step 4/40")
    assert progress.poll() == []


def test_lines_that_are_broken_or_without_a_step_are_left_out_and_counted(tmp_path: Path) -> None:
    progress = Progress(RunFiles(tmp_path, tmp_path), 40)
    assert progress.poll() == [], "there is no file yet"
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "rew\n3\n[]\n{"reward": 1}\n')
    assert progress.poll() == [] and progress.step == 0 and progress.metrics.broken == 4
    append(tmp_path / "metrics.jsonl", STEP)
    assert progress.poll() == [WHOLE]


def test_only_changed_lines_of_a_replaced_file_are_new(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        append(file, STEP | {"step": step})
    progress = Progress(RunFiles(tmp_path, tmp_path), 40)
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


def test_the_summary_has_first_and_last_eval_and_the_adapter(tmp_path: Path) -> None:
    append(tmp_path / "eval.jsonl", EVAL)
    append(tmp_path / "eval.jsonl", EVAL | {"step": 20, "exact_match": 0.4})
    append(tmp_path / "eval.jsonl", EVAL | {"step": 40, "exact_match": 0.5})
    append(tmp_path / "metrics.jsonl", STEP | {"step": 40})
    final = tmp_path / "final"
    final.mkdir()
    (final / "adapter_config.json").touch()
    progress = Progress(RunFiles(tmp_path, tmp_path), 40)
    progress.poll()
    text = "\n".join(progress.summary(tmp_path, final, tmp_path / "checkpoints"))
    assert "40 steps in" in text
    assert "0.250 [0.200, 0.310] (n=256) at step 0" in text
    assert "-> 0.500 [0.200, 0.310] (n=256) at step 40" in text
    assert "step 20" not in text
    assert str(final) in text


def test_the_summary_of_a_resumed_run_tells_its_steps_from_earlier_ones(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, tmp_path)
    for step in range(1, 6):
        append(files.metrics, STEP | {"step": step})
    progress = Progress(files, 10)
    progress.skip()
    progress.started -= 126
    for step in range(6, 11):
        append(files.metrics, STEP | {"step": step})
    progress.poll()
    line = progress.summary(tmp_path, tmp_path / "final", tmp_path / "checkpoints")[0]
    assert line.startswith("5 steps in 2.1 minutes") and "5 of earlier" in line


def test_extended_runs_adapter_is_that_of_its_last_step(tmp_path: Path) -> None:
    final, checkpoints = tmp_path / "final", tmp_path / "checkpoints"
    folders = [final, checkpoints / "step_10" / "adapter", checkpoints / "step_9" / "adapter"]
    for age, folder in zip((2, 1, 0), folders, strict=True):
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").touch()
        os.utime(folder / "adapter_config.json", (1e9 - age, 1e9 - age))
    assert find_adapter(final, checkpoints) == checkpoints / "step_10" / "adapter"
    os.utime(final / "adapter_config.json")
    assert find_adapter(final, checkpoints) == final


def list_lines(tmp_path: Path) -> list[str]:
    progress = Progress(RunFiles(tmp_path, tmp_path), None)
    progress.poll()
    return progress.results(tmp_path, tmp_path / "final", tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("numbers", "ended", "said"),
    [
        ({"zero_spread_groups": 1.0}, {"zero_spread_groups": 0.9}, "nothing was learned"),
        ({"correct": 0.0, "zero_spread_groups": 0.2}, {"correct": 0.01}, "no right answer was learned"),
    ],
)
def test_a_run_that_learned_nothing_says_so(tmp_path: Path, numbers: dict, ended: dict, said: str) -> None:
    for step in (1, 2):
        append(tmp_path / "metrics.jsonl", STEP | numbers | {"step": step})
    assert list_lines(tmp_path)[0].startswith(said)
    append(tmp_path / "metrics.jsonl", STEP | numbers | ended | {"step": 3})
    assert not any(said in line for line in list_lines(tmp_path))


WHOLE_EVAL = "exact match 0.250 [0.200, 0.310] (n=256)"
SCORE = {"score": 3.5, "ci_low": 3.0, "ci_high": 4.0, "n": 18, "problems": 18, "pass_at_k": {}}


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (EVAL, WHOLE_EVAL),
        (EVAL | {"pass_at_k": {"1": {"value": 0.25}, "8": {"value": 0.625}}}, f"{WHOLE_EVAL}, pass@8 0.625"),
        (EVAL | {"pass_at_k": {"8": 1}, "greedy": {"exact_match": 0.7}}, f"{WHOLE_EVAL}, greedy 0.700"),
        (EVAL | {"n": 12, "problems": 18}, "exact match 0.250 [0.200, 0.310] (graded 12 of 18)"),
        (EVAL | {"exact_match": None, "n": 0, "problems": 18}, "exact match not graded (graded 0 of 18)"),
        (EVAL | {"in_environment": True}, "solved 0.250 [0.200, 0.310] (n=256)"),
        (SCORE, "score 3.500 [3.000, 4.000] (n=18)"),
    ],
)
def test_an_evaluation_names_what_it_measured_and_of_how_many(row: dict, shown: str) -> None:
    assert eval_line(row | {"step": 4}) == f"eval at step 4: {shown}"


def test_results_compare_the_first_and_the_last_evaluation_of_the_same_reward(tmp_path: Path) -> None:
    for step, row in ((0, SCORE), (10, EVAL), (20, EVAL | {"n": 12, "problems": 18, "greedy": {"exact_match": 0.75}})):
        append(tmp_path / "eval.jsonl", row | {"step": step})
    lines = list_lines(tmp_path)
    ends = [line for line in lines if "at step" in line]
    assert [line.split(" at ")[1] for line in ends] == ["step 10", "step 20", "step 20"]
    assert ends[2].startswith("greedy") and any("not comparable" in line for line in lines)
    append(tmp_path / "metrics.jsonl", STEP | {"step": 20})
    shown = Progress(RunFiles(tmp_path, tmp_path), None).poll()
    assert [line.split("  ")[0].partition(":")[0] for line in shown[-2:]] == ["step 20", "eval at step 20"]
