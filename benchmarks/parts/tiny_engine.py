"""A real vLLM engine in its own process, as in training, with the tiny gpt-oss and random weights.

It is so fast that Python's share of the time per token is as large as it can be.
"""

from pathlib import Path
from typing import Any

from grpo.rollout import engine

PROMPT = "<|start|>user<|message|>2 + 2<|end|><|start|>assistant"


def start_engine(
    model: Path, samples: int, length: int, load_format: str = "dummy", eager: bool = True, **options: Any
) -> Any:
    """Return OpenRLHF's engine actor, without Ray: `llm` is vLLM's engine.

    Args:
        samples: the number computed at a time.
        length: tokens of prompt and response.
        load_format: vLLM's; "dummy" creates random weights, "auto" reads those in `model`.
        eager: not compiled.
        options: more arguments of vLLM's engine.
    """
    import vllm
    from openrlhf.trainer.ray.vllm_engine import LLMRayActor

    arguments = vllm.AsyncEngineArgs(
        model=str(model), load_format=load_format, dtype="bfloat16", max_model_len=length, enforce_eager=eager,
        enable_prefix_caching=True, **engine.arguments(sequences=samples), **options,
    )  # fmt: skip
    actor = object.__new__(LLMRayActor.__ray_metadata__.modified_class)
    actor.llm = vllm.AsyncLLMEngine.from_engine_args(arguments)
    return actor
