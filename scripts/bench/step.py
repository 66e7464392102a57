"""A training step: OpenRLHF's own classes without and with our patches.

A rollout is one optimizer step, and the entropy is logged with coefficient 0. It runs in one process without DeepSpeed.
Attention and experts have the sizes of gpt-oss-120b, but there are few layers and experts. Gradients, entropy and loss
must agree, which is checked.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from grpo.stack.problem import UserError
from scripts.bench.harness import Result
from scripts.bench.machine import Copy
from scripts.bench.parts.random_model import FULL, write_random_model
from scripts.bench.parts.ranks import run_ranks
from scripts.bench.parts.stock import pristine
from scripts.dequantize_checkpoint import dequantize_checkpoint

GB = 1e9
TOKENS_120B = 4096
# Two implementations of a sum in bf16 differ by a few units in the last of its 8 bits.
TOLERANCE = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument("--experts", type=int, default=4, help="experts of each layer (default: 4)")
    parser.add_argument("--intermediate", type=int, default=2880, help="inner size of an expert (default: 2880)")
    parser.add_argument("--vocabulary", type=int, default=32768, help="rows of the vocabulary (default: 32768)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of the one sequence (default: 256)")
    parser.add_argument("--repeat", type=int, default=2, help="timed steps; the best counts (default: 2)")


def write_models(options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Write a model of these sizes in MXFP4, and in bf16 for stock, which cannot train from MXFP4."""
    if min(options.layers, options.experts, options.repeat) < 1 or options.tokens < 8 or options.intermediate % 32:
        raise UserError(
            "an option is out of range",
            "--layers, --experts and --repeat must be at least 1, --tokens 8, and --intermediate a multiple of 32",
        )
    models = {"ours": folder / "mxfp4", "stock": folder / "bf16"}
    sizes = {"vocabulary": options.vocabulary, "intermediate": options.intermediate}
    write_random_model(models["ours"], options.layers, options.experts, **sizes)
    dequantize_checkpoint(models["ours"], models["stock"])
    return models


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    with tempfile.TemporaryDirectory(prefix="bench-step-") as scratch:
        models = write_models(options, Path(scratch))
        packages = {"stock": str(pristine(Path(scratch, "openrlhf"))), "ours": None}
        reports, gradients = {}, {}
        for name, package in packages.items():
            file = Path(scratch, f"{name}.pt")
            job = {
                "model": str(models[name]), "package": package, "gradients": str(file), "lora_rank": 64,
                "vocabulary": options.vocabulary, "tokens": options.tokens, "repeat": options.repeat,
            }  # fmt: skip
            (reports[name],) = run_ranks("step_worker", 1, job)
            gradients[name] = torch.load(file)
    difference = _difference(gradients["stock"], gradients["ours"])
    loss, entropy = (abs(reports["stock"][name] - reports["ours"][name]) for name in ("loss", "entropy"))
    if max(difference, loss, entropy) > TOLERANCE:
        raise RuntimeError(
            f"stock and ours do not agree: gradients differ by {difference:.2%}, losses by {loss:.2g}, entropies by "
            f"{entropy:.2g}"
        )
    logits = 4 * options.tokens * options.vocabulary
    saved = reports["stock"]["peak_bytes"] - reports["ours"]["peak_bytes"]
    return Result(
        what=f"a training step on {options.tokens} tokens, {options.layers} layers of {options.experts} experts, "
        f"{options.vocabulary} rows of vocabulary, gradient checkpointing",
        unit="s",
        stock=reports["stock"]["seconds"],
        ours=reports["ours"]["seconds"],
        higher_is_better=False,
        details={
            "stock_peak_gb": reports["stock"]["peak_bytes"] / GB,
            "ours_peak_gb": reports["ours"]["peak_bytes"] / GB,
            "fp32_logits_gb": logits / GB,
            "gradient_difference": difference,
            "loss_difference": loss,
            "entropy_difference": entropy,
        },
        extrapolation=(
            f"gpt-oss-120b, {TOKENS_120B} tokens a micro-batch: {saved / logits:.1f} times the fp32 logits less, "
            f"{saved / logits * 4 * TOKENS_120B * FULL.vocabulary / GB:.0f} GB of each GPU",
            "assumes one optimizer step a rollout (with more, old log-probs are computed as in stock), an entropy that "
            f"is logged, and memory in proportion to the logits of {FULL.vocabulary} rows; on a GPU stock runs all "
            f"{FULL.experts} experts for the old log-probs, which a CPU does not do and this does not show",
        ),
    )


def _difference(expected: dict[str, torch.Tensor], actual: dict[str, torch.Tensor]) -> float:
    """Return the norm of the difference over that of the expected gradients, over all tensors together."""
    if expected.keys() != actual.keys():
        raise RuntimeError("stock and ours train other parameters")
    error = sum((actual[name].float() - value.float()).square().sum() for name, value in expected.items())
    return float((error / sum(value.float().square().sum() for value in expected.values())) ** 0.5)
