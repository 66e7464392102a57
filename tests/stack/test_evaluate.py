"""`python -m eval.evaluate` and `vllm serve` as a user types them: the tiny model, an adapter, a kill in the middle.

Only real engines show that an adapter acts as in training when it is evaluated and served.
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from transformers import AutoTokenizer

from data import prepare
from eval import compare
from scripts.export_model import export_model
from tests import forked
from tests.scripts.conftest import OF_EXPERTS, save_adapter

from . import rounding
from .rounding import Rounding, bound_differences, compute_distributions, load_reference_model, simulate
from .runs import ROOT, read_lines
from .served import read_log_probs, read_page_commands, serve_command

PROBLEMS = 16
SAMPLING = ["--n", 4, "--k", 1, 4]
THINKING = 20  # more than some thoughts have, and less than others


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare.main(["--source", "synthetic", "--train-count", "1", "--eval-count", str(PROBLEMS), "--out", str(folder)])
    return folder / "eval.jsonl"


@pytest.fixture(scope="module")
def adapter(tiny_model, tmp_path_factory) -> Path:
    """An adapter that changes the model's output."""
    return save_adapter(tiny_model / "mxfp4", tmp_path_factory.mktemp("adapter"), r=16, lora_alpha=32)


def make_command(model: Path, data: Path, out: Path, *options: object) -> list[str]:
    words = [sys.executable, "-m", "eval.evaluate", "--model", model, "--data", data, "--out", out]
    return list(map(str, [*words, "--max-tokens", 40, *options]))


def evaluate(*arguments: object, run=forked.run) -> tuple[list[dict], str]:
    """Run an evaluation to its end; return its samples, and what it printed."""
    words = make_command(*arguments)
    done = run(words, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[Gloo]" not in done.stdout and "sample/s" not in done.stderr, "no bars in a pipe"
    return read_lines(Path(words[words.index("--out") + 1]) / "samples.jsonl"), done.stdout


@pytest.fixture(scope="module")
def greedy_samples(tiny_model, data, adapter, tmp_path_factory) -> dict[str, list[dict]]:
    """The most likely response to each problem, of the base and of the model with the adapter."""
    out = tmp_path_factory.mktemp("greedy")
    options = ["--n", 1, "--temperature", 0]
    base, _ = evaluate(tiny_model / "bf16", data, out / "base", *options)
    changed, _ = evaluate(tiny_model / "bf16", data, out / "adapter", *options, "--adapter", adapter)
    return {"base": base, "adapter": changed}


@pytest.fixture(scope="module")
def reference(tiny_model, adapter) -> torch.nn.Module:
    """transformers and PEFT in float32."""
    return load_reference_model(tiny_model / "mxfp4", adapter)


def read_chosen_tokens(tokenizer, data: Path, samples: list[dict]) -> list[tuple[list[int], list[int]]]:
    """Return prompt and response of each sample whose tokens its text tells."""
    prompts = {row["id"]: row["prompt"] for row in read_lines(data)}
    chosen = []
    for sample in samples:
        chat = [{"role": "user", "content": prompts[sample["id"]]}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        response = tokenizer.encode(sample["response"], add_special_tokens=False)
        if len(response) == sample["response_length"]:  # else it was spelled with other tokens
            chosen.append((prompt, response))
    assert len(chosen) >= PROBLEMS / 2
    return chosen


def is_greedy(model, tokenizer, data: Path, samples: list[dict]) -> bool:
    """Whether each token is the likeliest of `model`, or so near to it that a pass in bf16 may take it instead."""
    chosen = read_chosen_tokens(tokenizer, data, samples)
    texts = [prompt + response for prompt, response in chosen]

    def compute_response_log_probs() -> list[torch.Tensor]:
        """The log-probs at each token of the responses, `[tokens, rows]`."""
        pairs = zip(compute_distributions(model, texts), chosen, strict=True)
        return [values[len(prompt) - 1 : -1] for values, (prompt, _) in pairs]

    likeliest = [values.argmax(-1) for values in compute_response_log_probs()]

    def compute_gaps() -> torch.Tensor:
        """By how much each token of the responses is less likely, `[tokens]`."""
        gaps = []
        for values, (_, response), best in zip(compute_response_log_probs(), chosen, likeliest, strict=True):
            positions = torch.arange(len(response))
            gaps.append(values[positions, best] - values[positions, response])
        return torch.cat(gaps)

    return bool((compute_gaps() <= bound_differences(simulate(model, compute_gaps))).all())


@pytest.mark.timeout(900)
def test_engine_agrees_with_transformers_and_peft(greedy_samples, reference, tiny_model, data):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "bf16")
    assert is_greedy(reference, tokenizer, data, greedy_samples["adapter"])
    with reference.disable_adapter():
        assert is_greedy(reference, tokenizer, data, greedy_samples["base"])
        assert not is_greedy(reference, tokenizer, data, greedy_samples["adapter"]), "the adapter changes nothing"


@pytest.mark.timeout(900)
def test_the_engine_applies_an_adapter_of_experts_as_peft_does(tiny_model, data, tmp_path):
    ranks = {"r": 16, "lora_alpha": 128, "target_modules": [], "target_parameters": OF_EXPERTS["target_parameters"]}
    of_experts = save_adapter(tiny_model / "mxfp4", tmp_path / "adapter", **ranks)
    options = ["--n", 1, "--temperature", 0, "--adapter", of_experts]
    samples, _ = evaluate(tiny_model / "bf16", data, tmp_path / "out", *options)
    reference = load_reference_model(tiny_model / "mxfp4", of_experts)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "bf16")
    assert is_greedy(reference, tokenizer, data, samples)
    with reference.disable_adapter():
        assert not is_greedy(reference, tokenizer, data, samples), "the adapter changes nothing"


