"""How far log-probs of trainer and engine differ, with the trainer's own choice of experts and with the engine's.

The engine is vLLM's, and the trainer's model is the actor's. Both hold the weights of the tiny model in bf16, with
routers moved close to ties: their weights shrink, and a constant, which no softmax sees, makes rounding coarser.
`stock` and `ours` are `logprob_diff_mean` over all seeds.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from grpo.lora import adapter
from grpo.metrics.update_metrics import engine_metrics
from grpo.model import loading, routing, vocabulary
from grpo.model.architecture import ATTENTION_PROJECTIONS
from grpo.rollout import invariant
from grpo.rollout import routing as rollout_routing
from grpo.rollout.engine import ids_only
from grpo.rollout.prompts import renderer
from grpo.stack.checkout import CHECKOUT
from grpo.stack.problem import UserError
from scripts.bench.harness import Result
from scripts.bench.machine import Copy
from scripts.bench.parts.tiny_engine import quiet, start_engine

MODEL = CHECKOUT / ".cache" / "tiny-model" / "bf16"
PROMPTS, TOKENS, CONSTANT = 8, 48, 1.0
METRICS = ("logprob_diff_mean", "logprob_diff_max", "logprob_diff_first", "logprob_diff_last")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=MODEL, help="the tiny model in bf16, as --tiny makes it")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the samples (default: 5)")
    parser.add_argument("--scale", type=float, default=0.05, help="of the routers' weights (default: 0.05)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    if not options.model.is_dir():
        raise UserError(f"{options.model} does not exist", "run ./train_grpo.sh --tiny --check, which makes it")
    if options.seeds < 2 or options.scale <= 0:
        raise UserError("an option is out of range", "--seeds must be at least 2, and --scale above 0")
    with tempfile.TemporaryDirectory(prefix="bench-routing-") as scratch, quiet():
        write_near_ties(options.model, Path(scratch), options.scale)
        samples = asyncio.run(sampled(Path(scratch), range(options.seeds)))
        trainer = Trainer(Path(scratch))
        measured = [trainer.measure(of_seed) for of_seed in samples]
    rows = {
        f"{name}_{way}": [measure[way][name] for measure in measured] for name in METRICS for way in ("stock", "ours")
    }
    return Result(
        what=f"logprob_diff_mean, {options.seeds} seeds of {PROMPTS} samples with up to {TOKENS} tokens, "
        f"router weights times {options.scale:g}",
        unit="nat",
        stock=statistics.mean(rows["logprob_diff_mean_stock"]),
        ours=statistics.mean(rows["logprob_diff_mean_ours"]),
        higher_is_better=False,
        details={
            "choices_that_differ": statistics.mean(measure["differ"] for measure in measured),
            "tokens": sum(measure["tokens"] for measure in measured),
            **{name: ", ".join(f"{value:.4f}" for value in values) for name, values in rows.items()},
        },
    )


def write_near_ties(source: Path, target: Path, scale: float) -> None:
    """Copy a model with its routers' weights scaled, and a constant added to their logits."""
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
            continue
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if ".mlp.router." in name:
                tensors[name] = (tensor.float() * scale + CONSTANT * name.endswith("bias")).bfloat16()
        save_file(tensors, target / file.name, metadata={"format": "pt"})


class _Sampled:
    """Stands in for an agent executor: one response without a reward."""

    async def execute(self, prompt: list[int], sampling_params: Any, llm_engine: Any, **_: Any) -> dict[str, Any]:
        output = await llm_engine.generate(prompt, ids_only(sampling_params))
        made = output.outputs[0]
        return {
            "observation_tokens": [*prompt, *made.token_ids],
            "prompt": len(prompt),
            "log_probs": invariant.log_probs_of(made),
        }


async def sampled(model: Path, seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
    """Return the responses of each seed from one engine, with their routings."""
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # as OpenRLHF sets it
    settings = argparse.Namespace(lora_rank=8, lora_alpha=16, target_modules=ATTENTION_PROJECTIONS, routing_replay=True)
    actor = start_engine(
        model, PROMPTS, 256, "auto", worker_extension_cls="grpo.lora.side_path.AdapterWorker",
        additional_config=adapter.engine_config(settings),
    )  # fmt: skip
    actor.executor = _Sampled()
    tokenizer = AutoTokenizer.from_pretrained(model)
    render = renderer(tokenizer, {})
    prompts = [render(f"What is {a} + {3 * a}?") for a in range(3, 3 + PROMPTS)]
    try:
        sampled = []
        for seed in seeds:
            params = SamplingParams(max_tokens=TOKENS, min_tokens=TOKENS // 2, seed=seed, logprobs=0)
            calls = (actor.generate_responses(p, "", rollout_routing.recorded(params), 256, tokenizer) for p in prompts)
            sampled.append([response for responses in await asyncio.gather(*calls) for response in responses])
        return sampled
    finally:
        actor.llm.shutdown()


class Trainer:
    """The actor's model, without an adapter: a new adapter adds nothing."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        self._model = loading.load_gpt_oss(folder).train()
        self._kept = vocabulary.allocated(AutoTokenizer.from_pretrained(folder))

    @torch.no_grad()
    def _log_probs(self, tokens: list[int], recorded: torch.Tensor | None) -> torch.Tensor:
        routings = None if recorded is None else [recorded]
        with routing.replayed(self._model, routings, len(tokens), "cpu"):
            logits = vocabulary.mask_(self._model(torch.tensor([tokens])).logits[0, :-1].float(), self._kept)
        return logits.log_softmax(-1).gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]

    @torch.no_grad()
    def _own(self, tokens: list[int]) -> torch.Tensor:
        """Return the model's own routing of tokens."""
        seen: list[torch.Tensor] = []
        hooks = [
            layer.mlp.router.register_forward_hook(lambda _module, _inputs, output: seen.append(output[1]))
            for layer in self._model.model.layers
        ]
        self._model(torch.tensor([tokens]))
        for hook in hooks:
            hook.remove()
        return routing.encode(torch.stack(seen, dim=1))

    def measure(self, responses: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the metrics of both ways, and the share of tokens and layers in which the two choose differently."""
        engine: dict[int, torch.Tensor] = {}
        trainer: dict[str, dict[int, torch.Tensor]] = {"stock": {}, "ours": {}}
        differ = []
        for number, response in enumerate(responses):
            tokens, first = response["observation_tokens"], response["prompt"] - 1
            recorded = torch.from_numpy(response["routing"])
            engine[number] = torch.tensor(response["log_probs"])
            trainer["stock"][number] = self._log_probs(tokens, None)[first:]
            trainer["ours"][number] = self._log_probs(tokens, recorded)[first:]
            own = self._own(tokens)
            differ.append((own.sort().values != recorded.sort().values).any(-1)[:-1].float().mean().item())
        measured = {way: engine_metrics(log_probs, engine) for way, log_probs in trainer.items()}
        return {**measured, "differ": statistics.mean(differ), "tokens": sum(map(len, engine.values()))}
