"""An engine that replays token streams, can be cut at every token, and rejects invalid requests."""

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

from grpo.rollout.thinking import delimiter
from scripts.tiny_model.tokenizer import STOP_TOKENS, build_tokenizer

TOKENIZER = build_tokenizer()
STOPS = [TOKENIZER.token_to_id(token) for token in STOP_TOKENS]
CONTEXT = 64


def encode_text(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


HARMONY = delimiter("harmony", encode_text)
PROMPT = encode_text("<|start|>user<|message|>2+2<|end|><|start|>assistant")
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
WHOLE = ANALYSIS + "777" + FINAL + "88<|return|>"
WORDS = [*encode_text(ANALYSIS), *HARMONY.tokens, *encode_text("<|channel|>commentary"), *encode_text("7 so"), *STOPS]
STREAM = st.lists(st.sampled_from(WORDS), min_size=1, max_size=24) | st.tuples(
    st.integers(0, 12), st.integers(0, 12), st.sampled_from(["", "<|return|>", "<|call|>"])
).map(lambda sizes: encode_text(ANALYSIS + "7" * sizes[0] + FINAL + "8" * sizes[1] + sizes[2]))


@dataclass
class Engine:
    """Replays one stream per call, in parts of random sizes, as vLLM merges outputs for a slow consumer.

    Attributes:
        streams: token ids of each call, without end where no stop token is among them (the last one is repeated).
        calls, aborted: the requests, and the number of aborted calls.
    """

    streams: list[list[int]]
    chunk: random.Random = field(default_factory=lambda: random.Random(0))
    calls: list[tuple[list[int], SamplingParams]] = field(default_factory=list)
    aborted: int = 0

    def generate(self, prompt, params, request_id):
        tokens = list(prompt["prompt_token_ids"])
        assert params.max_tokens >= 1, "a call of no token"
        assert len(tokens) + params.max_tokens <= CONTEXT, "beyond the context"
        if self.calls:
            before = self.calls[-1][0]
            assert tokens[: len(before)] == before, "another prefix: nothing of it is cached"
            assert not any(token in STOPS for token in tokens[len(before) :]), "called after an end of sequence"
            assert params.skip_reading_prefix_cache is False, "the cache is not used"
        self.calls.append((tokens, params))
        return self._stream(tokens, params, self.streams[len(self.calls) - 1])

    def make_whole_output(self, call: int, most: int) -> tuple[list[int], str]:
        """The output of a call with that many tokens."""
        stream = self.streams[call]
        tokens = (stream + [stream[-1] if stream[-1] not in STOPS else 5] * most)[:most]
        end = next((index for index, token in enumerate(tokens) if token in STOPS), None)
        return (tokens, "length") if end is None else (tokens[: end + 1], "stop")

    async def _stream(self, prompt, params, stream):
        tokens, reason = self.make_whole_output(len(self.calls) - 1, params.max_tokens)
        sent, over = 0, False
        try:
            while sent < len(tokens):
                some = tokens[sent : sent + self.chunk.randint(1, 4)]
                sent += len(some)
                over = sent == len(tokens)
                yield RequestOutput(
                    request_id="", prompt=None, prompt_token_ids=prompt, prompt_logprobs=None, finished=over,
                    outputs=[
                        CompletionOutput(
                            index=0, text="", token_ids=some, cumulative_logprob=None,
                            logprobs=None if params.logprobs is None else [
                                {token: make_log_prob(token)} for token in some
                            ],
                            finish_reason=reason if over else None,
                        )
                    ],
                )  # fmt: skip
                await asyncio.sleep(0)
        finally:
            self.aborted += not over


def make_log_prob(token: int) -> Logprob:
    return Logprob(-token / 1000)
