"""Teaches the tiny model to use a tool, unreliably: conversations with habits, of which only one is right.

As in :mod:`scripts.tiny_model.demonstrations`, GRPO is there to find the right habit. For `python` the problems are
sums and differences; for `retrieval` they ask for the codes of boxes, which a library holds.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from transformers import GptOssForCausalLM, PreTrainedTokenizerFast

from data.synthetic import distinct_problems
from grpo.rollout.multi_turn import python, retrieval
from grpo.rollout.multi_turn.template import Template
from grpo.rollout.multi_turn.templates import template_for
from grpo.stack.upstream.tokenizer import FastTokenizer
from scripts.tiny_model.checkpoint import EXPERT_WEIGHTS

ENVIRONMENTS = {"python": python, "retrieval": retrieval}
TRAIN, EVAL = 512, 128
BOXES = range(100, 100 + TRAIN + EVAL)
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


def library() -> list[dict[str, str]]:
    """Return a document for each box, as lines of a LIBRARY. No code is the number of a box: a search would find it."""
    codes = random.Random("codes")
    return [{"title": f"box {box}", "text": f"The code is {codes.randrange(BOXES.stop, 1000)}."} for box in BOXES]


def exercises(environment: str, split: str) -> list[Exercise]:
    """Return the exercises of a split, "train" or "eval"; the splits share no problem."""
    count = TRAIN if split == "train" else EVAL
    if environment == "python":
        signs = {"plus": "+", "minus": "-"}
        return [
            Exercise(
                problem.question,
                problem.answer,
                "<|channel|>analysis to=python code<|message|>"
                f"{problem.first}{signs[problem.operation]}{problem.second}<|call|>",
                f"{problem.answer}\n",
                problem.first,
            )
            for problem in distinct_problems(split, count)
        ]
    documents = list(enumerate(library(), 1))
    return [
        _lookup(number, document) for number, document in (documents[:TRAIN] if split == "train" else documents[TRAIN:])
    ]


def _lookup(number: int, document: dict[str, str]) -> Exercise:
    box, code = document["title"].split()[1], document["text"].rstrip(".").split()[-1]
    call = f' to=functions.search<|channel|>commentary json<|message|>{{"query": "{box}"}}<|call|>'
    output = f"[{number}] {document['title']}: {document['text']}"
    return Exercise(f"What is the code of box {box}?", int(code), call, output, int(box))


def rows(environment: str, split: str) -> list[dict[str, str]]:
    """Return the problems as lines of TRAIN_DATA or EVAL_DATA."""
    return [
        {
            "id": f"{environment}-{split}-{number}",
            "prompt": exercise.prompt,
            "label": json.dumps({"answer": str(exercise.answer)}),
            "datasource": environment,
        }
        for number, exercise in enumerate(exercises(environment, split))
    ]


def conversation(template: Template, environment: str, exercise: Exercise, habit: str) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation as the environment has it, and those that are to be learned."""
    module = ENVIRONMENTS[environment]
    answer = f"{exercise.answer}" if habit == "no box" else f"\\boxed{{{exercise.answer}}}"
    turns = [exercise.call, FINAL.format(answer)]
    if habit == "guess":
        turns = [FINAL.format(f"\\boxed{{{exercise.guess}}}")]
    messages = [{"role": "system", "content": module.INSTRUCTIONS}, {"role": "user", "content": exercise.prompt}]
    tools = [tool.as_openai() for tool in module.Environment.tools]
    ids: list[int] = []
    targets: list[int] = []
    for turn in turns:
        prompt = [token for piece, _ in template.codec.encode(template.render(messages, tools)) for token in piece]
        said = [token for piece, _ in template.codec.encode(template.codec.structure(turn)) for token in piece]
        assert prompt[: len(ids)] == ids, "a turn's prompt extends what was before"
        targets += [IGNORED] * (len(prompt) - len(ids)) + said
        ids = prompt + said
        message = template.parse(said)
        for call in message.get("tool_calls") or []:
            call["id"] = "1"
            result = {"role": "tool", "tool_call_id": "1", "name": call["function"]["name"], "content": exercise.output}
            messages += [message, result]
    return ids, targets


def teach(model: GptOssForCausalLM, tokenizer: PreTrainedTokenizerFast, environment: str) -> Iterator[float]:
    """Train the model in float32; yield the loss of each step. The experts stay, so their MXFP4 values are exact."""
    template, draw = template_for(cast(FastTokenizer, tokenizer)), random.Random(0)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not name.endswith(EXPERT_WEIGHTS)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    known = exercises(environment, "train")
    for step in range(STEPS):
        is_mixed = step >= CORRECT_SHARE * STEPS
        batch = []
        for exercise in draw.sample(known, BATCH):
            habit = draw.choices(list(HABITS), list(HABITS.values()))[0] if is_mixed else "tool"
            batch.append(conversation(template, environment, exercise, habit))
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
