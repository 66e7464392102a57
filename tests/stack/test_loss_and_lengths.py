"""The options of the loss, failing rewards, and a schedule of lengths over a kill and a resume: a run in two attempts.

It samples a step ahead, so a batch waits in the checkpoint while the run is killed. Only a real run has engines that
differ from the trainer by rounding, and trains after a kill on what was sampled before it.

The learning rate is next to nothing. So the policy stays what sampled, ratios and weights are what rounding makes of
1, and the losses of the real stack can be told from the samples.
"""

import json
import math
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from data.problems import add_instruction
from grpo.checkpoint import trainer_state
from grpo.rollout.response_text import decode_tokens

from .recorded import Agreement, compute_sample_log_probs, read_samples, shift_by_one_token, swap_samples
from .rounding import load_reference_model
from .runs import kill, read_lines, train

CLIP, EPS_CLIP, TRAIN_BATCH, TEMPERATURE = 0.3, 0.2, 4, 0.7
# Of the mean log-probs of a sample. Rounding makes less than 0.0013, and a token whose experts differ more than 0.0035.
DIFFERENCE = 0.002
BROKEN = "broken"  # while this file exists, the reward fails for three of the four prompts
REWARD = f"""
import json, math
from pathlib import Path

def reward_func(queries, prompts, labels):
    answer = int(json.loads(labels[0])["answer"])
    if answer != 964 and Path(__file__).with_name("{BROKEN}").exists():
        if answer == 961:
            raise OSError("the service is down")
        return None if answer == 962 else {{"rewards": math.nan}}
    return {{"rewards": sum(map(ord, queries[0][len(prompts[0]):])) % 7 / 7}}
"""


@pytest.fixture(scope="module")
def parts(tiny_model, tmp_path_factory) -> tuple[Path, list[str]]:
    """The run directory of steps 1 to 3 and, resumed with other options, 4 to 8; and the driver's log of each part.

    The first part, with the whole base on each of two ranks, is killed in step 5: step 4 is taken back. In the second
    one the ranks share the base, its experts in bf16 and in host memory.
    """
    folder = tmp_path_factory.mktemp("loss")
    (folder / "reward.py").write_text(REWARD)
    # The launcher tries the reward on the first line before each attempt.
    rows = [
        {
            "prompt": add_instruction(f"What is 960 plus {n}?", "synthetic"),
            "label": json.dumps({"answer": str(960 + n)}),
        }
        for n in (4, 1, 2, 3)
    ]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run_dir, log = folder / "run", folder / "run" / "logs" / "driver.log"
    shared = {
        "vllm_num_engines": "1", "pipeline": True,
        "REWARD": str(folder / "reward.py"), "TRAIN_DATA": str(folder / "train.jsonl"),
        "EVAL_DATA": str(tiny_model / "eval.jsonl"), "num_episodes": "8",
        "rollout_batch_size": "4", "n_samples_per_prompt": "4", "micro_rollout_batch_size": "4",
        "train_batch_size": str(TRAIN_BATCH), "micro_train_batch_size": "1", "actor_learning_rate": "1e-9",
        "loss_aggregation": "sequence_mean", "temperature": str(TEMPERATURE), "eps_clip": str(EPS_CLIP),
        "length_schedule": "20,24@2,28@1%", "generate_max_len": "28",
        "eval_at_start": False, "eval_steps": "-1", "save_steps": "3", "max_ckpt_num": "9",
    }  # fmt: skip
    metrics, seen = run_dir / "metrics.jsonl", 0

    def is_in_step_5() -> bool:
        nonlocal seen
        if not metrics.exists() or metrics.read_bytes().count(b"\n") < 4:
            return False
        seen = seen or log.stat().st_size
        return b"train:" in log.read_bytes()[seen:]

    first_part = ("--run-dir", run_dir, "--steps", 8, "--", "--advantage_clip", CLIP)
    kill(run_dir, is_in_step_5, *first_part, actor_shard="none", **shared)
    first = log.read_text()
    assert 4 <= len(read_lines(metrics)) < 6, "it was killed too late"
    (folder / BROKEN).touch()
    correction = ("--enable_vllm_is_correction", "--vllm_is_correction_type", "mis")
    thresholds = ("--vllm_is_truncated_threshold", 1 - DIFFERENCE, 1 + DIFFERENCE)
    shared |= {"experts": "bf16", "old_log_probs": "trainer"}
    unclipped = ("--advantage_clip", 9)  # a resumed run keeps the flags that it was given
    output = train("--resume", run_dir, "--steps", 8, *unclipped, *correction, *thresholds, **shared)
    assert "continuing after step 3" in output
    return run_dir, [first, log.read_text()[len(first) :]]


