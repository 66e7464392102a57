import asyncio
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.sampling_params import SamplingType

from eval.problems import Chat
from grpo.environments.settings import AGENT
from grpo.rollout.budgeted_rollout import budgeted_response
from grpo.rollout.stage import Stage, for_sample
from grpo.rollout.thinking import Budget, delimiter
from grpo.rollout.trajectory import Origin
from grpo.run import eval_metric, evaluation, records, run_log
from grpo.stack import json_files
from reward.reward_func import reward_func
from scripts.tiny_model.tokenizer import write_tokenizer
from tests.grpo.rollout.replayed_engine import Engine


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def sample(tokenizer):
    """Makes the ``Experience`` of one sample: three tokens of a prompt, the response, padding."""

    def make(prompt: str, score: float, response: str = FINAL + "\\boxed{7}<|return|>", label="7", **logs: float):
        tokens = tokenizer.encode(response, add_special_tokens=False)
        numbers = {"truncated": 0.0, "response_length": float(len(tokens)), **logs}
        return SimpleNamespace(
            prompts=[prompt], labels=[label], scores=torch.tensor([score]),
            sequences=torch.tensor([[1, 2, 3, *tokens, 0, 0]]),
            attention_mask=torch.tensor([[1] * (3 + len(tokens)) + [0] * 2]),
            action_mask=torch.tensor([[0.0] * 2 + [1.0] * len(tokens) + [0.0] * 2]),
            info={key: torch.tensor([value]) for key, value in numbers.items()},
        )  # fmt: skip

    return make


FINAL = "<|channel|>analysis<|message|>7<|end|><|start|>assistant<|channel|>final<|message|>"
PROBLEMS = {"<a>": {"id": "a", "datasource": "sums"}, "<b>": {"id": "b", "datasource": "sums"}}
LABEL = '{"answer": "7", "split": "eval"}'
SEEDS = {"<a>": 100, "<b>": 200}


def describe(samples, tokenizer):
    return evaluation.describe(samples, tokenizer, PROBLEMS, SEEDS.__getitem__)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (FINAL + "\\boxed{7}<|return|>", {"correct": 1.0, "answer": "7", "reason": None}),
        (FINAL + "\\boxed{8}<|return|>", {"correct": 0.0, "answer": "8", "reason": None}),
        (FINAL, {"correct": 0.0, "answer": None, "reason": "no \\boxed and no answer phrase"}),
        ("<|channel|>analysis<|message|>7", {"correct": 0.0, "answer": None, "reason": "no final message"}),
    ],
)
def test_records_match_a_manual_evaluation(sample, tokenizer, response, expected):
    label = '{"answer": "07", "split": "eval"}'
    logs = reward_func(["<a>" + response], ["<a>"], [label])["extra_logs"]
    [record] = describe([sample("<a>", 0.0, response, label, **logs)], tokenizer)
    tokens = tokenizer.encode(response, add_special_tokens=False)
    chat = SimpleNamespace(tokenizer=tokenizer)
    by_hand = {"id": "a", "prompt": "<a>", "sample": 0, "datasource": "sums", "label": "07", "seed": 100}
    by_hand |= Chat.record(chat, tokens, "stop", {})
    by_hand.pop("finish_reason")
    graded = records.grade_sample(by_hand)
    assert {key: record[key] for key in graded} == graded
    assert record["response"] == response and record["token_ids"] == [[1, 2, 3, *tokens]]
    assert {key: record[key] for key in expected} == expected
    assert records.grade_sample(record) == {key: value for key, value in record.items() if key not in records.CONTENT}


def test_the_grade_is_the_reward_functions(sample, tokenizer):
    """For a custom reward function, with its own labels and rules."""
    [record] = describe([sample("<a>", 1.0, FINAL + "\\boxed{8}", {"rubric": 3}, correct=1.0)], tokenizer)
    assert (record["correct"], record["answer"], record["label"]) == (1.0, "8", {"rubric": 3})
    assert "answered" not in record


