"""A trainer on two ranks, an engine with TP=2, and one that is compiled, started without a run around them."""

import argparse
import operator
import os
import runpy
import sys
import tempfile
from dataclasses import asdict
from functools import partial

import pytest
import ray
import torch

from grpo.hooks import train_ppo_ray as hooks
from grpo.hooks.flag_aliases import Arguments
from grpo.lora import adapter
from grpo.lora.sync import check_sync
from grpo.metrics.parity import Rollout
from grpo.stack import cluster, zygote

from .rounding import make_batches

LONGEST = 4096  # tokens of prompt and response
FLAGS = [
    *("--zero_stage", "3", "--offload", "--adam_offload", "--stage3_param_persistence_threshold", "0"),
    *("--gradient_checkpointing", "--gradient_checkpointing_use_reentrant", "--attn_implementation", "eager"),
    *("--lora_rank", "8", "--lora_alpha", "16", "--target_modules"),
    *("q_proj", "k_proj", "v_proj", "o_proj", "experts"),
    *("--init_kl_coef", "0", "--advantage_estimator", "dr_grpo", "--remote_rm_url", "reward.py"),
    *("--rollout_batch_size", "8", "--n_samples_per_prompt", "8", "--micro_rollout_batch_size", "4"),
    *("--train_batch_size", "8", "--micro_train_batch_size", "1", "--max_ckpt_num", "2"),
    *("--actor_num_gpus_per_node", "2", "--vllm_num_engines", "2"),
    *("--experts", "packed", "--actor_shard", "zero3"),
    *("--loss_aggregation", "token_mean", "--old_log_probs", "trainer", "--parity_limit", "0.05"),
]


def parse_training_args(monkeypatch, *flags: str) -> argparse.Namespace:
    """Parse flags with the parser of OpenRLHF's command line, which exists only inside its `__main__` block."""
    captured = {}

    def capture(parser, *_):
        captured["parser"] = parser
        raise StopIteration

    with monkeypatch.context() as patch, pytest.raises(StopIteration):
        patch.setattr(argparse.ArgumentParser, "parse_args", capture)
        patch.setattr(sys, "argv", ["train_ppo_ray"])
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    args = Arguments(**vars(captured["parser"].parse_args([*FLAGS, *flags])))
    args.eps_clip_low_high = (args.eps_clip, args.eps_clip)
    return args


def randomise(actor, scale: float) -> None:
    """Give the adapter values that change the log-probs much more than rounding does. Runs in every trainer rank."""
    import deepspeed
    import torch

    generator = torch.Generator().manual_seed(5)
    for name, parameter in actor.actor.model.module.named_parameters():
        if "lora_" in name:
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def round_frequencies(actor) -> None:
    """Round the rotary frequencies to bf16, as DeepSpeed does where nothing prevents it. Runs in every trainer rank."""
    for name, buffer in actor.actor.model.module.named_buffers():
        if name.endswith("inv_freq"):
            buffer.exact = buffer.clone()
            buffer.copy_(buffer.bfloat16())


def restore_frequencies(actor) -> None:
    """Undo :func:`round_frequencies`."""
    for name, buffer in actor.actor.model.module.named_buffers():
        if name.endswith("inv_freq"):
            buffer.copy_(buffer.exact)


def make_compiling_environment() -> dict[str, str]:
    """The environment of an engine that torch.compile compiles.

    The cache of its kernels is separate for each instruction set: PyTorch 2.10 reuses a cached AVX-512 kernel even if
    only AVX2 is allowed, and crashes.
    """
    kernels = f"{tempfile.gettempdir()}/torchinductor-{os.getuid()}-{torch.backends.cpu.get_cpu_capability()}"
    return {
        zygote.VARIABLE: "",  # not forked: PyTorch reads the next variable on import
        "TORCHDYNAMO_DISABLE": "0",
        "TORCHINDUCTOR_CACHE_DIR": kernels,
        "TORCHINDUCTOR_VEC_ISA_OK": "1",  # not tried anew in each process, which takes ten seconds
        "VLLM_DISABLE_COMPILE_CACHE": "1",  # on a CPU, code in it names layers of the process that compiled it
    }


