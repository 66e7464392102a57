"""The tokens of one rollout, each with where it came from: the one account that training, metrics and checks share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Origin(IntEnum):
    """Who made a token. Only SAMPLED ones are actions: they alone enter mask, loss, importance ratio and lengths."""

    PROMPT = 0
    SAMPLED = 1
    FORCED = 2  # put there for the policy, for instance the delimiter that ends its thinking
    ENVIRONMENT = 3  # what an environment answered
    TEMPLATE = 4  # what the chat template puts between messages


@dataclass
class Trajectory:
    """Grows at its end only, by tokens whose origin is known where they are made.

    Attributes:
        tokens: token ids, prompt first.
        origins: one of each token.
        log_probs: of each token, nat; the engine's for SAMPLED tokens, 0.0 for all others, which no loss reads.
    """

    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    def append(self, tokens: Sequence[int], origin: Origin, log_probs: Sequence[float] | None = None) -> None:
        """Add tokens of one origin.

        Args:
            log_probs: the engine's, one a token; given for SAMPLED tokens and for no others.

        Raises:
            ValueError: sampled tokens without log-probs, others with them, or not one for each token.
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
        """Return the runs of sampled tokens, as (first, one past the last) places in ``tokens``."""
        ranges: list[tuple[int, int]] = []
        for place, origin in enumerate(self.origins):
            if origin is not Origin.SAMPLED:
                continue
            if ranges and ranges[-1][1] == place:
                ranges[-1] = (ranges[-1][0], place + 1)
            else:
                ranges.append((place, place + 1))
        return ranges

    def as_response(self) -> dict[str, Any]:
        """Return the part of an agent executor's response in OpenRLHF 0.9.3 that the tokens decide."""
        return {
            "observation_tokens": list(self.tokens),
            "action_ranges": self.action_ranges(),
            "rollout_log_probs": list(self.log_probs),
        }


def is_truncated(response: Mapping[str, Any], limit: int) -> bool:
    """Return whether a response was cut: by the engine, as its executor says, or by OpenRLHF at `limit` tokens.

    Args:
        response: an agent executor's, see :meth:`Trajectory.as_response`.
        limit: of prompt and response.
    """
    return bool(response.get("truncated")) or len(response["observation_tokens"]) > limit


def response_tokens(sample: Any) -> list[int]:
    """Return what follows the prompt of an ``Experience`` of a single sample, to its last sampled token.

    Forced tokens and those of an environment are in it: without them neither people nor the grader could read it.
    ``info["prompt_length"]`` says where the prompt ends; without it that is where the first token was sampled.
    """
    tokens, mask = sample.sequences[0], sample.action_mask[0].bool()
    places = (mask.nonzero().flatten() + 1).tolist()
    if not places:
        return []
    first = int(sample.info["prompt_length"][0]) if "prompt_length" in sample.info else places[0]
    return tokens[first : places[-1] + 1].tolist()
