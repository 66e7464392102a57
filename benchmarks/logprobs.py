"""Log-probs and entropy of tokens from hidden states, with the gradient of the log-probs.

OpenRLHF's functions take them from full fp32 logits, ours work in chunks.

`stock` and `ours` are the peak of memory beside the inputs: of the process on a CPU, of the allocator on a GPU. Ours is
measured at half the length as well: it hardly grows.
"""

import argparse
from collections.abc import Callable

import torch
from openrlhf.models.utils import compute_entropy, log_probs_from_logits

from benchmarks.harness import Result, time_in_turn
from benchmarks.machine import Copy
from benchmarks.parts.memory import measure_peak
from grpo.model.vocabulary import Allocated
from grpo.update.log_probs import token_scores

ON_ANY_DEVICE = True
HIDDEN, UNALLOCATED = 2880, 1069
Pair = tuple[torch.Tensor, torch.Tensor]  # log-probs and entropy, [tokens] each
SIZES = {"tokens": 512, "vocabulary": 32768, "repeat": 2}


def run(options: argparse.Namespace, copy: Copy) -> Result:
    rows = options.vocabulary - min(UNALLOCATED, options.vocabulary // 2)
    torch.manual_seed(0)
    weight = (torch.randn(options.vocabulary, HIDDEN, device=copy.device) * 0.02).bfloat16()
    hidden = torch.randn(options.tokens, HIDDEN, device=copy.device).bfloat16().requires_grad_()
    targets = torch.randint(rows, (options.tokens,), device=copy.device)

    def make_pass(scores: Callable[[torch.Tensor, torch.Tensor], Pair], tokens: int) -> Callable[[], object]:
        def run_pass() -> tuple[torch.Tensor, torch.Tensor]:
            log_probs, entropy = scores(hidden[:tokens], targets[:tokens])
            # The entropy is logged after the step, so that its graph lives as long.
            return torch.autograd.grad(log_probs.sum(), hidden)[0], entropy.detach()

        return run_pass

    def stock(states: torch.Tensor, chosen: torch.Tensor) -> Pair:
        logits = torch.nn.functional.linear(states, weight)[:, :rows].float()
        return log_probs_from_logits(logits, chosen), compute_entropy(logits)

    def ours(states: torch.Tensor, chosen: torch.Tensor) -> Pair:
        scores = token_scores(states, weight, chosen, Allocated(rows))
        return scores.log_probs, scores.entropy

    passes = {"stock": make_pass(stock, options.tokens), "ours": make_pass(ours, options.tokens)}
    with torch.no_grad():
        difference = (stock(hidden, targets)[0] - ours(hidden, targets)[0]).abs().max().item()
    peaks = {name: measure_peak(run_pass, copy.device) for name, run_pass in passes.items()}
    half = measure_peak(make_pass(ours, options.tokens // 2), copy.device)
    timings = time_in_turn(passes, options.repeat, copy.device)
    return Result(
        what=f"peak memory of log-probs of {options.tokens} tokens over {options.vocabulary} rows, with the gradient, "
        f"on {copy.device}",
        unit="GB",
        stock=peaks["stock"] / 1e9,
        ours=peaks["ours"] / 1e9,
        details={
            **{f"seconds_{name}": timing.seconds for name, timing in timings.items()},
            "ours_at_half_the_length_gb": half / 1e9,
            "largest_difference_nat": difference,
        },
    )
