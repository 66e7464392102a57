"""The tiny model taught to use tools, in half a minute: it searches, and gives one of two answers to what it read."""

import random
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.rollout.multi_turn.retrieval import INSTRUCTIONS, Environment
from grpo.rollout.multi_turn.templates import template_for
from scripts.tiny_model.checkpoint import write_shards

CALL = ' to=functions.search<|channel|>commentary json<|message|>{"query": "sum"}<|call|>'
ANSWER = "<|channel|>final<|message|>\\boxed{%d}<|return|>"
EXCERPT = "[1] sums: The sum of 3 and 9 is 12."
STEPS, BATCH = 100, 4


def question(number: int) -> str:
    return f"{number}. What is 3 + 9?"


def teach(tiny_model: Path, folder: Path) -> Path:
    """Write a copy of the tiny model in bf16 that answers :func:`question` by a search, then 12 or 13."""
    base = tiny_model / "bf16"
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    draw = random.Random(0)
    torch.manual_seed(0)
    for step in range(STEPS):
        rows = [conversation(tokenizer, draw.randrange(100), draw.choice([12, 13])) for _ in range(BATCH)]
        size = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (size - len(ids)) for ids, _ in rows])
        targets = torch.tensor([targets + [-100] * (size - len(targets)) for _, targets in rows])
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 10, (STEPS - step) / 20)
        optimizer.zero_grad()
        model(input_ids=ids, labels=targets).loss.backward()
        optimizer.step()
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("model*", "build.json"))
    write_shards(folder, ((name, value.to(torch.bfloat16)) for name, value in model.state_dict().items()), 10**9)
    return folder


def conversation(tokenizer, number: int, answer: int) -> tuple[list[int], list[int]]:
    """Return the tokens of a whole conversation as the environment would have it, and those that are to be learnt."""
    template, encode = template_for(tokenizer), lambda text: tokenizer.encode(text, add_special_tokens=False)
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question(number)}]
    tools = [tool.as_openai() for tool in Environment.tools]
    ids: list[int] = []
    targets: list[int] = []
    for turn in (CALL, ANSWER % answer):
        prompt = [token for piece, _ in template.codec.encode(template.render(messages, tools)) for token in piece]
        assert prompt[: len(ids)] == ids, "a turn's prompt extends what was before"
        targets += [-100] * (len(prompt) - len(ids)) + encode(turn)
        ids = prompt + encode(turn)
        call = template.parse(encode(turn))
        messages += [call, {"role": "tool", "name": "search", "tool_call_id": "", "content": EXCERPT}]
    return ids, targets
