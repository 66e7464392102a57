"""Detects errors before the model is loaded, with the remedy; without torch."""

import math
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from grpo.checkpoint import adapter_files
from grpo.checkpoint.adapter_files import Adapter
from grpo.model import architecture, model_files
from grpo.model.model_files import Model
from grpo.rollout.chat_template import find_stop_fault
from grpo.rollout.thinking import Budget, Delimiter, Encode, delimiter
from grpo.stack import machine
from grpo.stack.checkout import is_cpu_stack
from grpo.stack.command import check_counts
from grpo.stack.problem import UserError


def check_options(options: Namespace) -> None:
    """Refuse impossible numbers; raises UserError for the first one."""
    check_counts(options, ("n", "limit", "max_tokens", "tensor_parallel", "max_model_len", "batch"))
    if not 0 <= options.temperature < math.inf:
        raise UserError(f"--temperature is {options.temperature:g}", "give 0 or more")
    for name in ("top_p", "gpu_memory_utilization"):
        if not 0 < getattr(options, name) <= 1:
            raise UserError(
                f"--{name.replace('_', '-')} is {getattr(options, name):g}", "give a share above 0, up to 1"
            )
    if options.temperature == 0 and options.n > 1:
        raise UserError("--temperature 0 draws the same sample every time", "give --n 1, or a higher temperature")


def check_thinking(options: Namespace, encode: Encode) -> tuple[Delimiter, Budget] | None:
    """Return the delimiter that ends the thinking, and its budget; None without one.

    Args:
        encode: the model's tokenizer, see :func:`grpo.rollout.thinking.delimiter`.

    Raises:
        UserError: if an option lacks another one, the tokenizer cannot produce the delimiter, or the budgets do not
            fit in --max-tokens.
    """
    has_thinking, has_answer = options.thinking_budget is not None, options.answer_budget is not None
    if has_thinking != has_answer:
        raise UserError("--thinking-budget and --answer-budget only work together", "give both or neither")
    if not has_thinking:
        if options.thinking_delimiter is not None:
            remedy = "add --thinking-budget and --answer-budget"
            raise UserError("--thinking-delimiter has no effect without a budget", remedy)
        return None
    made = delimiter(options.thinking_delimiter, encode)
    budget = Budget(options.thinking_budget, options.answer_budget)
    needed = budget.thinking + len(made.tokens) + budget.answer
    if needed > options.max_tokens:
        raise UserError(
            f"--thinking-budget {budget.thinking} + delimiter {len(made.tokens)} + --answer-budget {budget.answer} = "
            f"{needed} tokens, more than --max-tokens {options.max_tokens}",
            f"give --max-tokens {needed}, or lower a budget",
        )
    return made, budget


def check_environment() -> None:
    """Number the GPUs for vLLM, and refuse variables with which it takes half the memory on a CPU; raises UserError."""
    machine.number_gpus()
    if is_cpu_stack() and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        raise UserError("the variables of this checkout are not set", "run: source scripts/env.sh")


def check_model(folder: Path, tensor_parallel: int) -> Model:
    """Return a checkpoint's files, after checking all of their headers.

    Raises:
        UserError: if files are missing or contradict each other, or this machine's vLLM cannot load them so.
        grpo.model.model_files.CheckpointError: if there is no model.
    """
    model = model_files.read(folder)
    is_gpt_oss = model.config.get("model_type") == architecture.MODEL_TYPE
    faults = architecture.check(model) if is_gpt_oss else list(model.faults)
    if is_gpt_oss and (fault := find_stop_fault(folder)):
        faults.append(fault)
    if faults:
        raise UserError(f"{folder}: {faults[0].file} {faults[0].what}", faults[0].remedy)
    if is_cpu_stack() and model.is_mxfp4:
        raise UserError(
            "vLLM on a CPU cannot load MXFP4",
            f"python -m scripts.export_model --model {folder} --experts bf16 --out COPY, and give --model COPY",
        )
    for key in ("num_attention_heads", "num_key_value_heads"):
        count = model.config.get(key)
        if count and count % tensor_parallel:
            raise UserError(
                f"--tensor-parallel {tensor_parallel} does not divide the model's {count} {key[4:]}", "give a divisor"
            )
    return model


def read_adapter(folder: Path, model: Model) -> Adapter:
    """Return an adapter's files, after checking headers and values.

    Raises:
        UserError: if it is broken, or belongs to another model.
        grpo.model.model_files.CheckpointError: if there is no adapter, or the model is not a gpt-oss.
    """
    adapter = adapter_files.read(folder)
    faults = adapter_files.check_against(adapter, model)
    if faults:
        raise UserError(f"{folder}: {faults[0].file} {faults[0].what}", faults[0].remedy)
    if broken := adapter_files.non_finite(adapter):
        raise UserError(
            f"{folder} has NaN or infinity, for example in {broken[0]}", "use the adapter of an earlier step"
        )
    return adapter


def check_length(prompts: Mapping[str, list[int]], max_tokens: int, max_model_len: int | None, model: Model) -> int:
    """Return how many tokens the engine must have room for.

    Args:
        prompts: tokens by problem.
        max_model_len: the user's choice; None for what is needed.

    Raises:
        UserError: if a prompt and its response do not fit.
    """
    longest = max(prompts, key=lambda problem: len(prompts[problem]))
    needed = len(prompts[longest]) + max_tokens
    context = model.config.get("max_position_embeddings") or needed
    for limit, name in ((max_model_len, "--max-model-len is"), (context, "the model's context is")):
        if limit is not None and limit < needed:
            raise UserError(
                f"the prompt of {longest} has {len(prompts[longest])} tokens, which makes {needed} with --max-tokens "
                f"{max_tokens}, but {name} {limit}",
                "lower --max-tokens, or leave out the problem",
            )
    return max_model_len or needed
