"""Whether engine and actor compute the same log-probs: an engine samples with an adapter, and the actor's model scores.

The checks of this module do so at the 120b's width, with few layers and random weights.

Near a tie, rounding decides which experts a token gets. With routing replay the actor takes the engine's choices, and
what is left is the difference of the kernels.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import engine_speed
from benchmarks.checks import Passed, choose_device, note
from benchmarks.engine_speed import GRAPHS, MARLIN, Answer, Engine, Lengths, read_answer, start_engine
from benchmarks.random_model import FULL, write_config, write_model
from grpo.model.architecture import NO_SHARD, Architecture
from grpo.stack.problem import UserError

if TYPE_CHECKING:
    from grpo.metrics.parity import Rollout
    from grpo.model.vocabulary import Allocated

LIMIT = 0.05  # nat; --parity_limit's default
TOKENS = 96  # of a response
SHAPE = replace(FULL, layers=2)  # one sliding, one full
_RANK, _EXPERT_RANK, _SCALE = 8, 16, 0.7
_UTILIZATION = 0.4  # of a GPU for the engine: with the actor's two layers, it fits into 24 GB


def check(gpus: int) -> Passed:
    """Compare at the width of gpt-oss-120b."""
    return measure_width(gpus, SHAPE)


def check_experts(gpus: int) -> Passed:
    """Compare at the width of gpt-oss-120b, with an adapter of the experts, too."""
    return measure_width(gpus, SHAPE, _EXPERT_RANK)


def check_marlin(gpus: int) -> Passed:
    """Time an engine with Triton's kernels for the experts and with Marlin's; compare the latter with the actor."""
    some = replace(FULL, layers=12)  # 22 GB: with Marlin's padding, all 36 do not fit into 80 GB beside a cache
    timed = engine_speed.measure_ways("12 layers of gpt-oss-120b", some, (GRAPHS, MARLIN))
    note(**timed.numbers)
    agreed = measure_width(gpus, SHAPE, way=MARLIN)
    return Passed(f"{timed.line}; {agreed.line}", {**timed.numbers, **agreed.numbers})


def measure_width(gpus: int, shape: Architecture, expert_rank: int = 0, way: str = engine_speed.EAGER) -> Passed:
    """Write a checkpoint of this shape, sample from it, and score the same tokens with the actor's model.

    Args:
        shape: in MXFP4; its vocabulary becomes that of the tiny model's tokenizer.
        expert_rank: of each expert's adapter; 0 for one of the attention alone.
        way: of the engine, as in engine_speed.
    """
    from grpo.lora import adapter
    from grpo.model import loading

    args: Any = SimpleNamespace(lora_rank=_RANK, lora_alpha=2 * _RANK, routing_replay=True, actor_shard=NO_SHARD)
    options: dict[str, Any] = {"additional_config": adapter.engine_config(args, expert_rank), "load_format": "auto"}
    options |= {"gpu_memory_utilization": _UTILIZATION} if gpus else {}
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "mxfp4")
        for_engine, tokenizer, shape = write_for_both(packed, shape, gpus)
        prompts = make_prompts(tokenizer)
        lengths = Lengths(prompt=max(map(len, prompts)), long=TOKENS)
        what = f"{shape.layers} layers of {shape.hidden}, {shape.experts} experts"
        what += f" with adapters of rank {expert_rank}" if expert_rank else ""
        with start_engine(for_engine, len(prompts), lengths, way, **options) as engine:
            model = add_adapter(loading.load_gpt_oss(packed), _RANK, compute_scale(shape, _RANK), expert_rank)
            model = model.to(choose_device(gpus)).eval()
            return compare_with_replay(what, engine, model, tokenizer)


def write_for_both(packed: Path, shape: Architecture, gpus: int) -> tuple[Path, Any, Architecture]:
    """Write a checkpoint for the actor; return what the engine loads, the tokenizer, and the shape with its vocabulary.

    vLLM on a CPU has no kernel for MXFP4.
    """
    from scripts.checkpoint_writer import dequantize_checkpoint

    tokenizer = write_config(packed, shape)
    shape = replace(shape, vocabulary=(len(tokenizer) // 64 + 1) * 64)
    write_model(packed, shape)
    if gpus:
        return packed, tokenizer, shape
    dequantize_checkpoint(packed, packed.with_name("bf16"))
    return packed.with_name("bf16"), tokenizer, shape


def compute_scale(shape: Architecture, rank: int) -> float:
    """Return the scale of an adapter whose projections change about as much as they compute."""
    return float(_SCALE * (shape.hidden * rank) ** -0.25)


def add_adapter(model: Any, rank: int, scale: float, expert_rank: int = 0) -> Any:
    """Return a model in PEFT, with gradient checkpointing and a random adapter that is the same on every device."""
    from peft import LoraConfig, get_peft_model

    from grpo.model import expert_lora
    from grpo.model.architecture import ATTENTION_PROJECTIONS, EXPERTS_TARGET

    model.enable_input_require_grads()
    targets = list(ATTENTION_PROJECTIONS)
    if expert_rank:
        expert_lora.attach(model, expert_rank)
        targets = expert_lora.list_target_modules([*targets, EXPERTS_TARGET])
    lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            shape = getattr(parameter, "ds_shape", parameter.shape)
            parameter.data = (torch.randn(shape, generator=generator) * scale).to(parameter.device, torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model.train()


def score_tokens(model: Any, ids: torch.Tensor, tokens: torch.Tensor, allocated: "Allocated") -> torch.Tensor:
    """Return the log-probs of all tokens but the first, `[B, S - 1]`; ids and tokens, False for padding: `[B, S]`."""
    from grpo.train import log_probs

    positions = (tokens.long().cumsum(-1) - 1).clamp(min=0)
    with log_probs.scoring(model, ids.roll(-1, 1), allocated, 1.0):
        output = model(ids, attention_mask=tokens.long(), position_ids=positions)
    return log_probs.read_scores(output["logits"], ids).log_probs[:, :-1] * tokens[:, 1:]


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """Return the tokens of prompts that ask for sums, which the tiny model solves."""
    from grpo.rollout.harmony import renderer

    render = renderer(tokenizer, {})
    return [render(f"What is {number + 3} + {2 * number + 5}?") for number in range(32)]


@torch.no_grad()
def score(model: Any, prompts: Sequence[list[int]], answers: Sequence[Answer], tokenizer: Any) -> "list[Rollout]":
    """Return what the parity gate compares: log-probs of the engine, and of the model with and without its adapter."""
    from grpo.metrics.parity import Rollout
    from grpo.model.vocabulary import find_allocated

    allocated, device = find_allocated(tokenizer), next(model.parameters()).device
    texts = [prompt + ids for prompt, (ids, _) in zip(prompts, answers, strict=True)]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    tokens = torch.tensor([[at < len(text) for at in range(longest)] for text in texts], device=device)
    now = score_tokens(model, ids, tokens, allocated).cpu()
    with model.disable_adapter():
        base = score_tokens(model, ids, tokens, allocated).cpu()
    result = []
    for row, (text, prompt, (_, sampled)) in enumerate(zip(texts, prompts, answers, strict=True)):
        positions = torch.arange(len(prompt), len(text))
        of_row = now[row, positions - 1], base[row, positions - 1]
        result.append(Rollout(0, 0, row, positions, torch.tensor(sampled), *of_row))
    return result


def judge(what: str, found: "Sequence[Rollout]") -> Passed:
    """Return by how much log-probs differ. Raises UserError if rounding does not explain it, or proves nothing."""
    from grpo.metrics.parity import compare

    comparison = compare(found)
    without = torch.cat([(one.sampled - one.base).abs() for one in found]).mean().item()
    mean = comparison.rows[0].mean.value
    line = f"{what}: {mean:.4f} nat from the actor, {without:.3f} without the adapter"
    if problems := list(comparison.problems(LIMIT)):
        raise UserError(f"{line}: {problems[0].what}", f"{problems[0].remedy}; see docs/parity.md")
    if without < 2 * LIMIT:
        raise UserError(f"{line}: the adapter changes nothing, so nothing was proven")
    return Passed(line, {"difference_nat": mean, "without_adapter_nat": without})


def compare_with_replay(what: str, engine: Engine, model: Any, tokenizer: Any) -> Passed:
    """Let an engine sample with the adapter of the actor's model; judge with routing replay, and say how it matters."""
    from grpo.lora import adapter
    from grpo.metrics.parity import compare
    from grpo.model import routing

    prompts = make_prompts(tokenizer)
    responses = engine.loop.run(_draw(engine.actor, *adapter.gather(model), prompts))
    answers = [response["answer"] for response in responses]
    free = compare(score(model, prompts, answers, tokenizer)).rows[0].mean.value
    recorded = [torch.from_numpy(response["routing"]) for response in responses]  # [tokens, layers, choices]
    # Of the pass that sampled the last tokens, which go through no pass themselves.
    distinct = count_experts(torch.stack([choices[-2] for choices in recorded]))
    measured = {"without_replay_nat": free, "distinct_experts": distinct}
    note(**measured)  # also if the comparison fails
    longest = max(len(response["observation_tokens"]) for response in responses)
    with routing.replay_choices(model, recorded, longest, next(model.parameters()).device) as replay:
        found = score(model, prompts, answers, tokenizer)
    assert replay is not None
    differing, choices = replay.counts()
    passed, share = judge(f"{what}, with routing replay", found), differing / choices
    line = f"{passed.line}; without replay {free:.4f}, as {share:.1%} of the choices differ"
    return Passed(line, {**passed.numbers, **measured, "choices_differing": share})


