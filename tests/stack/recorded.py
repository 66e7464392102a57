"""Whether trainer and engines differ on the samples of a run by no more than two passes in bf16 do.

A run records `logprob_diff_mean` of each sample that the trainer knows. What it may be depends on the tokens: a token
that is certain differs by 1e-4 nat, one at which a router is near a tie by 0.5. So each sample is measured by its own
simulated passes, and no number is chosen.
"""

from dataclasses import dataclass
from itertools import combinations

import torch

from .rounding import MARGIN, compute_log_probs, simulate


@dataclass
class Sample:
    """A sample as its record has it.

    Attributes:
        tokens: token ids, prompt first.
        sampled: bool `[len(tokens) - 1]`, of tokens 1..: those that the policy sampled.
        difference: the recorded mean |trainer - engine| over them, nat.
    """

    tokens: list[int]
    sampled: torch.Tensor
    difference: float


def read_samples(records: list[dict], tokenizer, forced: tuple[int, ...] = ()) -> list[Sample]:
    """Return the samples that the trainer has compared with the engine.

    Left out: rewritten conversations, and samples whose text is spelled with other tokens than were sampled.

    Args:
        forced: the delimiter of a thinking budget.
    """
    kept = []
    for record in records:
        texts = record.get("conversation", [record["prompt"] + record["response"]])
        tokens = tokenizer.encode(texts[-1], add_special_tokens=False)
        length = int(record["prompt_length"])
        sampled = mark_sampled(tokens[length:], tokenizer)
        if record.get("thinking_truncated"):
            sampled = drop_forced(forced, tokens[length:], sampled)
        is_known = len(texts) == 1 and sum(sampled) == record["response_length"]
        if is_known and record.get("logprob_diff_mean") is not None:
            mask = torch.tensor([False] * (length - 1) + sampled)
            kept.append(Sample(tokens, mask, record["logprob_diff_mean"]))
    return kept


def mark_sampled(response: list[int], tokenizer) -> list[bool]:
    """Say of each token after the prompt whether the policy sampled it: an environment speaks from <|call|> on."""
    call, start, assistant = tokenizer.convert_tokens_to_ids(["<|call|>", "<|start|>", "assistant"])
    sampled, mine = [], True
    for position, token in enumerate(response):
        sampled.append(mine)
        if mine and token == call:
            mine = False
        elif response[max(position - 1, 0) : position + 1] == [start, assistant]:
            mine = True
    return sampled


def drop_forced(forced: tuple[int, ...], response: list[int], sampled: list[bool]) -> list[bool]:
    """Take the first occurrence of the forced tokens out of those that were sampled."""
    size = len(forced)
    first = next(position for position in range(len(response)) if tuple(response[position : position + size]) == forced)
    return [mine and not first <= position < first + size for position, mine in enumerate(sampled)]


@dataclass
class Agreement:
    """How far trainer and engines are apart on samples, in units of what two simulated passes in bf16 are.

    Attributes:
        samples: the samples.
        exact: their log-probs in float32, of the sampled tokens.
        usual: `[samples]`: the mean difference of two passes on each, the median of all pairs.
        worst: of the worst pair of passes: its differences by `usual`, the median of the samples. A router that takes
            another expert, by whole nats, may do so in one pass of hundreds and in one sample: medians are not of it.
        most: the largest mean difference that rounding makes over all these samples, nat.
    """

    samples: list[Sample]
    exact: list[torch.Tensor]
    usual: torch.Tensor
    worst: float
    most: float

    @classmethod
    def measure(cls, samples: list[Sample], model, temperature: float = 1.0) -> "Agreement":
        assert samples, "there is nothing to compare"
        exact = compute_sample_log_probs(samples, model, temperature)
        passes = simulate(model, lambda: compute_sample_log_probs(samples, model, temperature))
        pairs = torch.stack([compute_differences(a, b) for a, b in combinations(passes, 2)])
        usual = pairs.median(0).values.clamp(min=1e-6)
        worst = (pairs / usual).median(1).values.max().item()
        return cls(samples, exact, usual, worst, most=MARGIN * pairs.mean(1).max().item())

    def covers(self, differences: torch.Tensor) -> bool:
        """Whether rounding explains the mean differences, `[samples]` in nat."""
        times = (differences / self.usual).median().item()
        print(
            f"{len(differences)} samples: {differences.mean():.5f} nat apart, {times:.2f} times what two passes in "
            f"bf16 are; the worst pair: {self.worst:.2f} times"
        )
        return times <= MARGIN * self.worst

    def holds(self) -> bool:
        """Whether trainer and engines of the run agree."""
        return self.covers(torch.tensor([sample.difference for sample in self.samples]))

    def notices(self, others: list[torch.Tensor]) -> bool:
        """Whether log-probs that one of the two sides had by a fault would be told from rounding."""
        return not self.covers(compute_differences(self.exact, others))


def compute_sample_log_probs(samples: list[Sample], model, temperature: float = 1.0) -> list[torch.Tensor]:
    """Return the log-probs of the sampled tokens of each sample."""
    scores = compute_log_probs(model, [sample.tokens for sample in samples], temperature)
    return [values[sample.sampled] for values, sample in zip(scores, samples, strict=True)]


def shift_by_one_token(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return log-probs that are one position off."""
    return [own.roll(-1) for own in values]


def swap_samples(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return for each sample the log-probs of the next one with other tokens, as many as it has tokens."""
    others = [
        next((other for other in values[index + 1 :] + values[:index] if not is_same_response(own, other)), own)
        for index, own in enumerate(values)
    ]
    return [other.repeat(len(own) // len(other) + 1)[: len(own)] for own, other in zip(values, others, strict=True)]


def is_same_response(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether these are the log-probs of one response to one prompt."""
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-4)


def compute_differences(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean difference on each sample, `[samples]`."""
    return torch.stack([(a - b).abs().mean() for a, b in zip(ours, theirs, strict=True)])
