"""The engine actor's side of samples. Imports no DeepSpeed: vLLM's process stays free of it."""

from copy import copy, deepcopy
from typing import Any

from grpo.rollout import reward_threads


def for_sample(params: Any, number: int) -> Any:
    """Return the sampling parameters of one of the samples of a prompt: each has a seed of its own.

    Called in the engine's event loop, before the sample is drawn: so its reward finds a thread there.

    Args:
        params: vLLM's ``SamplingParams`` of the prompt; stays as it is.
        number: 0 for the first sample.
    """
    reward_threads.provide()
    mine = copy(params)
    if mine.seed is not None:
        mine.seed += number
    return mine


def ids_only(params: Any) -> Any:
    """Return the sampling parameters of a call that brings its tokens at its end, and no text.

    vLLM otherwise makes text of each token, and an output of all tokens so far; nobody reads either. Without them the
    engine's process takes about as long with log-probs as it does with them and no log-probs.

    Args:
        params: vLLM's ``SamplingParams``; stays as it is. Stop strings are looked for in the text, which they keep.
    """
    from vllm.sampling_params import RequestOutputKind

    mine = deepcopy(params)
    mine.detokenize, mine.output_kind = bool(mine.stop), RequestOutputKind.FINAL_ONLY
    return mine


def arguments() -> dict[str, Any]:
    """Return engine arguments that all engines have, in training, evaluations and benchmarks.

    - Calls that are followed (:mod:`grpo.rollout.budgeted_rollout`) hear of their tokens 16 at a time: each time takes
      as much of the process as a token does. One that is given up has made so many more, and what was under way.
    - On a CPU, prompts are computed whole. vLLM 0.15.0 takes back the draw of a request whose prompt is computed in
      parts by moving its generator's offset, which generators on a CPU do not have: the engine would die.
    """
    from vllm.platforms import current_platform

    return {"stream_interval": 16} | ({"enable_chunked_prefill": False} if current_platform.is_cpu() else {})