def count_experts(choices: torch.Tensor) -> float:
    """Return how many experts of a layer a pass reads, on average over the layers.

    Random weights that do not tell tokens apart choose few, and make passes look too fast.

    Args:
        choices: of a token of each sequence, ``[B, layers, choices]``.
    """
    return sum(len(of_layer.unique()) for of_layer in choices.unbind(1)) / choices.shape[1]


class _Single:
    """An agent of one call, given the tokens of its prompt."""

    async def execute(self, prompt: list[int], sampling_params: Any, llm_engine: Any, **_: Any) -> dict[str, Any]:
        output = (await llm_engine.generate(prompt, sampling_params)).outputs[0]
        return {"observation_tokens": [*prompt, *output.token_ids], "answer": read_answer(output)}


async def _draw(actor: Any, flat: torch.Tensor, specs: list[Any], prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Let an engine take an adapter; return a response to each prompt, with its choices of experts."""
    from vllm import SamplingParams

    from grpo.lora import adapter
    from grpo.lora.sync import check_sync, load_into_engine
    from grpo.rollout.stage import mark_recorded

    actor.executor = _Single()
    results = await load_into_engine(actor.llm, flat.view(torch.uint8).numpy(), [asdict(spec) for spec in specs])
    check_sync([results], adapter.Checksums.of(flat, specs))
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.0, seed=1, logprobs=0)
    params, length = mark_recorded(sampling), max(map(len, prompts)) + TOKENS + 1
    calls = [actor.generate_responses(prompt, "", params, length, None, 1) for prompt in prompts]
    return [response for [response] in await asyncio.gather(*calls)]