def read_steps(run_dir: Path, start: int, end: int) -> list[tuple[dict, list[dict]]]:
    """The metrics of each step, and its samples."""
    rows = read_lines(run_dir / "metrics.jsonl")[start - 1 : end]
    assert [row["step"] for row in rows] == list(range(start, end + 1))
    return [(row, read_lines(run_dir / "samples" / f"step_{row['step']}.jsonl")) for row in rows]


def compute_share(part: list[dict], samples: list[dict]) -> float:
    """The number of the samples' tokens that belong to a part."""
    return sum(sample["response_length"] for sample in part) / sum(sample["response_length"] for sample in samples)


@pytest.fixture(scope="module")
def agreement(parts, tiny_model) -> Agreement:
    """Of all samples that the trainer knows; the policy stays the tiny model."""
    records = [record for _, samples in read_steps(parts[0], 1, 8) for record in samples]
    samples = read_samples(records, AutoTokenizer.from_pretrained(tiny_model / "mxfp4"))
    return Agreement.measure(samples, load_reference_model(tiny_model / "mxfp4"), TEMPERATURE)


@pytest.mark.timeout(900)
def test_trainer_and_engines_differ_by_rounding(agreement, tiny_model):
    assert agreement.holds()
    without_temperature = compute_sample_log_probs(agreement.samples, load_reference_model(tiny_model / "mxfp4"))
    for fault in (without_temperature, shift_by_one_token(agreement.exact), swap_samples(agreement.exact)):
        assert agreement.notices(fault), "the comparison proves nothing"


@pytest.mark.timeout(900)
def test_ratio_uses_the_engine_and_advantages_are_clipped(parts, agreement):
    told_apart, tolerance = 0.0, CLIP * agreement.most
    for row, samples in read_steps(parts[0], 1, 3):
        assert row["optimizer_steps"] == len(samples) / TRAIN_BATCH == 4 and row["grad_norm"] > 0
        assert row["dropped_values"] == row["metric_errors"] == row["reward_missing"] == 0
        # No pass for old log-probs: the trainer's are known of the first optimizer batch alone.
        assert sum("surprisal" in sample for sample in samples) == TRAIN_BATCH
        assert 0 < abs(row["ppo_kl"]) < agreement.most, "0 were the trainer's own log-probs"
        # A ratio that is clipped is off by at least this, and the mean over all tokens is that of rounding.
        assert row["ppo_clip_ratio"] * math.log(1 + EPS_CLIP) < agreement.most
        assert row["advantage_clipped"] == pytest.approx(
            compute_share([sample for sample in samples if abs(sample["advantage"]) > CLIP], samples)
        )
        clipped = [max(-CLIP, min(CLIP, sample["advantage"])) for sample in samples]
        sequence_mean = -sum(clipped) / len(samples)
        assert row["policy_loss"] == pytest.approx(sequence_mean, abs=tolerance)
        token_mean = -sum(
            compute_share([s], samples) * advantage for s, advantage in zip(samples, clipped, strict=True)
        )
        told_apart = max(told_apart, abs(token_mean - sequence_mean))
    assert told_apart > 2 * tolerance, "these samples do not tell the forms of the loss apart"


