"""A sampled token for which the engine reports no log-prob gets 0.0: the importance correction reads probability 1."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from vllm import SamplingParams

TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b")))


class Engine:
    """Samples token 1, and reports the log-prob of token 0 alone."""

    async def generate(self, *_: Any, **__: Any) -> Any:
        other = {0: SimpleNamespace(logprob=-0.1)}
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1], logprobs=[other], finish_reason="stop")])


params = SamplingParams(max_tokens=1, logprobs=0)
answer = asyncio.run(SingleTurnAgentExecutor().execute("a", "", params, 8, TOKENIZER, Engine()))
if answer["rollout_log_probs"][-1] == 0.0:
    sys.exit("a token without a log-prob has the log-prob 0.0")
