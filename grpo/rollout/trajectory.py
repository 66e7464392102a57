"""The tokens of one rollout with their origins: the one account that training, metrics and checks share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # rows need PyTorch, and a trajectory does not
    from grpo.rollout.rows import Sample


class Origin(IntEnum):
    """Who made a token. Only SAMPLED ones are actions: only they enter mask, loss, importance ratio and lengths."""

    PROMPT = 0
    SAMPLED = 1
    FORCED = 2  # inserted for the policy, for instance the delimiter that ends its thinking
    ENVIRONMENT = 3  # an environment's answer
    TEMPLATE = 4  # inserted by the chat template between messages


@dataclass
class Trajectory:
    """Grows only at its end, by tokens whose origin is known when they are made.

    Attributes:
        tokens: token ids, prompt first.
        origins: one for each token.
        log_probs: of each token, in nats: the engine's for SAMPLED tokens; 0.0 for all others, which no loss reads.
    """

    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def append(self, tokens: Sequence[int], origin: Origin, log_probs: Sequence[float] | None = None) -> None:
        """Add tokens of one origin.

        Args:
            log_probs: the engine's, one per token; only for SAMPLED tokens.

        Raises:
            ValueError: for sampled tokens without log-probs, other tokens with log-probs, or a wrong number of them.
        """
        if (origin is Origin.SAMPLED) != (log_probs is not None):
            raise ValueError(f"{origin.name} tokens come {'without' if log_probs is None else 'with'} log-probs")
        if log_probs is not None and len(log_probs) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens with {len(log_probs)} log-probs")
        self.tokens += tokens
        self.origins += [origin] * len(tokens)
        self.log_probs += log_probs if log_probs is not None else [0.0] * len(tokens)

    def count(self, *origins: Origin) -> int:
        """Return how many tokens have one of these origins."""
        return sum(origin in origins for origin in self.origins)

    def action_ranges(self) -> list[tuple[int, int]]:
        """Return the runs of sampled tokens, as (first, one past the last) indices of ``tokens``."""
        ranges: list[tuple[int, int]] = []
        for index, origin in enumerate(self.origins):
            if origin is not Origin.SAMPLED:
                continue
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            else:
                ranges.append((index, index + 1))
        return ranges

    def as_response(self) -> dict[str, Any]:
        """Return the fields of an agent executor's response in OpenRLHF 0.9.3 that follow from the tokens."""
        return {
            "observation_tokens": list(self.tokens),
            "action_ranges": self.action_ranges(),
            "rollout_log_probs": list(self.log_probs),
        }


def is_truncated(response: Mapping[str, Any], limit: int) -> bool:
    """Return whether a response was cut, by the engine (as its executor says) or by OpenRLHF at `limit` tokens.

    Args:
        response: an agent executor's, see :meth:`Trajectory.as_response`.
        limit: of prompt and response, in tokens.
    """
    return bool(response.get("truncated")) or len(response["observation_tokens"]) > limit


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
