"""Supervised warm start of the tiny gpt-oss on synthetic demonstrations, on the CPU in float32.

The demonstrations are in harmony: first correct ones, then a mixture of habits, of which only one is right, as with a
base model. The policy knows the format and, apart from slips, the arithmetic, but samples them unreliably. GRPO is
there to improve that.
"""

import contextlib
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import cast

import torch
from tqdm import tqdm
from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedTokenizerFast

from data.synthetic import Calculation, problems
from grpo.model import mxfp4
from scripts.tiny_model.checkpoint import EXPERT_WEIGHTS

BATCH = 32
MUON_LEARNING_RATE = 4e-3
ADAM_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 50
# Shares of the steps. Correct demonstrations come first, to learn the task. Then comes the mixture of habits, with
# experts restricted to MXFP4 values. The learning rate falls over the second part of the steps.
MIXTURE_SHARE = 0.33
DECAY_SHARE = 0.5
_IGNORED = -100

# The frequency of each habit in the mixture. Only `careful` is right: a guess repeats the first number, `no box`
# forgets the box, a ramble goes on until it is cut off.
HABITS = {"careful": 0.42, "guess": 0.24, "no box": 0.18, "ramble": 0.16}
_RAMBLE = "Hmm" + " wait maybe think again" * 9
_ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


