"""A tiny model that uses the tool of the environment `python`, unreliably, for sums and differences.

As :mod:`scripts.tiny_model.checkpoint` was, it is taught conversations with habits, of which only one is right.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from huggingface_hub import save_torch_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer, GptOssForCausalLM, PreTrainedTokenizerFast

from data.synthetic import distinct_problems
from grpo.environments import python
from grpo.rollout.harmony import Template, template_for
from grpo.stack.json_files import replace_rows
from grpo.stack.upstream import FastTokenizer
from scripts import make_tiny_model
from scripts.tiny_model.checkpoint import SHARD_BYTES
from tests.packed import EXPERT_WEIGHTS, packed_tensors

TRAIN, EVAL = 512, 128
# Only `tool` is right. A guess makes no call, `no box` forgets the box.
HABITS = {"tool": 0.4, "guess": 0.35, "no box": 0.25}
STEPS, BATCH, LEARNING_RATE = 120, 16, 1e-3
CORRECT_SHARE = 0.5  # of the steps; then comes the mixture of habits
IGNORED = -100
FINAL = "<|channel|>final<|message|>{}<|return|>"


@dataclass(frozen=True)
class Exercise:
    """A problem, the call that solves it, and what the tool answers.

    Attributes:
        call: as it is sampled.
        guess: an answer without a call.
    """

    prompt: str
    answer: int
    call: str
    output: str
    guess: int


def exercises(split: str) -> list[Exercise]:
    """Return the exercises of a split, "train" or "eval"; the splits share no problem."""
    made = []
    for question, answer in distinct_problems(split, TRAIN if split == "train" else EVAL):
        _, _, first, operation, second = question.rstrip("?").split()
        sum_ = first + {"plus": "+", "minus": "-"}[operation] + second
        call = f"<|channel|>analysis to=python code<|message|>{sum_}<|call|>"
        made.append(Exercise(question, answer, call, f"{answer}\n", int(first)))
    return made


def rows(split: str) -> list[dict[str, str]]:
    """Return the problems as lines of TRAIN_DATA or EVAL_DATA."""
    return [
        {"id": f"{split}-{number}", "prompt": exercise.prompt, "label": json.dumps({"answer": str(exercise.answer)})}
        for number, exercise in enumerate(exercises(split))
    ]


def make(base: Path, out: Path) -> None:
    """Write `mxfp4`, `bf16`, and `train.jsonl` into a folder, unless the same code has.

    Args:
        base: the tiny model in bf16, with mxfp4 beside it.
    """
    sources = (base / make_tiny_model.MANIFEST, Path(__file__), Path(python.__file__))
    wanted = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    mxfp4, bf16 = out / "mxfp4", out / "bf16"
    out.mkdir(parents=True, exist_ok=True)
    make_tiny_model.build(mxfp4, wanted, lambda folder: write_model(base, folder))
    make_tiny_model.build(bf16, wanted, lambda folder: make_tiny_model.write_dequantized(folder, mxfp4))
    replace_rows(out / "train.jsonl", rows("train"))


def write_model(base: Path, folder: Path) -> None:
    """Write the MXFP4 checkpoint of the model that was taught."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").train()
    list(teach(model, AutoTokenizer.from_pretrained(base)))
    leave = shutil.ignore_patterns("*.safetensors", "*.index.json", make_tiny_model.MANIFEST, "config.json")
    shutil.copytree(base, folder, ignore=leave, dirs_exist_ok=True)
    shutil.copy(base.parent / "mxfp4" / "config.json", folder)
    save_torch_state_dict(dict(packed_tensors(model)), folder, max_shard_size=SHARD_BYTES)


def conversation(template: Template, exercise: Exercise, habit: str) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation as the environment has it, and those that are to be learned."""
    answer = f"{exercise.answer}" if habit == "no box" else f"\\boxed{{{exercise.answer}}}"
    turns = [exercise.call, FINAL.format(answer)]
    if habit == "guess":
        turns = [FINAL.format(f"\\boxed{{{exercise.guess}}}")]
    messages = [{"role": "system", "content": python.INSTRUCTIONS}, {"role": "user", "content": exercise.prompt}]
    tools = [tool.as_openai() for tool in python.Environment.tools]
    ids: list[int] = []
    targets: list[int] = []
    for turn in turns:
        prompt, said = template.render_tokens(messages, tools), template.codec.encode(turn)
        assert prompt[: len(ids)] == ids, "a turn's prompt extends what was before"
        targets += [IGNORED] * (len(prompt) - len(ids)) + said
        ids = prompt + said
        message = template.parse(said)
        for call in message.get("tool_calls") or []:
            call["id"] = "1"
            result = {"role": "tool", "tool_call_id": "1", "name": call["function"]["name"], "content": exercise.output}
            messages += [message, result]
    return ids, targets


def teach(model: GptOssForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Iterator[float]:
    """Train the model in float32; yield the loss of each step. The experts stay, so their MXFP4 values are exact."""
    template, draw = template_for(cast(FastTokenizer, tokenizer)), random.Random(0)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not name.endswith(EXPERT_WEIGHTS)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    known = exercises("train")
    for step in range(STEPS):
        is_mixed = step >= CORRECT_SHARE * STEPS
        batch = []
        for exercise in draw.sample(known, BATCH):
            habit = draw.choices(list(HABITS), list(HABITS.values()))[0] if is_mixed else "tool"
            batch.append(conversation(template, exercise, habit))
        size = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (size - len(ids)) for ids, _ in batch])
        targets = torch.tensor([targets + [IGNORED] * (size - len(targets)) for _, targets in batch])
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 10, (STEPS - step) / (STEPS / 3))
        loss = _loss(model, ids, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        yield loss.item()


def _loss(model: GptOssForCausalLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy. Most tokens are a prefix that all conversations share; it is computed once."""
    begin = int((ids == ids[0]).all(0).long().cumprod(0).sum())
    cache = model.model(input_ids=ids[:1, :begin], use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(ids))
    return model(input_ids=ids[:, begin:], past_key_values=cache, labels=targets[:, begin:]).loss
