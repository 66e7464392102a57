"""The rung about engines: the tiny model in vLLM, over Ray, with the adapter of a sync, against the actor's model.

On a GPU, vLLM runs MXFP4 with its own kernels, on two GPUs if there are as many. The tiny model is the one of
`./train_grpo.sh --tiny`, which solves sums: its answers are no noise.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from grpo.launch.supervise import ray_head
from grpo.rollout.prompts import renderer
from grpo.stack import rendezvous
from grpo.stack.checkout import TINY_MODEL
from grpo.stack.problem import UserError
from scripts.gpu_check.rung import Passed, choose_device
from scripts.gpu_check.scoring import add_adapter, score_tokens

if TYPE_CHECKING:
    from grpo.metrics.scored_rollouts import Rollout
    from grpo.model.vocabulary import Allocated

LIMIT = 0.05  # nat; PARITY_LIMIT's default
RANK, SCALE = 8, 0.035  # of an adapter that changes log-probs by more than the limit
LONGEST = 512
FEWEST = 8  # prompts that say how much chance there is


def check(gpus: int) -> Passed:
    """Send a random adapter to an engine, sample, and score the same tokens with the actor's model."""
    device, workers = choose_device(gpus), min(gpus or 2, 2)
    scratch = Path(tempfile.mkdtemp(prefix=""))  # a short name, for sockets lie in it; it goes with the rung's TMPDIR
    os.environ.update(ray_head.variables() | rendezvous.variables(scratch / "rendezvous"))  # before Ray is imported
    from transformers import AutoTokenizer

    from grpo.lora import adapter, sync
    from grpo.model import loading
    from grpo.model.vocabulary import find_allocated

    folder = tiny_model()
    tokenizer = AutoTokenizer.from_pretrained(folder / "mxfp4")
    model = add_adapter(loading.load_gpt_oss(folder / "mxfp4"), RANK, SCALE).to(device).eval()
    flat, specs = adapter.gather(model)
    prompts = [make_prompt(tokenizer, number) for number in range(32)]
    # vLLM on a CPU has no kernel for MXFP4.
    with start_engine(folder / ("mxfp4" if gpus else "bf16"), scratch, workers, gpus) as engine:
        sync.send(flat, specs, [engine])
        answers = sample(engine, prompts)
    found = rollouts(model, prompts, answers, find_allocated(tokenizer), device)
    # On a CPU, vLLM replaces Ray's executor by processes.
    passed = judge(f"{'MXFP4 over Ray' if gpus else 'bf16'}, TP={workers}", found)
    return Passed(passed.line, {**passed.numbers, "workers": workers})


def judge(what: str, found: "Sequence[Rollout]") -> Passed:
    """Return by how much an engine's log-probs differ from the actor's.

    Args:
        what: was compared.
        found: with an adapter that changes log-probs by more than the limit.

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


def tiny_model() -> Path:
    """Make the tiny model where `./train_grpo.sh --tiny` keeps it."""
    from scripts import make_tiny_model

    words = ["--out", str(TINY_MODEL / "mxfp4"), "--dequantized-out", str(TINY_MODEL / "bf16")]
    if make_tiny_model.main(words):
        raise RuntimeError(f"the tiny model was not made in {TINY_MODEL}")
    return TINY_MODEL


@contextmanager
def start_engine(model: Path, scratch: Path, workers: int, gpus: int) -> Iterator[Any]:
    """Start Ray and one engine, as OpenRLHF does in a run, and end both."""
    import ray
    from openrlhf.trainer.ray import create_vllm_engines

    from grpo.lora import adapter
    from grpo.model.architecture import NO_SHARD
    from grpo.stack import cluster
    from scripts import local_ray

    with local_ray.start_ray(scratch / "ray", workers + 4, max(gpus, workers), 300_000_000, shows_logs=True):
        args: Any = SimpleNamespace(
            lora_rank=RANK, lora_alpha=2 * RANK, routing_replay=False, parity_limit=0, actor_shard=NO_SHARD
        )
        (engine,) = create_vllm_engines(
            1, workers, str(model), 1, False, True, True, LONGEST,
            gpu_memory_utilization=0.3, adapter_config=adapter.engine_config(args),
        )  # fmt: skip
        ray.get(cluster.engines_ready([engine]))
        yield engine


def make_prompt(tokenizer: Any, number: int) -> list[int]:
    """Return the tokens of a prompt that asks for a sum."""
    return renderer(tokenizer, {})(f"What is {number + 3} + {2 * number + 5}?")


def sample(engine: Any, prompts: Sequence[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Return the sampled tokens and their log-probs, for each prompt."""
    import ray
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=40, temperature=1.0, seed=1, logprobs=0)
    outputs = [output.outputs[0] for output in ray.get([engine.generate.remote(prompt, params) for prompt in prompts])]
    return [
        (list(one.token_ids), [at[token].logprob for token, at in zip(one.token_ids, one.logprobs, strict=True)])
        for one in outputs
    ]


@torch.no_grad()
def rollouts(
    model: Any,
    prompts: Sequence[list[int]],
    answers: Sequence[tuple[list[int], list[float]]],
    kept: "Allocated",
    device: str,
) -> "list[Rollout]":
    """Return what the parity gate compares: log-probs of the engine, and of the model with and without its adapter."""
    from grpo.metrics.scored_rollouts import Rollout

    texts = [prompt + ids for prompt, (ids, _) in zip(prompts, answers, strict=True)]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    tokens = torch.tensor([[True] * len(text) + [False] * (longest - len(text)) for text in texts], device=device)
    now = score_tokens(model, ids, tokens, kept).cpu()
    with model.disable_adapter():
        base = score_tokens(model, ids, tokens, kept).cpu()
    result = []
    for row, (text, prompt, (_, sampled)) in enumerate(zip(texts, prompts, answers, strict=True)):
        positions = torch.arange(len(prompt), len(text))
        of_row = now[row, positions - 1], base[row, positions - 1]
        result.append(Rollout(0, 0, row, positions, torch.tensor(sampled), *of_row))
    return result
