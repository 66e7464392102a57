"""Supervised warm start of the tiny gpt-oss on the mixture of demonstrations, on the CPU in float32."""

import contextlib
import math
import random
from collections.abc import Iterator

import torch
from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedTokenizerFast

from data.synthetic import problems
from grpo import mxfp4
from scripts.tiny_model.demonstrations import completion

LEARNING_RATE = 3e-3
BATCH = 48
IGNORED = -100


def tiny_config(vocab_size: int) -> GptOssConfig:
    """The real architecture at 1/20,000 of the size.

    Bounds: 32 values an MXFP4 group, also in each half of the experts at TP=2; a head size of vLLM's CPU
    attention; at least 2 key/value heads for TP=2; experts divisible by 4 ranks. The window is shorter than a
    prompt with its answer, so that sliding and full layers differ.
    """
    return GptOssConfig(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=32,
        initializer_range=0.05,
        rope_theta=150000,
        rope_scaling={
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
    )


def prompt_text(tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """The chat template around one user message, up to `<|start|>assistant`."""
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def batches(
    tokenizer: PreTrainedTokenizerFast, steps: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`steps` pairs of token ids and targets, int64 `[BATCH, length]`; targets only where the assistant speaks."""
    rng = random.Random(seed)
    source = problems("train", seed)
    pad = tokenizer.pad_token_id
    for _ in range(steps):
        rows = []
        for _ in range(BATCH):
            problem = next(source)
            prompt = tokenizer(prompt_text(tokenizer, problem.question), add_special_tokens=False).input_ids
            answer = tokenizer(completion(problem, rng), add_special_tokens=False).input_ids
            rows.append((prompt, answer))
        length = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.full((BATCH, length), pad)
        targets = torch.full((BATCH, length), IGNORED)
        for row, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor(prompt + answer)
            targets[row, len(prompt) : end] = torch.tensor(answer)
        yield ids, targets


@contextlib.contextmanager
def quantized_experts(model: GptOssForCausalLM):
    """Inside, the experts hold the values that MXFP4 can hold: gradients pass straight through to the originals."""
    parameters = [p for n, p in model.named_parameters() if n.endswith(("gate_up_proj", "down_proj"))]
    originals = [p.data for p in parameters]
    for parameter in parameters:
        parameter.data = mxfp4.dequantize(*mxfp4.quantize(parameter.data), dtype=torch.float32)
    try:
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original


def warm_start(tokenizer: PreTrainedTokenizerFast, vocab_size: int, steps: int, seed: int) -> GptOssForCausalLM:
    """Train from scratch for `steps` optimizer steps; the last quarter with quantised experts."""
    torch.manual_seed(seed)
    model = GptOssForCausalLM._from_config(tiny_config(vocab_size), attn_implementation="eager")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = min(50, steps)
    for step, (ids, targets) in enumerate(batches(tokenizer, steps, seed)):
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / warm_up) * max(decay, 0.02)
        with quantized_experts(model) if step >= 0.75 * steps else contextlib.nullcontext():
            loss = _loss(model, ids, targets)
            optimizer.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"warm start {step + 1}/{steps}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def _loss(model: GptOssForCausalLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    # Padding is on the right, so causal attention needs no mask for it.
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED
    )
