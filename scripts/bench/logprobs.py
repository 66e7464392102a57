"""Log-probs of tokens from hidden states, with the gradient: through full fp32 logits, and in chunks.

`stock` and `ours` are the peak of memory beside the inputs: of the process on a CPU, of the allocator on a GPU. Ours is
measured at half the length as well: it hardly grows.
"""

import argparse
from collections.abc import Callable

import torch

from grpo.stack.problem import UserError
from grpo.update.log_probs import token_scores
from scripts.bench.harness import Result, time_in_turn
from scripts.bench.machine import Copy
from scripts.bench.parts.memory import peak_of

ON_ANY_DEVICE = True
HIDDEN, UNALLOCATED = 2880, 1069


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the sequence (default: 512)")
    parser.add_argument("--vocabulary", type=int, default=32768, help="rows; gpt-oss has 201,088 (default: 32768)")
    parser.add_argument("--repeat", type=int, default=2, help="timed rounds, of which the best counts (default: 2)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    if options.tokens < 4 or options.repeat < 1 or options.vocabulary <= UNALLOCATED:
        raise UserError(
            "an option is out of range",
            f"--tokens must be at least 4, --repeat 1, and --vocabulary more than {UNALLOCATED}",
        )
    rows = options.vocabulary - UNALLOCATED
    torch.manual_seed(0)
    weight = (torch.randn(options.vocabulary, HIDDEN, device=copy.device) * 0.02).bfloat16()
    hidden = torch.randn(options.tokens, HIDDEN, device=copy.device).bfloat16().requires_grad_()
    targets = torch.randint(rows, (options.tokens,), device=copy.device)

    def pass_of(log_probs: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tokens: int) -> Callable[[], object]:
        def run_pass() -> tuple[torch.Tensor, torch.Tensor]:
            values = log_probs(hidden[:tokens], targets[:tokens])
            return values.detach(), torch.autograd.grad(values.sum(), hidden)[0]

        return run_pass

    def stock(states: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        logits = torch.nn.functional.linear(states, weight)[:, :rows].float()
        return logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)

    def ours(states: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return token_scores(states, weight, chosen, rows).log_probs

    passes = {"stock": pass_of(stock, options.tokens), "ours": pass_of(ours, options.tokens)}
    difference = (stock(hidden, targets) - ours(hidden, targets)).abs().max().item()
    peaks = {name: peak_of(run_pass, copy.device) for name, run_pass in passes.items()}
    half = peak_of(pass_of(ours, options.tokens // 2), copy.device)
    timings = time_in_turn(passes, options.repeat, copy.device)
    return Result(
        what=f"peak memory of log-probs of {options.tokens} tokens over {options.vocabulary} rows, with the gradient, "
        f"on {copy.device}",
        unit="GB",
        stock=peaks["stock"] / 1e9,
        ours=peaks["ours"] / 1e9,
        higher_is_better=False,
        details={
            **{f"seconds_{name}": timing.seconds for name, timing in timings.items()},
            "ours_at_half_the_length_gb": half / 1e9,
            "largest_difference_nat": difference,
        },
    )