@pytest.mark.timeout(900)
def test_the_pages_servers_agree_with_peft(greedy_samples, reference, tiny_model, data, adapter, tmp_path):
    """The adapter beside its base, and the merged model."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "bf16")
    texts = [prompt + response for prompt, response in read_chosen_tokens(tokenizer, data, greedy_samples["adapter"])]
    export_model(tiny_model / "mxfp4", adapter, tmp_path / "merged", experts="bf16")
    beside, alone = read_page_commands()
    paths = {"openai/gpt-oss-120b": tiny_model / "bf16", "runs/NAME/final": adapter}
    with TemporaryDirectory() as folder, serve_command(beside, paths, Path(folder)) as server:
        base, mine = (read_log_probs(server, name, texts) for name in (str(tiny_model / "bf16"), "mine"))
    with TemporaryDirectory() as folder, serve_command(alone, {"merged": tmp_path / "merged"}, Path(folder)) as server:
        merged = read_log_probs(server, str(tmp_path / "merged"), texts)
    exact = torch.cat(rounding.compute_log_probs(reference, texts))
    apart = Rounding.simulate(reference, texts)
    assert apart.covers(exact, mine) and apart.covers(exact, merged) and apart.covers(mine, merged)
    assert not apart.covers(mine, base), "the adapter changes nothing"


GUESSING = """
from grpo.environments import environment
from grpo.environments.environment import Score


class Environment(environment.Environment):
    async def reply(self, messages):
        return [{"role": "user", "content": self.prompt}] if len(messages) < 4 else None

    async def score(self, messages, ending):
        return Score(1.0, 1.0, {"messages": float(len(messages))})
