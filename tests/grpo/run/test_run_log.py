import json
import math
import time
from argparse import Namespace
from contextlib import nullcontext

import pytest

from grpo.checkpoint.trainer_state import collect_controller_state
from grpo.run import run_log
from grpo.run.run_files import SPACE, LostWrites, RunFiles
from grpo.run.trackers import Trackers
from grpo.stack import json_files


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_evaluation_is_on_the_line_of_its_step_too(tmp_path):
    log = run_log.RunLog(str(tmp_path))
    for step in (1, 2):
        log.write_step(step, {"reward": 0.5})
    before = read(tmp_path / "metrics.jsonl")
    log.write_eval(0, {"exact_match": 0.125})  # for a step without a line
    log.write_eval(2, {"exact_match": 0.25})
    assert read(tmp_path / "metrics.jsonl") == [before[0], before[1] | {"exact_match": 0.25}]
    log.write_step(3, {"reward": 0.5})
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_a_step_has_its_phases_and_its_finite_numbers(tmp_path, caplog):
    log = run_log.RunLog(str(tmp_path))
    for _ in range(2):
        with log.phase("train"):
            time.sleep(0.02)
    status = {"sampled_tokens": 300.0, "grad_norms": [0.5, 1.5], "generated_samples": ["text", 1.0]}
    with caplog.at_level("WARNING", logger="openrlhf.grpo.run_log"):
        log.write_step(1, status | {"reward": math.inf, "kl": math.nan, "correct": 0.5})
    log.write_step(2, {"reward": 1})
    first, second = read(tmp_path / "metrics.jsonl")
    assert (first["step"], first["correct"], first["grad_norms"]) == (1, 0.5, [0.5, 1.5])
    assert first["dropped_values"] == 2 and second["dropped_values"] == 0
    assert [record.message for record in caplog.records] == ["step 1: not finite and left out: reward, kl"]
    assert not first.keys() & {"reward", "kl", "generated_samples"}
    assert first["tokens_per_second"] == 300 / first["seconds"]["total"]
    assert first["host_memory"] > 0 and first["disk_free"] > 0
    assert 0.04 <= first["seconds"]["train"] <= first["seconds"]["total"]
    assert "train" not in second["seconds"]


def test_rolling_metrics_continue_after_a_resume(tmp_path):
    rows = [{"reward": 0.1 * n, "correct": 0.05 * n, "reward_std": 0.3, "reward_correct_correlation": 0.5 + n / 50}
            for n in range(1, 16)]  # fmt: skip
    for n, row in enumerate(rows, 1):
        run_log.RunLog(str(tmp_path / "resumed")).write_step(n, row)
    log = run_log.RunLog(str(tmp_path / "whole"))
    for n, row in enumerate(rows, 1):
        log.write_step(n, row)
    correlations = [[row["reward_correct_correlation_rolling"] for row in read(tmp_path / name / "metrics.jsonl")]
             for name in ("resumed", "whole")]  # fmt: skip
    assert correlations[0] == correlations[1] and len(set(correlations[0])) == 15


def open_log(folder, step):
    """The log of a trainer that starts from a checkpoint of a step, 0 for none."""
    data = folder / "train.jsonl"
    data.write_text('{"id": "first", "prompt": "p"}\n')
    off = dict.fromkeys(("metrics_dir", "ckpt_path", "log_samples", "use_tensorboard", "use_wandb", "use_trackio"))
    args = Namespace(run_dir=str(folder), prompt_data=str(data), **off)
    status = {"reward": 0.25, "sampled_tokens": 300, "grad_norms": [0.5, 1.5], "generated_samples": ["text", 1.0]}
    states = collect_controller_state(status) if step else {}
    return run_log.open_log(args, Namespace(prompts=["<p>"], datasources=["sums"]), step, states)


def test_a_kill_between_checkpoint_and_log_loses_no_line(tmp_path):
    open_log(tmp_path, 0).write_step(1, {"reward": 0.5})
    for _ in range(2):  # resumed, killed at once, and resumed again
        open_log(tmp_path, 2)
    open_log(tmp_path, 2).write_step(3, {"reward": 0.75})
    rows = read(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["reward"]) for row in rows] == [(1, 0.5), (2, 0.25), (3, 0.75)]
    assert rows[1]["grad_norms"] == [0.5, 1.5]
    assert not rows[1].keys() & {"seconds", "tokens_per_second"}, "nobody has measured them"


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_kill_after_an_evaluation_loses_no_exact_match(tmp_path, is_cut):
    """The line of the step was cut, or is whole and still without the result."""
    open_log(tmp_path, 0).write_step(2, {"reward": 0.25})
    open_log(tmp_path, 2).write_eval(2, {"exact_match": 0.75})
    file = tmp_path / "metrics.jsonl"
    whole = file.read_text()
    assert read(file)[0]["exact_match"] == 0.75
    file.write_text("" if is_cut else whole.replace('"exact_match": 0.75', '"another": 1'))
    open_log(tmp_path, 2)
    [row] = read(file)
    assert (row["step"], row["reward"], row["exact_match"]) == (2, 0.25, 0.75)


def test_trackers_get_the_line_of_a_step(tmp_path):
    seen = []
    follower = nullcontext(lambda step, numbers: seen.append((step, numbers)))
    log = run_log.RunLog(str(tmp_path), trackers=Trackers({"follower": lambda: follower}))
    log.write_step(1, {"reward": 0.5, "kl": math.nan, "generated_samples": ["text", 1.0]})
    log.write_eval(1, {"exact_match": 0.25, "by_source": {"AIME": {"exact_match": 0.25}}})
    log.trackers.close()
    (_, step), (_, evaluation) = seen
    assert step["train/reward"] == 0.5 and step["train/seconds/total"] > 0 and step["train/dropped_values"] == 1
    assert not step.keys() & {"train/kl", "train/step", "train/time", "train/generated_samples"}
    assert evaluation == {"eval/exact_match": 0.25, "eval/by_source/AIME/exact_match": 0.25}


def test_a_full_disk_is_counted_and_does_not_end_the_run(tmp_path):
    log = run_log.RunLog(str(tmp_path))
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    log.write_step(1, {"reward": 0.5})
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "rew')  # the disk was full in a line
    log.write_step(2, {"reward": 0.5})
    rows = json_files.read_rows(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["lost_writes"]) for line in rows] == [(2, 1)]


@pytest.mark.parametrize(("step", "kept"), [(1, 0), (2, 1)])
def test_a_lost_write_counts_until_its_step_is_run_again(tmp_path, step, kept):
    lost = LostWrites(RunFiles(tmp_path).lost_writes)
    log = run_log.RunLog(str(tmp_path))
    lost.begin(0)
    log.write_step(1, {})
    (tmp_path / "parity.jsonl").symlink_to("/dev/full")
    log.write_parity({"step": 2})
    assert lost.refresh() and not lost.refresh()
    assert lost.describe() == f"1 write failed since step 2 (last: {tmp_path}/parity.jsonl: No space left on device)"
    assert RunFiles(tmp_path).lost_writes.stat().st_size == SPACE, "it was written in place"
    LostWrites(RunFiles(tmp_path).lost_writes).begin(step)
    assert LostWrites(RunFiles(tmp_path).lost_writes).count == kept