def test_failing_rewards_of_whole_prompts_neither_end_the_run_nor_train(parts):
    """Three prompts of four: one of the two ranks has nothing to train on, and many optimizer batches neither."""
    for row, samples in read_steps(parts[0], 5, 8):
        rewarded = [sample for sample in samples if sample["reward"] is not None]
        assert {sample["gold"] for sample in rewarded} == {"964"} and len(rewarded) == 4
        assert row["reward_missing"] == 0.75 and row["dropped_values"] == row["metric_errors"] == 0
        assert row["sampled_tokens"] == sum(sample["response_length"] for sample in rewarded)
        assert row["reward"] == pytest.approx(sum(sample["reward"] for sample in rewarded) / 4)
        assert len(row["grad_norms"]) == 4 and all(math.isfinite(norm) for norm in row["grad_norms"])
        assert all(sample.get("advantage") is None for sample in samples if sample["reward"] is None)


def test_masked_importance_sampling_drops_samples_on_which_trainer_and_engine_differ(parts):
    """With one sample a micro-batch its loss is -weight * advantage * TRAIN_BATCH / trained samples of its batch.

    All that are trained are on one rank, which has half of each batch.
    """
    kinds = set()
    for row, samples in read_steps(parts[0], 5, 8):
        rewarded = [sample for sample in samples if sample["reward"] is not None]
        telling = [sample for sample in rewarded if abs(sample["advantage"]) > 1e-3]
        dropped = [sample for sample in telling if sample["micro_batch_loss"] == 0]
        kept = [sample for sample in telling if sample not in dropped]
        for sample in kept:
            trained = TRAIN_BATCH * -sample["advantage"] / sample["micro_batch_loss"]
            assert trained == pytest.approx(round(trained), rel=0.02) and round(trained) in (1, TRAIN_BATCH // 2)
        # The mean of a sample's differences is no larger than the mean of their sizes.
        assert all(sample["logprob_diff_mean"] >= DIFFERENCE * 0.99 for sample in dropped)
        most = 1 - compute_share(dropped, rewarded)  # of the tokens, and of what they weigh
        assert compute_share(kept, rewarded) - 0.01 < row["importance_weight"] < most + 0.001
        assert 1 - row["importance_cut"] - 0.01 < row["importance_weight"]
        assert 0 < abs(row["vllm_kl"]) <= row["logprob_diff_mean"] + 1e-6
        assert row["ppo_kl"] == pytest.approx(0, abs=1e-4) and row["ppo_clip_ratio"] == 0, "the trainer's own log-probs"
        kinds |= {sample in dropped for sample in telling}
    assert kinds == {True, False}, "no sample was dropped, or all were"


def test_limit_continues_after_a_resume_without_new_engines(parts):
    """The last limit comes after five steps that were truncated, two before and three after the resume.

    The batch of step 7 was drawn before the fifth of them, step 6, was over.
    """
    run_dir, logs = parts
    steps = read_steps(run_dir, 1, 8)
    assert [row["length_limit"] for row, _ in steps] == [20, 24, 24, 24, 24, 24, 24, 28]
    for row, samples in steps:
        lengths = [sample["response_length"] for sample in samples]
        assert row["truncated"] > 0.01 and max(lengths) == row["length_limit"]
    engines = [set(re.findall(r"LLMRayActor pid=(\d+)", log)) for log in logs]
    assert [len(pids) for pids in engines] == [1, 1]


def test_the_batch_that_was_sampled_ahead_survives_the_kill(parts, tiny_model):
    """With its rewards: those of the second part fail for three prompts of four. An episode is one step."""
    run_dir, _ = parts
    state, _ = trainer_state.read(run_dir / "checkpoints" / "step_3" / "trainer")
    *exhausted, last = state["client_states"]["next_batch"]["drawn"]
    assert len(exhausted) == 1 and not last["is_over"]
    [(row, samples)] = read_steps(run_dir, 4, 4)
    assert row["reward_missing"] == 0 and row["metric_errors"] == row["dropped_values"] == 0
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "mxfp4")
    for saved, sample in zip(last["rollouts"], samples, strict=True):
        sampled = saved["sequences"][0, 1:][saved["action_mask"][0].bool()].tolist()
        assert [sample["prompt"]] == saved["prompts"] and sample["response"] == decode_tokens(tokenizer, sampled)
        assert [sample["reward"]] == pytest.approx(saved["rewards"].tolist())
    assert [row["staleness"] for row, _ in read_steps(run_dir, 1, 8)] == [0, *[len(samples) / TRAIN_BATCH] * 7]
