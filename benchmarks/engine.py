"""The rung about engines: the tiny model in vLLM, over Ray, with the adapter of a sync, against the actor's model.

On a GPU, vLLM runs MXFP4 with its own kernels, on two GPUs if there are as many. The tiny model is the one of
`./train_grpo.sh --tiny`, which solves sums: its answers are no noise.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import parity
from benchmarks.engine_speed import read_answer
from benchmarks.ladder import Passed, choose_device
from grpo.launch.supervise import ray_head
from grpo.stack import rendezvous
from grpo.stack.checkout import TINY_MODEL

_RANK, _SCALE = 8, 0.035  # of an adapter that changes log-probs by more than the limit


def check(gpus: int) -> Passed:
    """Send a random adapter to an engine, sample, and score the same tokens with the actor's model."""
    from scripts import make_tiny_model

    workers, packed, whole = min(gpus or 2, 2), TINY_MODEL / "mxfp4", TINY_MODEL / "bf16"
    if make_tiny_model.main(["--out", str(packed), "--dequantized-out", str(whole)]):
        raise RuntimeError(f"the tiny model was not made in {TINY_MODEL}")
    # vLLM on a CPU has no kernel for MXFP4, and replaces Ray's executor by processes.
    with start_engines(packed if gpus else whole, workers, gpus, rank=_RANK) as (engine,):
        import ray
        from transformers import AutoTokenizer
        from vllm import SamplingParams

        from grpo.lora import adapter, sync
        from grpo.model import loading

        tokenizer = AutoTokenizer.from_pretrained(packed)
        prompts = parity.make_prompts(tokenizer)
        model = parity.add_adapter(loading.load_gpt_oss(packed), _RANK, _SCALE)
        sync.send(*adapter.gather(model), [engine])
        params = SamplingParams(max_tokens=40, temperature=1.0, seed=1, logprobs=0)
        outputs = ray.get([engine.generate.remote(prompt, params) for prompt in prompts])
    answers = [read_answer(output.outputs[0]) for output in outputs]
    found = parity.score(model.to(choose_device(gpus)).eval(), prompts, answers, tokenizer)
    passed = parity.judge(f"{'MXFP4 over Ray' if gpus else 'bf16'}, TP={workers}", found)
    return Passed(passed.line, {**passed.numbers, "workers": workers})


@contextmanager
def start_engines(model: Path, workers: int, gpus: int, count: int = 1, *, rank: int) -> Iterator[list[Any]]:
    """Start Ray and engines of some workers with an adapter, as OpenRLHF does in a run, and end both."""
    with tempfile.TemporaryDirectory(prefix="", ignore_cleanup_errors=True) as name:  # short, for sockets lie in it
        # Before Ray is imported
        os.environ.update(ray_head.variables() | rendezvous.variables(Path(name, "rendezvous")))
        import ray
        from openrlhf.trainer.ray import create_vllm_engines

        from grpo.lora import adapter
        from grpo.model.architecture import NO_SHARD
        from grpo.stack import cluster
        from scripts import local_ray

        total = count * workers
        with local_ray.start_ray(Path(name, "ray"), total + 4, max(gpus, total), 300_000_000, shows_logs=True):
            args: Any = SimpleNamespace(
                lora_rank=rank, lora_alpha=2 * rank, routing_replay=False, parity_limit=0, actor_shard=NO_SHARD
            )
            engines = create_vllm_engines(
                count, workers, str(model), 1, False, True, True, 512,
                gpu_memory_utilization=0.3, adapter_config=adapter.engine_config(args),
            )  # fmt: skip
            ray.get(cluster.engines_ready(engines))
            yield engines
