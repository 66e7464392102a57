"""The tokens of a rollout with their origins, and the checks that they are the engine's.

Training, metrics and checks read the same account. Its tokens are compared with what the engine reported: in every
turn, and again as the trainer's row. A mismatch names the first differing position with its context, and is counted
(``token_mismatch``). Nothing is encoded again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # commands that only render prompts start without PyTorch
    from vllm.outputs import CompletionOutput

    from grpo.rollout.rows import Rows, Sample

CONTEXT = 8  # tokens that a mismatch quotes on each side

Decode = Callable[[Sequence[int]], str]


class Origin(IntEnum):
    """Who made a token. Only SAMPLED ones are actions: only they enter mask, loss, importance ratio and lengths."""

    PROMPT = 0
    SAMPLED = 1
    FORCED = 2  # inserted for the policy, for instance the delimiter that ends its thinking
    ENVIRONMENT = 3  # an environment's answer
    TEMPLATE = 4  # inserted by the chat template between messages


@dataclass
class Call:
    """One call of the engine.

    Attributes:
        prompt: as we sent it.
        given: as the engine had it.
        tokens: those sampled.
        log_probs: of the tokens; NaN for a missing one.
        is_over: whether the model ended the sequence; otherwise a limit did.
        is_trained: whether the tokens are actions.
    """

    prompt: list[int]
    given: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_over: bool = False
    is_trained: bool = True

    def take(self, output: "CompletionOutput", end: int | None = None) -> None:
        """Add the tokens of an output, up to `end`."""
        choices = output.logprobs or [{}] * len(output.token_ids)
        for token, choice in zip(output.token_ids[:end], choices[:end], strict=True):
            self.tokens.append(token)
            self.log_probs.append(float(choice[token].logprob) if token in choice else math.nan)


@dataclass
class Trajectory:
    """Grows only at its end, by tokens whose origin is known when they are made.

    Attributes:
        tokens: token ids, prompt first.
        origins: one for each token.
        log_probs: of each token, in nats: the engine's for SAMPLED tokens; 0.0 for all others, which no loss reads.
        calls: those that sampled its tokens.
    """

    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def append(self, tokens: Sequence[int], origin: Origin, log_probs: Sequence[float] | None = None) -> None:
        """Add tokens of one origin, with the engine's log-probs if they are SAMPLED."""
        self.tokens += tokens
        self.origins += [origin] * len(tokens)
        self.log_probs += [0.0] * len(tokens) if log_probs is None else log_probs

    def add(self, call: Call) -> None:
        """Add what was inserted before a call, and what it sampled."""
        self.append(call.prompt[len(self.tokens) :], Origin.FORCED)
        if call.is_trained:
            self.append(call.tokens, Origin.SAMPLED, call.log_probs)
        else:
            self.append(call.tokens, Origin.FORCED)
        self.calls.append(call)

    def count(self, origin: Origin) -> int:
        """Return how many tokens have this origin."""
        return self.origins.count(origin)

    def action_ranges(self) -> list[tuple[int, int]]:
        """Return the runs of sampled tokens, as (first, one past the last) indices of ``tokens``."""
        is_sampled = [False, *(origin is Origin.SAMPLED for origin in self.origins), False]
        edges = [index for index in range(len(self.tokens) + 1) if is_sampled[index] != is_sampled[index + 1]]
        return list(zip(edges[::2], edges[1::2], strict=True))

    def as_response(self) -> dict[str, Any]:
        """Return the fields of an agent executor's response that follow from the tokens."""
        return {
            "observation_tokens": list(self.tokens),
            "action_ranges": self.action_ranges(),
            "rollout_log_probs": list(self.log_probs),
        }

    def account(self) -> dict[str, Any]:
        """Return what the engine reported: all tokens, the ranges of the trained ones, and their log-probs."""
        trained = [(len(call.given), call) for call in self.calls if call.is_trained]
        return {
            "tokens": [*self.calls[-1].given, *self.calls[-1].tokens],  # its prompt holds the earlier calls
            "ranges": [(start, start + len(call.tokens)) for start, call in trained],
            "log_probs": [value for _, call in trained for value in call.log_probs],
        }


def describe(what: str, given: Sequence[int], kept: Sequence[int], decode: Decode) -> str | None:
    """Describe where tokens differ from the engine's, with context; None if they do not."""
    if list(given) == list(kept):
        return None
    index = next((at for at, (a, b) in enumerate(zip(given, kept, strict=False)) if a != b), min(len(given), len(kept)))
    return (
        f"{what} differs first at position {index}, after {decode(given[max(0, index - CONTEXT) : index])!r}: the "
        f"engine had {decode(given[index : index + CONTEXT])!r}, we have {decode(kept[index : index + CONTEXT])!r} "
        f"({len(given)} and {len(kept)} tokens)"
    )


def check_row(row: "Rows", account: Mapping[str, Any], decode: Decode) -> str | None:
    """Return where a row of the trainer differs from the engine's account; None if it does not."""
    tokens = row.sequences[0].tolist()
    if mismatch := describe("a row", account["tokens"], tokens, decode):
        return mismatch
    if row.rollout_log_probs is None:
        return "the engine's log-probs are missing"
    mask = row.action_mask[0].bool()
    log_probs = row.rollout_log_probs[0][mask]
    ours = dict(zip((mask.nonzero().flatten() + 1).tolist(), log_probs.tolist(), strict=True))
    positions = [position for start, end in account["ranges"] for position in range(start, end)]
    reported = log_probs.new_tensor(account["log_probs"]).tolist()  # rounded to float32, as the row's are
    theirs = dict(zip(positions, reported, strict=True))
    if ours == theirs:  # NaN equals nothing, so a missing log-prob is a mismatch
        return None
    at = min(position for position in ours.keys() | theirs.keys() if ours.get(position) != theirs.get(position))
    what = "log-prob" if at in ours and at in theirs else "action mask"
    return f"the {what} differs first at position {at}, after {decode(tokens[max(0, at - CONTEXT) : at])!r}"


def missing_log_prob(row: "Rows") -> str | None:
    """Name the first sampled token without a log-prob of the engine (NaN), and replace NaN with 0 for the arithmetic.

    Returns None if every sampled token has one, or none were requested.
    """
    if row.rollout_log_probs is None:
        return None
    missing = row.rollout_log_probs.isnan()
    row.rollout_log_probs = row.rollout_log_probs.nan_to_num(nan=0.0)
    sampled = (missing[0] & row.action_mask[0].bool()).nonzero().flatten()
    return f"the engine returned no log-prob for the token at position {int(sampled[0]) + 1}" if len(sampled) else None


def response_tokens(sample: "Sample") -> list[int]:
    """Return the tokens of a single-sample ``Experience`` from the end of the prompt to the last sampled token.

    They include forced tokens and an environment's: people and the grader could not read it without them.
    ``info["prompt_length"]`` marks the end of the prompt; without it, the first sampled token does.
    """
    tokens, mask = sample.sequences[0], sample.action_mask[0].bool()
    sampled = (mask.nonzero().flatten() + 1).tolist()
    if not sampled:
        return []
    first = int(sample.info["prompt_length"][0]) if "prompt_length" in sample.info else sampled[0]
    return tokens[first : sampled[-1] + 1].tolist()
