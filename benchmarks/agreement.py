"""Whether engine and actor compute the same log-probs: an engine samples with an adapter, and the actor's model scores.

Near a tie, rounding decides which experts a token gets. With routing replay the actor takes the engine's choices, and
what is left is the difference of the kernels.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.rung import Passed, note
from grpo.stack.problem import UserError

if TYPE_CHECKING:
    from grpo.metrics.scored_rollouts import Rollout
    from grpo.model.vocabulary import Allocated

LIMIT = 0.05  # nat; PARITY_LIMIT's default
FEWEST = 8  # prompts that say how much chance there is
PROMPTS, TOKENS = 32, 96
Answer = tuple[list[int], list[float]]  # sampled tokens, and their log-probs


def add_adapter(model: Any, rank: int, scale: float, expert_rank: int = 0) -> Any:
    """Return a model in PEFT, with gradient checkpointing and a random adapter that is the same on every device.

    Args:
        expert_rank: of each expert; 0 for an adapter of the attention alone.
    """
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


def score_tokens(model: Any, ids: torch.Tensor, tokens: torch.Tensor, kept: "Allocated") -> torch.Tensor:
    """Return the log-probs of all tokens but the first, `[B, S - 1]`; zeros for padding.

    Args:
        ids: `[B, S]`.
        tokens: bool `[B, S]`, False for padding.
        kept: the allocated rows of the vocabulary.
    """
    from grpo.update import log_probs

    positions = (tokens.long().cumsum(-1) - 1).clamp(min=0)
    with log_probs.scoring(model, ids.roll(-1, 1), kept, 1.0):
        output = model(ids, attention_mask=tokens.long(), position_ids=positions)
    return log_probs.scores(output["logits"], ids).log_probs[:, :-1] * tokens[:, 1:]


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """Return the tokens of prompts that ask for sums, which the tiny model solves."""
    from grpo.rollout.prompts import renderer

    render = renderer(tokenizer, {})
    return [render(f"What is {number + 3} + {2 * number + 5}?") for number in range(PROMPTS)]


class _Single:
    """An agent of one call, given the tokens of its prompt."""

    async def execute(self, prompt: list[int], sampling_params: Any, llm_engine: Any, **_: Any) -> dict[str, Any]:
        """Return the tokens of prompt and response, and the response with its log-probs."""
        output = (await llm_engine.generate(prompt, sampling_params)).outputs[0]
        return {"observation_tokens": [*prompt, *output.token_ids], "answer": read_answer(output)}


def read_answer(output: Any) -> Answer:
    """Return what vLLM has sampled."""
    ids = list(output.token_ids)
    return ids, [at[token].logprob for token, at in zip(ids, output.logprobs, strict=True)]


async def draw(
    actor: Any, flat: torch.Tensor, specs: Sequence[Any], prompts: Sequence[list[int]]
) -> list[dict[str, Any]]:
    """Let an engine take an adapter; return a response to each prompt, with its choices of experts."""
    from vllm import SamplingParams

    from grpo.lora import adapter
    from grpo.lora.engine_actor import check_receipts, load_into_engine
    from grpo.rollout import routing

    actor.executor = _Single()
    receipts = await load_into_engine(actor.llm, flat.view(torch.uint8).numpy(), [asdict(spec) for spec in specs])
    check_receipts([receipts], adapter.Receipt.of(flat, list(specs)))
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.0, seed=1, logprobs=0)
    params, length = routing.mark_recorded(sampling), max(map(len, prompts)) + TOKENS + 1
    calls = [actor.generate_responses(prompt, "", params, length, None, 1) for prompt in prompts]
    return [response for [response] in await asyncio.gather(*calls)]


@torch.no_grad()
def score(
    model: Any, prompts: Sequence[list[int]], answers: Sequence[Answer], kept: "Allocated", device: str
) -> "list[Rollout]":
    """Return what the parity gate compares: log-probs of the engine, and of the model with and without its adapter."""
    from grpo.metrics.scored_rollouts import Rollout

    texts = [prompt + ids for prompt, (ids, _) in zip(prompts, answers, strict=True)]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    tokens = torch.tensor([[at < len(text) for at in range(longest)] for text in texts], device=device)
    now = score_tokens(model, ids, tokens, kept).cpu()
    with model.disable_adapter():
        base = score_tokens(model, ids, tokens, kept).cpu()
    result = []
    for row, (text, prompt, (_, sampled)) in enumerate(zip(texts, prompts, answers, strict=True)):
        positions = torch.arange(len(prompt), len(text))
        of_row = now[row, positions - 1], base[row, positions - 1]
        result.append(Rollout(0, 0, row, positions, torch.tensor(sampled), *of_row))
    return result


def judge(what: str, found: "Sequence[Rollout]") -> Passed:
    """Return by how much an engine's log-probs differ from the actor's.

    Raises:
        UserError: if rounding does not explain the difference, or if too little was compared.
    """
    from grpo.metrics.scored_rollouts import compare

    comparison = compare(found)
    without = torch.cat([(one.sampled - one.base).abs() for one in found]).mean().item()
    mean = comparison.rows[0].mean.value
    line = f"{what}: {mean:.4f} nat from the actor, {without:.3f} without the adapter"
    if problems := list(comparison.problems(LIMIT)):
        raise UserError(f"{line}: {problems[0].what}", f"{problems[0].remedy}; see docs/parity.md")
    if comparison.rows[0].mean.parts < FEWEST:
        raise UserError(f"{line}: {len(found)} prompts are too few to judge")
    if without < 2 * LIMIT:
        raise UserError(f"{line}: the adapter changes nothing, so nothing was proven")
    return Passed(line, {"difference_nat": mean, "without_adapter_nat": without})


def judge_with_replay(
    what: str,
    model: Any,
    prompts: Sequence[list[int]],
    responses: Sequence[Mapping[str, Any]],
    kept: "Allocated",
    device: str,
) -> Passed:
    """Judge what :func:`draw` has returned, with routing replay, and say how much it matters."""
    from grpo.metrics.scored_rollouts import compare
    from grpo.model import routing

    of_actor = model, prompts, [response["answer"] for response in responses], kept, device
    free = compare(score(*of_actor)).rows[0].mean.value
    note(without_replay_nat=free)
    longest = max(len(response["observation_tokens"]) for response in responses)
    recorded = [torch.from_numpy(response["routing"]) for response in responses]
    with routing.replay_choices(model, recorded, longest, device) as replay:
        found = score(*of_actor)
    assert replay is not None
    differing, choices = replay.counts()
    passed, share = judge(f"{what}, with routing replay", found), differing / choices
    numbers = {**passed.numbers, "without_replay_nat": free, "choices_differing": share}
    return Passed(f"{passed.line}; without replay {free:.4f}, as {share:.1%} of the choices differ", numbers)
