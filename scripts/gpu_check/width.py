"""The rung about engine and actor at the 120b's width: few layers, random weights, the same tokens scored by both.

Near a tie, rounding decides which experts a token gets. With routing replay the actor takes the engine's choices, and
what is left is the difference of the kernels.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from grpo.model.architecture import NO_SHARD, Architecture
from grpo.model.released import RELEASED
from scripts.gpu_check.engine import RANK, judge, make_prompt, rollouts
from scripts.gpu_check.rung import Passed, choose_device, note
from scripts.gpu_check.scoring import add_adapter

if TYPE_CHECKING:
    from grpo.model.vocabulary import Allocated

SHAPE = replace(RELEASED["openai/gpt-oss-120b"], layers=2)  # one sliding, one full
PROMPTS, TOKENS = 32, 96
EXPERT_RANK = 16  # EXPERT_RANK's default in the recipe
SCALE = 0.7
_UTILIZATION = 0.4  # two layers and their actor fit into 24 GB


def check(gpus: int) -> Passed:
    """Compare at the width of gpt-oss-120b."""
    return measure_width(gpus, SHAPE)


def check_experts(gpus: int) -> Passed:
    """Compare at the width of gpt-oss-120b, with an adapter of the experts, too."""
    return measure_width(gpus, SHAPE, EXPERT_RANK)


def measure_width(gpus: int, shape: Architecture, expert_rank: int = 0) -> Passed:
    """Write a checkpoint of this shape, sample from it, and score the same tokens with the actor's model.

    Args:
        shape: in MXFP4; its vocabulary becomes that of the tiny model's tokenizer.
        expert_rank: of each expert's adapter; 0 for one of the attention alone.
    """
    from transformers import AutoTokenizer

    from grpo.lora import adapter
    from grpo.model import loading
    from grpo.model.vocabulary import find_allocated

    device = choose_device(gpus)
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "mxfp4")
        write_model(packed, shape)
        tokenizer = AutoTokenizer.from_pretrained(packed)
        # On the host, for now
        model = add_adapter(loading.load_gpt_oss(packed), RANK, compute_scale(shape), expert_rank)
        flat, specs = adapter.gather(model)
        prompts = [make_prompt(tokenizer, number) for number in range(PROMPTS)]
        responses = sample(gpus, write_for_engine(packed, gpus), flat, specs, prompts, expert_rank)
        model = model.to(device).eval()
    what = f"{shape.layers} layers of {shape.hidden}, {shape.experts} experts"
    if expert_rank:
        what += f" with adapters of rank {expert_rank}"
    return compare_with_replay(what, model, prompts, responses, find_allocated(tokenizer), device)


def compare_with_replay(
    what: str,
    model: Any,
    prompts: Sequence[list[int]],
    responses: Sequence[Mapping[str, Any]],
    kept: "Allocated",
    device: str,
) -> Passed:
    """Return by how much an engine's log-probs differ from those of the actor's model, with routing replay and without.

    Args:
        what: was compared.
        responses: of :func:`draw`.
    """
    from grpo.metrics.scored_rollouts import compare
    from grpo.model import routing

    of_actor = model, prompts, [response["answer"] for response in responses], kept, device
    free = compare(rollouts(*of_actor)).rows[0].mean.value
    note(without_replay_nat=free)
    longest = max(len(response["observation_tokens"]) for response in responses)
    recorded = [torch.from_numpy(response["routing"]) for response in responses]
    with routing.replay_choices(model, recorded, longest, device) as replay:
        found = rollouts(*of_actor)
    assert replay is not None
    differing, choices = replay.counts()
    passed = judge(f"{what}, with routing replay", found)
    share = differing / choices
    numbers = {**passed.numbers, "without_replay_nat": free, "choices_differing": share}
    return Passed(f"{passed.line}; without replay {free:.4f}, as {share:.1%} of the choices differ", numbers)


def compute_scale(shape: Architecture, rank: int = RANK) -> float:
    """Return the scale of an adapter whose projections change about as much as they compute."""
    return SCALE * (shape.hidden * rank) ** -0.25


def write_model(folder: Path, shape: Architecture) -> None:
    """Write a checkpoint with the tiny model's tokenizer."""
    from transformers import AutoTokenizer

    from benchmarks.parts.random_model import write_model_config, write_random_weights
    from scripts.tiny_model.tokenizer import STOP_TOKENS, write_tokenizer

    folder.mkdir()
    write_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shape = replace(shape, vocabulary=(len(tokenizer) // 64 + 1) * 64)
    write_model_config(folder, shape, tokenizer.convert_tokens_to_ids(list(STOP_TOKENS)))
    write_random_weights(folder, shape)


def write_for_engine(packed: Path, gpus: int) -> Path:
    """Return what the engine loads: vLLM on a CPU has no kernel for MXFP4."""
    if gpus:
        return packed
    from scripts.dequantize_checkpoint import dequantize_checkpoint

    dequantize_checkpoint(packed, packed.with_name("bf16"))
    return packed.with_name("bf16")


class Single:
    """An agent of one call, given the tokens of its prompt."""

    async def execute(self, prompt: list[int], sampling_params: Any, llm_engine: Any, **_: Any) -> dict[str, Any]:
        """Return the tokens of prompt and response, and the response with its log-probs."""
        output = (await llm_engine.generate(prompt, sampling_params)).outputs[0]
        ids = list(output.token_ids)
        sampled = [at[token].logprob for token, at in zip(ids, output.logprobs, strict=True)]
        return {"observation_tokens": [*prompt, *ids], "answer": (ids, sampled)}


def sample(
    gpus: int,
    model: Path,
    flat: torch.Tensor,
    specs: Sequence[Any],
    prompts: Sequence[list[int]],
    expert_rank: int = 0,
) -> list[dict[str, Any]]:
    """Return a response to each prompt, with the engine's choices of experts; the engine has ended then."""
    from benchmarks.parts.tiny_engine import start_engine
    from grpo.lora import adapter

    args: Any = SimpleNamespace(lora_rank=RANK, lora_alpha=2 * RANK, routing_replay=True, actor_shard=NO_SHARD)
    options: dict[str, Any] = {"gpu_memory_utilization": _UTILIZATION} if gpus else {}
    actor = start_engine(
        model, len(prompts), max(map(len, prompts)) + TOKENS + 1, "auto",
        worker_extension_cls="grpo.lora.side_path.AdapterWorker",
        additional_config=adapter.engine_config(args, expert_rank), **options,
    )  # fmt: skip
    try:
        with asyncio.Runner() as loop:
            return loop.run(draw(actor, flat, specs, prompts))
    finally:
        actor.llm.shutdown()


async def draw(
    actor: Any, flat: torch.Tensor, specs: Sequence[Any], prompts: Sequence[list[int]]
) -> list[dict[str, Any]]:
    """Let an engine take an adapter; return a response to each prompt, with its choices of experts."""
    from vllm import SamplingParams

    from grpo.lora import adapter
    from grpo.lora.engine_actor import check_receipts, load_into_engine
    from grpo.rollout import routing

    actor.executor = Single()
    fields = [asdict(spec) for spec in specs]
    receipts = await load_into_engine(actor.llm, flat.view(torch.uint8).numpy(), fields)
    check_receipts([receipts], adapter.Receipt.of(flat, list(specs)))
    params = routing.mark_recorded(
        SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.0, seed=1, logprobs=0)
    )
    length = max(map(len, prompts)) + TOKENS + 1
    calls = [actor.generate_responses(prompt, "", params, length, None, 1) for prompt in prompts]
    return [response for [response] in await asyncio.gather(*calls)]
