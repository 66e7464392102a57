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

from benchmarks import agreement
from benchmarks.rung import Passed, choose_device
from grpo.launch.supervise import ray_head
from grpo.stack import rendezvous
from grpo.stack.checkout import TINY_MODEL

RANK, _SCALE = 8, 0.035  # of an adapter that changes log-probs by more than the limit


def check(gpus: int) -> Passed:
    """Send a random adapter to an engine, sample, and score the same tokens with the actor's model."""
    device, workers = choose_device(gpus), min(gpus or 2, 2)
    # vLLM on a CPU has no kernel for MXFP4, and replaces Ray's executor by processes.
    kind, what = ("mxfp4", "MXFP4 over Ray") if gpus else ("bf16", "bf16")
    folder = make_tiny_model()
    with start_engines(folder / kind, workers, gpus, rank=RANK) as (engine,):
        import ray
        from transformers import AutoTokenizer
        from vllm import SamplingParams

        from grpo.lora import adapter, sync
        from grpo.model import loading
        from grpo.model.vocabulary import find_allocated

        tokenizer = AutoTokenizer.from_pretrained(folder / "mxfp4")
        prompts = agreement.make_prompts(tokenizer)
        model = agreement.add_adapter(loading.load_gpt_oss(folder / "mxfp4"), RANK, _SCALE)
        sync.send(*adapter.gather(model), [engine])
        params = SamplingParams(max_tokens=40, temperature=1.0, seed=1, logprobs=0)
        outputs = ray.get([engine.generate.remote(prompt, params) for prompt in prompts])
    answers = [agreement.read_answer(output.outputs[0]) for output in outputs]
    model = model.to(device).eval()
    found = agreement.score(model, prompts, answers, find_allocated(tokenizer), device)
    passed = agreement.judge(f"{what}, TP={workers}", found)
    return Passed(passed.line, {**passed.numbers, "workers": workers})


def make_tiny_model() -> Path:
    """Make the tiny model where `./train_grpo.sh --tiny` keeps it."""
    from scripts import make_tiny_model

    words = ["--out", str(TINY_MODEL / "mxfp4"), "--dequantized-out", str(TINY_MODEL / "bf16")]
    if make_tiny_model.main(words):
        raise RuntimeError(f"the tiny model was not made in {TINY_MODEL}")
    return TINY_MODEL


@contextmanager
def start_engines(model: Path, workers: int, gpus: int, count: int = 1, *, rank: int) -> Iterator[list[Any]]:
    """Start Ray and engines, as OpenRLHF does in a run, and end both.

    Args:
        workers: of each engine.
        rank: of the adapter.
    """
    with tempfile.TemporaryDirectory(prefix="", ignore_cleanup_errors=True) as name:  # short, for sockets lie in it
        scratch = Path(name)
        # Before Ray is imported
        os.environ.update(ray_head.variables() | rendezvous.variables(scratch / "rendezvous"))
        import ray
        from openrlhf.trainer.ray import create_vllm_engines

        from grpo.lora import adapter
        from grpo.model.architecture import NO_SHARD
        from grpo.stack import cluster
        from scripts import local_ray

        total = count * workers
        with local_ray.start_ray(scratch / "ray", total + 4, max(gpus, total), 300_000_000, shows_logs=True):
            args: Any = SimpleNamespace(
                lora_rank=rank, lora_alpha=2 * rank, routing_replay=False, parity_limit=0, actor_shard=NO_SHARD
            )
            engines = create_vllm_engines(
                count, workers, str(model), 1, False, True, True, 512,
                gpu_memory_utilization=0.3, adapter_config=adapter.engine_config(args),
            )  # fmt: skip
            ray.get(cluster.engines_ready(engines))
            yield engines