class Stack:
    """A started trainer and engines: TP=2, and one that torch.compile compiles.

    Attributes:
        cached, cached_after: what :meth:`count_cached` finds twice before a sync, and after it, of each engine.
    """

    cached: list[list[int]]
    cached_after: list[int]

    def __init__(self, args: argparse.Namespace, model) -> None:
        from openrlhf.trainer.ray import create_vllm_engines
        from openrlhf.trainer.ray.launcher import RayActorGroup
        from openrlhf.trainer.ray.vllm_engine import LLMRayActor
        from openrlhf.utils import get_strategy

        self.args = args
        self.engines = []
        for tensor_parallel, eager in ((2, True), (1, False)):
            with pytest.MonkeyPatch.context() as patch:
                if not eager:
                    options = partial(LLMRayActor.options, runtime_env={"env_vars": make_compiling_environment()})
                    patch.setattr(LLMRayActor, "options", options)
                self.engines += create_vllm_engines(
                    1, tensor_parallel, str(model / "bf16"), 1, False, True, eager, LONGEST,
                    gpu_memory_utilization=0.5,
                    adapter_config=hooks.adapter_config(argparse.Namespace(**vars(args) | {"enforce_eager": eager})),
                )  # fmt: skip
        self.trainer = RayActorGroup(1, 2, hooks.rank())
        refs = self.trainer.async_init_model_from_pretrained(get_strategy(args), str(model / "mxfp4"), 10, self.engines)
        ray.get(refs + cluster.engines_ready(self.engines))

    def call_every_rank(self, function):
        ray.cloudpickle.register_pickle_by_value(
            sys.modules[function.__module__]
        )  # workers cannot import a test module
        return ray.get([actor.__ray_call__.remote(function) for actor in self.trainer._actor_handlers])

    def randomise(self, scale: float) -> None:
        """Give the adapter other values, and sync."""
        self.call_every_rank(lambda actor: randomise(actor, scale))
        ray.get(self.trainer.async_run_method("sync"))

    def compute_trainer_log_probs(self, tokens: list[int]) -> torch.Tensor:
        """Log-probs of tokens 1.. from the trainer, `[len - 1]`. Both ranks compute: a forward pass is collective."""
        sequence = torch.tensor([tokens])
        mask = torch.ones_like(sequence)
        refs = self.trainer.async_run_method("forward", sequence, mask[:, 1:], mask)
        return ray.get(refs)[0][0]

    def compute_engine_log_probs(self, engine, tokens: list[int]) -> torch.Tensor:
        """The same from an engine, which scores the tokens as a prompt."""
        from vllm import SamplingParams

        output = ray.get(engine.generate.remote(tokens, SamplingParams(max_tokens=1, prompt_logprobs=0)))
        pairs = zip(tokens[1:], output.prompt_logprobs[1:], strict=True)
        return torch.tensor([at[token].logprob for token, at in pairs])

    def count_cached(self, engine, tokens: list[int]) -> int:
        """How many tokens of a prompt an engine finds in its prefix cache."""
        from vllm import SamplingParams

        return ray.get(engine.generate.remote(tokens, SamplingParams(max_tokens=1))).num_cached_tokens

    def make_rollouts(self, prompts: list[list[int]]) -> list[Rollout]:
        """What each engine samples after these prompts, and what the trainer says of it."""
        from vllm import SamplingParams

        rollouts = []
        for number, engine in enumerate(self.engines):
            params = SamplingParams(max_tokens=24, temperature=1.0, seed=number, logprobs=0)
            outputs = ray.get([engine.generate.remote(prompt, params) for prompt in prompts])
            answers = [output.outputs[0] for output in outputs]
            texts = [prompt + list(answer.token_ids) for prompt, answer in zip(prompts, answers, strict=True)]
            scored, base = (self._score(texts, method) for method in ("forward", "base_forward"))
            for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
                positions = torch.arange(len(prompt), len(texts[row]))
                steps = zip(answer.token_ids, answer.logprobs, strict=True)
                sampled = torch.tensor([at[token].logprob for token, at in steps])
                now, without = scored[row][positions - 1], base[row][positions - 1]
                rollouts.append(Rollout(number, 0, row, positions, sampled, now, without))
        return rollouts

    def _score(self, texts: list[list[int]], method: str) -> list[torch.Tensor]:
        scored: list[tuple[int, torch.Tensor]] = []
        for batch in make_batches(list(map(len, texts))):
            longest = max(len(texts[index]) for index in batch)
            tokens = torch.tensor([texts[index] + [0] * (longest - len(texts[index])) for index in batch])
            mask = torch.tensor([[1] * len(texts[index]) + [0] * (longest - len(texts[index])) for index in batch])
            scored += zip(
                batch, ray.get(self.trainer.async_run_method(method, tokens, mask[:, 1:], mask))[0], strict=True
            )
        return [values for _, values in sorted(scored, key=operator.itemgetter(0))]

    def gather_adapter(self) -> tuple[torch.Tensor, list[adapter.TensorSpec]]:
        """The adapter as the trainer gathers it."""

        def gather(actor):
            from grpo.lora import adapter

            return adapter.gather(actor.actor.model.module)

        return self.call_every_rank(gather)[0]


def call_on_engine(engine, function, *args):
    """Call a function with OpenRLHF's engine actor in its process."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    return ray.get(engine.__ray_call__.remote(function, *args))


def send(engine, flat: torch.Tensor, specs: list[adapter.TensorSpec]) -> None:
    buffer = flat.view(torch.uint8).numpy()
    results = ray.get(engine.load_adapter.remote(buffer, [asdict(spec) for spec in specs]))
    check_sync([results], adapter.Checksums.of(flat, specs))