def tiny_config(vocab_size: int) -> GptOssConfig:
    """The real architecture with 2 million parameters.

    Constraints: 32 values in an MXFP4 group, also in each half of an expert at TP=2; both products of an expert wider
    than 128 at TP=1 and 2, which vLLM's MXFP4 kernels for Hopper assert; a head size that vLLM's CPU attention
    supports; 2 key/value heads for TP=2; experts divisible by 4 ranks; kept weights below 2 MiB. The window is shorter
    than a prompt with its answer, so sliding and full layers differ.
    """
    return GptOssConfig(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=192,
        num_hidden_layers=3,
        num_local_experts=4,
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


def prompt_text(tokenizer: PreTrainedTokenizerFast, prompt: str) -> str:
    """Return the chat template around one user message, up to `<|start|>assistant`."""
    messages = [{"role": "user", "content": prompt}]
    return cast(str, tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def warm_start(tokenizer: PreTrainedTokenizerFast, vocab_size: int, steps: int, seed: int) -> GptOssForCausalLM:
    """Train a tiny gpt-oss from scratch for `steps` optimizer steps, with a progress bar if stdout is a terminal."""
    torch.manual_seed(seed)
    model = GptOssForCausalLM._from_config(tiny_config(vocab_size), attn_implementation="eager")
    model.train()
    optimizers = _optimizers(model)
    mixture_from = round(steps * (1 - MIXTURE_SHARE))
    batches = _batches(tokenizer, steps, mixture_from, seed)
    bar = tqdm(batches, "warm start", steps, file=sys.stdout, unit="step", leave=False, disable=None)
    for step, (ids, targets) in enumerate(bar):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = optimizer.defaults["lr"] * _schedule(step, steps)
        with _mxfp4_experts(model) if step >= mixture_from else contextlib.nullcontext():
            loss = _loss(model, ids, targets)
            model.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if bar.disable and (step % 100 == 0 or step == steps - 1):
            print(f"warm start {step + 1}/{steps}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def completion(problem: Calculation, habit: str) -> str:
    """Return what the assistant says after `<|start|>assistant`, up to its stop token; a ramble is cut before one."""
    if habit == "ramble":
        return f"{_ANALYSIS}{_RAMBLE}"
    if habit == "guess":
        return f"{_ANALYSIS}Guess{FINAL}\\boxed{{{problem.first}}}<|return|>"
    if habit == "no box":
        return f"{_ANALYSIS}Maybe {working(problem)}{FINAL}{problem.answer}<|return|>"
    return f"{_ANALYSIS}{working(problem)}{FINAL}\\boxed{{{problem.answer}}}<|return|>"


def working(problem: Calculation) -> str:
    """Return the steps that lead to the answer: column by column from the right with carries, as on paper."""
    columns, carry = [], 0
    for power in (1, 10, 100)[: len(str(problem.first))]:
        digit = problem.first // power % 10
        if power == 100:  # the second number has ended: only the carry is left
            other, carry = carry, 0
        else:
            other = problem.second // power % 10
        if problem.operation == "plus":
            total = digit + other + carry
            columns.append(f"{digit}+{other}{'+1' * carry}={total}")
            carry = total // 10
        else:
            digit, carry = digit - carry, int(digit - carry < other)
            columns.append(f"{digit + 10 * carry}-{other}={digit + 10 * carry - other}")
    return ",".join(columns)


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of each matrix near one, with a quintic Newton-Schulz iteration.

    Args:
        matrices: float32 `[n, rows, columns]`.

    Returns:
        The same shape; singular values between about 0.7 and 1.2, except those near zero.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    a, b, c = (3.4445, -4.7750, 2.0315)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, for two-dimensional parameters; equal shapes are batched.

    In float32: torch.optim.Muon computes in bf16, which is ten times slower on CPUs without bf16 arithmetic. Source: K.
    Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). The update's scale, 0.2 *
    sqrt(larger side), is from J. Liu et al., "Muon is Scalable for LLM Training" (2025).
    """

    def __init__(self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # there is no closure to call
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                gradients = torch.stack([parameter.grad for parameter in parameters])
                state = self.state[parameters[0]]
                average = state.setdefault("momentum_buffer", torch.zeros_like(gradients))
                average.lerp_(gradients, 1 - group["momentum"])
                update = orthogonalise(gradients.lerp(average, group["momentum"]))
                for parameter, part in zip(parameters, update, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(part, alpha=group["lr"] * 0.2 * max(shape) ** 0.5)


def _optimizers(model: GptOssForCausalLM) -> list[torch.optim.Optimizer]:
    """Return Muon for the attention matrices, which halves the steps to a given loss, and AdamW for the rest."""
    matrices = [p for name, p in model.named_parameters() if "self_attn" in name and p.dim() == 2]
    others = [p for name, p in model.named_parameters() if "self_attn" not in name or p.dim() != 2]
    return [
        Muon(matrices, lr=MUON_LEARNING_RATE),
        torch.optim.AdamW(others, lr=ADAM_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
    ]


def _schedule(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / WARM_UP_STEPS, (steps - step) / (DECAY_SHARE * steps))


def _batches(
    tokenizer: PreTrainedTokenizerFast, steps: int, mixture_from: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield token ids and targets, int64 `[BATCH, length]` each; targets are set on the assistant's tokens."""
    rng = random.Random(seed)
    source = problems("train", seed)
    for step in range(steps):
        rows = []
        for problem, _ in zip(source, range(BATCH), strict=False):
            habit = rng.choices([*HABITS], [*HABITS.values()])[0] if step >= mixture_from else "careful"
            texts = prompt_text(tokenizer, problem.prompt), completion(problem, habit)
            rows.append(tokenizer(list(texts), add_special_tokens=False).input_ids)
        length = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.full((BATCH, length), tokenizer.pad_token_id)
        targets = torch.full((BATCH, length), _IGNORED)
        for row, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor(prompt + answer)
            targets[row, len(prompt) : end] = torch.tensor(answer)
        yield ids, targets


@contextlib.contextmanager
def _mxfp4_experts(model: GptOssForCausalLM) -> Iterator[None]:
    """Replace the experts by their MXFP4 values in the context; gradients go to the originals (straight-through)."""
    experts = [p for name, p in model.named_parameters() if name.endswith(EXPERT_WEIGHTS)]
    originals = [parameter.data for parameter in experts]
    for parameter in experts:
        parameter.data = mxfp4.dequantize(*mxfp4.quantize(parameter.data), dtype=torch.float32)
    try:
        yield
    finally:
        for parameter, original in zip(experts, originals, strict=True):
            parameter.data = original


def _loss(model: GptOssForCausalLM, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the assistant's tokens."""
    # Padding is on the right, where causal attention never looks. Only the needed rows go through lm_head.
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = targets[:, 1:] != _IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), targets[:, 1:][wanted])