def test_text_that_breaks_the_grader_does_not_end_the_run(sample, tokenizer, monkeypatch, caplog):
    def raise_fault(response, gold, prompt):
        raise AttributeError("a fault of the grader")

    monkeypatch.setattr(records, "grade", raise_fault)
    [record] = describe([sample("<a>", math.nan, FINAL + "\\boxed{8}", correct=math.nan)], tokenizer)
    assert record["answer"] is None and "a fault of the grader" in record["reason"]
    assert records.summarize([record])["ungraded"] == 1
    assert any("sample 0 of a " in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("first", "cut", "truncated"),
    [
        ("<|channel|>analysis<|message|>" + "7" * 40, 1.0, 0.0),  # and then the second call's answer
        (FINAL + "7" * 40, 0.0, 1.0),
        (FINAL + "\\boxed{7}<|return|>", 0.0, 0.0),
        ("<|channel|>analysis<|message|>7<|return|>", 0.0, 0.0),
    ],
)
def test_with_a_budget_records_match_a_manual_evaluation(sample, tokenizer, first, cut, truncated):
    streams = [tokenizer.encode(text, add_special_tokens=False) for text in (first, "\\boxed{7}<|return|>")]
    params = SamplingParams(max_tokens=50, min_tokens=1, seed=100)
    harmony = delimiter("harmony", lambda text: tokenizer.encode(text, add_special_tokens=False))
    rollout = asyncio.run(budgeted_response(Engine(streams), [1, 2, 3], params, harmony, Budget(16, 8), 53))

    response, logs = rollout.trajectory.as_response(), rollout.logs()
    reward = reward_func(["<a>" + tokenizer.decode(rollout.response)], ["<a>"], [LABEL])["extra_logs"]
    made = sample("<a>", 0.0, "", LABEL, **logs, **reward)
    made.sequences = torch.tensor([response["observation_tokens"]])
    made.attention_mask = torch.ones_like(made.sequences)
    made.action_mask = torch.zeros(1, len(rollout.trajectory.tokens) - 1)
    for start, end in response["action_ranges"]:
        made.action_mask[0, start - 1 : end - 1] = 1
    made.info["response_length"] = made.action_mask.sum(-1)  # as OpenRLHF has it
    made.info["truncated"] = torch.tensor([float(rollout.is_truncated)])
    [record] = describe([made], tokenizer)
    assert (record["thinking_truncated"], record["truncated"]) == (cut, truncated)

    reason = "length" if rollout.is_truncated else "stop"
    drawn = rollout.logs() | {"response_length": float(rollout.trajectory.count(Origin.SAMPLED))}
    by_hand = {"id": "a", "prompt": "<a>", "sample": 0, "datasource": "sums", "label": "7", "seed": 100}
    by_hand |= Chat.record(SimpleNamespace(tokenizer=tokenizer), rollout.response, reason, drawn)
    by_hand.pop("finish_reason")
    written = {name: None if value != value else value for name, value in record.items()}  # NaN, as a run writes it
    graded = records.grade_sample(by_hand) | by_hand
    assert graded == pytest.approx({name: written[name] for name in graded})
    assert graded.keys() >= logs.keys()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_an_evaluation_draws_a_greedy_answer_beside_its_samples(sample, tokenizer, tmp_path, temperature):
    drawn = []

    def draw(stage, samples):
        drawn.append((stage.name, samples, stage._greedy_sample))
        sampled = [sample(prompt, 0.0, correct=float(prompt == "<b>")) for prompt in ("<a>", "<b>") for _ in range(2)]
        likeliest = sample("<a>", 0.0, correct=1.0), sample("<b>", 0.0, correct=0.0)
        return sampled if samples == 2 else [*sampled[:2], likeliest[0], *sampled[2:], likeliest[1]]

    data = tmp_path / "eval.jsonl"
    data.write_text("".join(json.dumps({"prompt": name, "label": "7", "id": name}) + "\n" for name in "ab"))
    args = SimpleNamespace(
        eval_dataset=str(data), remote_rm_url=None, agent_func_path=None, seed=1, eval_temperature=temperature,
        eval_n_samples_per_prompt=2,
    )  # fmt: skip
    held_out = [(["sums"], [f"<{name}>"], ["7"]) for name in "ab"]
    log = run_log.RunLog(str(tmp_path / "run"))
    for _ in range(2):  # the second one finds the step evaluated
        evaluation.Evaluation(args, tokenizer, held_out, draw, log).run(3)
    [row] = json_files.read_rows(tmp_path / "run" / "eval.jsonl")
    assert (row["exact_match"], row["samples"], row["pass_at_k"]["2"]["value"]) == (0.5, 4, 0.5)
    files = {file.stem: json_files.read_rows(file) for file in (tmp_path / "run" / "samples").iterdir()}
    assert [record["correct"] for record in files["eval_3"]] == [0.0, 0.0, 1.0, 1.0]
    if temperature:
        assert drawn == [("eval 3", 3, 2)] and row["greedy"]["exact_match"] == 0.5 and row["greedy"]["samples"] == 2
        assert [(record["id"], record["correct"]) for record in files["greedy_3"]] == [("a", 1.0), ("b", 0.0)]
    else:
        assert drawn == [("eval 3", 2, None)] and "greedy" not in row and "greedy_3" not in files