"""


@pytest.mark.timeout(900)
def test_conversations_are_sampled_on_tokens(greedy_samples, tiny_model, data, tmp_path):
    file = tmp_path / "guessing.py"
    file.write_text(GUESSING)
    options = ["--n", 1, "--temperature", 0, "--environment", file, "--max-model-len", 400]
    rows, printed = evaluate(tiny_model / "bf16", data, tmp_path / "out", *options)
    assert len(rows) == PROBLEMS and "token_mismatch" in printed
    whole = [row for row in rows if row["ending"] != "length"]  # the tiny model rambles on in some conversations
    assert len(whole) >= PROBLEMS / 2 and not any(row["token_mismatch"] for row in rows)
    for row in whole:
        assert (row["ending"], row["turns"]) == ("done", 2)
        assert row["messages"][2]["content"] == row["messages"][0]["content"]
    said = [row["messages"][1]["content"] for row in sorted(rows, key=lambda row: row["id"])]
    alone = [row["response"] for row in sorted(greedy_samples["base"], key=lambda row: row["id"])]
    told = [(turn, response) for turn, response in zip(said, alone, strict=True) if turn]
    assert len(told) >= 0.75 * PROBLEMS and all(turn in response for turn, response in told), (said, alone)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def list_children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [grandchild for child in map(int, listed) for grandchild in (child, *list_children(child))]


@pytest.fixture(scope="module")
def sampled_evaluation(tiny_model, data, adapter, tmp_path_factory) -> tuple[Path, list[dict]]:
    """Four samples a problem of the model with the adapter: the folder, and the samples."""
    out = tmp_path_factory.mktemp("sampled") / "whole"
    return out, evaluate(tiny_model / "bf16", data, out, *SAMPLING, "--adapter", adapter)[0]


def pair_samples(wholes: list[dict], others: list[dict]) -> list[tuple[dict, dict]]:
    """Pair the samples of two evaluations."""
    by_key = [{(row["id"], row["sample"]): row for row in rows} for rows in (wholes, others)]
    assert by_key[0].keys() == by_key[1].keys() and len(others) == len(by_key[1]) == 4 * PROBLEMS
    return [(by_key[0][key], by_key[1][key]) for key in by_key[0]]


@pytest.mark.timeout(900)
def test_a_thinking_budget_cuts_thoughts_and_changes_nothing_else(
    sampled_evaluation, tiny_model, data, adapter, tmp_path
):
    whole, expected = sampled_evaluation
    budgets = ["--thinking-budget", THINKING, "--answer-budget", 10]
    rows, printed = evaluate(tiny_model / "bf16", data, tmp_path / "cut", *SAMPLING, "--adapter", adapter, *budgets)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model / "bf16")
    equal = {0.0: [], 1.0: []}
    for plain, sample in pair_samples(expected, rows):
        assert plain["seed"] == sample["seed"]
        assert sample["thinking_length"] <= THINKING
        assert sample["response_length"] - sample["thinking_length"] <= 10, "what was forced is counted"
        is_cut = sample["thinking_truncated"]
        assert not is_cut or sample["response"].count("<|channel|>final<|message|>") >= 1
        first = tokenizer.encode(plain["response"], add_special_tokens=False)[:THINKING]
        # Of an answer that is cut there is the beginning.
        there = tokenizer.decode(first) if is_cut else plain["response"]
        equal[is_cut].append(
            sample["response"].startswith(there) or (sample["truncated"] and there.startswith(sample["response"]))
        )
    assert all(len(group) >= 5 and sum(group) >= 0.85 * len(group) for group in equal.values()), equal
    result = json.loads((tmp_path / "cut" / "result.json").read_text())
    assert result["thinking_truncated"] == pytest.approx(len(equal[1.0]) / len(rows))
    assert result["truncated"] == pytest.approx(sum(sample["finish_reason"] == "length" for sample in rows) / len(rows))
    assert "thinking cut" in printed
    assert compare.find_differences(whole, tmp_path / "cut") == [
        "thinking_budget", "answer_budget", "thinking_delimiter",
    ]  # fmt: skip


@pytest.mark.timeout(900)
def test_killed_and_continued_evaluation_equals_an_uninterrupted_one(
    sampled_evaluation, tiny_model, data, adapter, tmp_path
):
    (whole, expected), cut = sampled_evaluation, tmp_path / "cut"
    options = [*SAMPLING, "--adapter", adapter]
    words = make_command(tiny_model / "bf16", data, cut, *options, "--batch", 3, "--tensor-parallel", 1)
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        started = time.monotonic()
        while not (cut / "samples.jsonl").exists() or (cut / "samples.jsonl").read_bytes().count(b"\n") < 10:
            assert process.poll() is None and time.monotonic() - started < 400
            time.sleep(0.01)
        others = list_children(process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = (cut / "samples.jsonl").read_bytes()
    assert 10 <= before.count(b"\n") < len(expected), "it was killed too late"
    (cut / "samples.jsonl").write_bytes(before + b'{"id": "torn", "sam')  # where a kill may leave a line

    as_typed = partial(subprocess.run, cwd=ROOT, capture_output=True, text=True)
    rows, printed = evaluate(tiny_model / "bf16", data, cut, *options, "--batch", 3, run=as_typed)
    assert (cut / "samples.jsonl").read_bytes().startswith(before)
    assert f"{PROBLEMS:8}" in printed and "pass@4" in printed
    assert not any(map(is_running, others))
    pairs = pair_samples(expected, rows)
    assert len({row["seed"] for row in rows}) == 4 * PROBLEMS
    assert all(a["seed"] == b["seed"] for a, b in pairs)
    assert [a["response"] for a, _ in pairs] == [b["response"] for _, b in pairs], "the batch changes nothing"
    assert len({row["response"] for row in rows}) > PROBLEMS, "samples of a problem differ"

    a, b = (json.loads((folder / "result.json").read_text()) for folder in (whole, cut))
    assert a["exact_match"] == pytest.approx(b["exact_match"], abs=0.1)
    assert compare.main([str(whole), str(cut)]) == 0
