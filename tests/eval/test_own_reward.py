"""Evaluations whose samples are scored by a reward of the user's own; the engine replays responses."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from openrlhf.utils.agent import SingleTurnAgentExecutor
from transformers import AutoTokenizer
from vllm import SamplingParams

from eval import compare, engine, evaluate, table
from grpo.hooks.prompts_dataset import render_with
from grpo.run.eval_metric import USER_REWARD
from grpo.stack.json_files import read_json, read_rows

# The score depends on every character that a reward function gets.
DIGEST = """
import zlib

def reward_func(queries, prompts, labels):
    [[query], [prompt], [label]] = queries, prompts, labels
    if "nothing" in query[len(prompt):]:
        raise ValueError("no reward for this one")
    scores = zlib.crc32(f"{query}|{prompt}|{label!r}".encode()) / 2**32
    return {"rewards": scores - 1, "scores": scores, "extra_logs": {"characters": len(query)}}
"""
CHATS = [
    "What is 1 plus 1?",
    "Say <|end|>, then <|start|>assistant.",
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 plus 2?"}],
]
LABELS = ['{"answer": "2", "split": "eval"}', "any text", {"rubric": [3, "x"]}]
RESPONSES = ["<|channel|>final<|message|>\\boxed{2}<|return|>", " 2<|return|>", "no marker: <|channel|>", ""]
DATE = "2030-01-02"


@pytest.fixture
def data(tmp_path):
    rows = [{"prompt": chat, "label": label} for chat, label in zip(CHATS, LABELS, strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data.jsonl"


@pytest.fixture
def reward(tmp_path):
    (tmp_path / "mine.py").write_text(DIGEST)
    return tmp_path / "mine.py"


@pytest.fixture
def evaluate_responses(model, data, reward, tmp_path, monkeypatch):
    """Evaluates in a folder of this name, whose samples have the responses in turn; returns the exit code and the
    grades."""
    tokenizer = AutoTokenizer.from_pretrained(model)

    def evaluate_responses(name: str, *words: object, responses=tuple(RESPONSES), files=(reward,)):
        drawn = iter(tuple(responses) * 12)

        async def draw(*_):
            return tokenizer.encode(next(drawn), add_special_tokens=False), "stop", {}

        scheduler = SimpleNamespace(max_num_seqs=8)
        llm = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(scheduler_config=scheduler)))
        monkeypatch.setattr(engine, "start", lambda *_, **__: llm)
        monkeypatch.setattr(engine, "draw", draw)
        given = ["--model", model, "--data", data, "--n", 4, "--date", DATE, "--out", tmp_path / name, *words]
        code = evaluate.main([str(word) for word in [*given, *(["--reward", *files] if files else [])]])
        return code, read_rows(tmp_path / name / "grades.jsonl") if code != 2 else []

    return evaluate_responses


def test_a_response_has_the_score_that_it_has_in_training(evaluate_responses, model, reward, monkeypatch):
    _, grades = evaluate_responses("out")
    tokenizer = AutoTokenizer.from_pretrained(model)
    monkeypatch.setenv("GRPO_REWARD_FILES", str(reward))
    executor = SingleTurnAgentExecutor([str(USER_REWARD)])
    template = SimpleNamespace(reasoning_effort=None, template_variables=None, template_date=DATE)
    render = render_with(tokenizer, template)

    def score_as_in_training(chat, label, response: str) -> tuple[float, float, float]:
        tokens = tokenizer.encode(response, add_special_tokens=False)

        async def generate(*_):
            return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, finish_reason="stop", logprobs=None)])

        prompt = render(chat if isinstance(chat, list) else [{"role": "user", "content": chat}])
        params, replay = SamplingParams(max_tokens=64), SimpleNamespace(generate=generate)
        output = asyncio.run(executor.execute(prompt, label, params, 4096, tokenizer, replay))
        return output["reward"], output["scores"], output["extra_logs"]["characters"]

    # Number 0 of each problem is drawn first, and the responses are replayed in turn.
    order = [(problem, number) for number in range(4) for problem in range(3)]
    at = {key: RESPONSES[place % 4] for place, key in enumerate(order)}
    expected = [score_as_in_training(CHATS[p], LABELS[p], at[p, number]) for p in range(3) for number in range(4)]
    assert [(one["reward"], one["score"], one["characters"]) for one in grades] == expected
    assert len({score for _, score, _ in expected}) == 12


def test_the_result_is_a_mean_score_with_an_interval_that_other_tools_read(evaluate_responses, tmp_path, capsys):
    code, grades = evaluate_responses("a")
    result = read_json(tmp_path / "a" / "result.json")
    assert code == 0 and result["score"] == pytest.approx(sum(one["score"] for one in grades) / 12)
    assert 0 <= result["ci_low"] < result["score"] < result["ci_high"] and "exact_match" not in result
    evaluate_responses("b", responses=RESPONSES[:1])
    capsys.readouterr()
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "score on 3 problems" in (said := capsys.readouterr().out) and "differ" not in said
    assert table.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "score" in (said := capsys.readouterr().out) and "pass@" not in said
    evaluate_responses("c", "--reward-weights", 2)
    capsys.readouterr()
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "c")]) == 0
    assert "settings that differ: reward" in capsys.readouterr().out


def test_a_sample_that_the_reward_fails_on_has_no_score_and_the_result_is_incomplete(evaluate_responses, tmp_path):
    code, grades = evaluate_responses("out", responses=("nothing", *RESPONSES))
    failed = [one for one in grades if one["score"] is None]
    assert code == 1 and failed and all(one["reward_error"] == 1.0 for one in failed)
    assert read_json(tmp_path / "out" / "result.json")["ungraded"] == len(failed)


def test_the_same_command_scores_the_samples_again_with_a_reward_that_changed(evaluate_responses, reward, tmp_path):
    _, grades = evaluate_responses("out")
    first = read_json(tmp_path / "out" / "result.json")
    reward.write_text(DIGEST.replace("scores - 1", "scores - 2.0"))
    code, again = evaluate_responses("out", responses=())
    assert code == 0, "drew samples"
    assert [one["reward"] for one in again] == pytest.approx([one["reward"] - 1 for one in grades])
    (other := tmp_path / "other.py").write_text(DIGEST)
    assert evaluate_responses("out", responses=(), files=[other])[0] == 0
    assert read_json(tmp_path / "out" / "result.json") == first


def test_a_reward_that_cannot_work_is_refused_before_the_engine_starts(evaluate_responses, reward, tmp_path, capsys):
    for words, files, what in [
        ([], [tmp_path / "none.py"], str(tmp_path / "none.py")),
        (["--reward-weights", 1, 2], [reward], "--reward-weights has 2"),
        (["--reward-weights", 1], [], "--reward-weights "),
        (["--environment", "python"], [reward], "--reward "),
    ]:
        assert evaluate_responses("out", *words, files=files)[0] == 2
        assert what in capsys.readouterr().err
    reward.write_text("def reward_func(queries, prompts, labels):\n    return labels[0]['gold']\n")
    assert evaluate_responses("out")[0] == 2
    assert "mine.py" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_graded_samples_are_not_scored_in_place(evaluate_responses, data, tmp_path, capsys):
    rows = [{"id": f"p{n}", "prompt": f"{n} + 1?", "label": str(n + 1)} for n in range(3)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert evaluate_responses("out", files=())[0] == 0
    assert evaluate_responses("out")[0] == 2
    assert "measure was None, is score" in capsys.readouterr().err