def test_the_last_sample_of_an_evaluated_prompt_may_be_greedy():
    def list_choices(greedy_sample: int | None) -> list[int]:
        stage = Stage(SimpleNamespace(seed=1), "eval 0", greedy_sample)
        params = stage.seed_params(SamplingParams(temperature=0.7, top_p=0.9, top_k=50), "p")
        samples = [for_sample(params, number) for number in range(3)]
        assert {sample.sampling_type for sample in samples} == {SamplingType.RANDOM_SEED}
        return [sample.top_k for sample in samples]

    assert list_choices(2) == [50, 50, 1]
    assert list_choices(None) == [50] * 3


def test_a_users_reward_is_measured_by_its_score(sample, tokenizer):
    samples = [sample("<a>", 3.0, correct=0.0), sample("<a>", 1.0, correct=0.0), sample("<b>", -1.0, correct=1.0)]
    described = evaluation.describe(samples, tokenizer, PROBLEMS, SEEDS.__getitem__, is_score=True)
    result = records.summarize(described, [1])
    assert result["score"] == 0.5 and "exact_match" not in result and result["pass_at_k"] == {}
    assert (result["ci_low"], result["ci_high"]) == pytest.approx(compute_wilson_interval(), abs=1e-6)
    assert (result["n"], result["problems"], result["ungraded"]) == (2, 2, 0)


def compute_wilson_interval() -> tuple[float, float]:
    """By the formula in float64: the means m at which (0.5 - m)^2 = t^2 (m + 1) (3 - m) / size, between -1 and 3.

    The size is 2 problems times p (1 - p) over the variance of a score; t has one degree of freedom.
    """
    variance = ((3 - 0.5) ** 2 + (1 - 0.5) ** 2) / 4 + (-1 - 0.5) ** 2 / 2
    ratio = math.tan(math.pi * 0.475) ** 2 / (2 * (0.5 + 1) * (3 - 0.5) / variance)
    low, high = sorted(np.roots([1 + ratio, -1 - 2 * ratio, 0.25 - 3 * ratio]))
    return low, high


@pytest.mark.parametrize(
    ("reward", "agent", "expected"),
    [
        ([str(eval_metric.OUR_REWARD)], None, "exact_match"),
        ([str(eval_metric.USER_REWARD)], None, "score"),
        (["http://localhost:1/reward"], None, "score"),
        (None, str(AGENT), "exact_match"),
        (str(eval_metric.USER_REWARD), str(AGENT), "exact_match"),
        (str(eval_metric.USER_REWARD), "budget_executor.py", "score"),
    ],
)
def test_what_a_run_measures(reward, agent, expected):
    assert eval_metric.choose_eval_metric(SimpleNamespace(remote_rm_url=reward, agent_func_path=agent)) == expected
