"""Loading an MXFP4 checkpoint on several ranks: transformers on each, and ours, each rank its ZeRO-3 partition.

The model has gpt-oss-120b's layer sizes, but few layers and few experts. Memory is the processes' peak above their
initial value, summed over the ranks. The stock way maps the files, and mapped pages count. Both must load the same
numbers, which is checked.
"""

import argparse
import tempfile
from pathlib import Path

from grpo.model import model_files
from grpo.stack.problem import UserError
from scripts.bench.harness import Result
from scripts.bench.machine import Copy
from scripts.bench.parts.random_model import BF16_BYTES, write_random_model
from scripts.bench.parts.ranks import run_ranks

GB = 1e9
EXTRAPOLATED_RANKS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2, help="processes that load (default: 2)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: 2)")
    parser.add_argument("--experts", type=int, default=16, help="experts of each layer (default: 16)")
    parser.add_argument("--intermediate", type=int, default=2880, help="inner size of an expert (default: 2880)")


def run(options: argparse.Namespace, copy: Copy) -> Result:
    del copy
    if min(options.ranks, options.layers, options.experts) < 1 or options.intermediate % 32:
        raise UserError(
            "an option is out of range",
            "--ranks, --layers and --experts must be at least 1, and --intermediate a multiple of 32",
        )
    with tempfile.TemporaryDirectory(prefix="bench-load-") as scratch:
        folder = Path(scratch, "model")
        write_random_model(folder, options.layers, options.experts, intermediate=options.intermediate)
        model = model_files.read_whole(folder)
        sizes = {"bf16": model.bf16_bytes, "files": model.file_bytes}
        reports = {
            ours: run_ranks("load_worker", options.ranks, {"model": str(folder), "ours": ours})
            for ours in (False, True)
        }
    if [rank["sums"] for rank in reports[False]] != [rank["sums"] for rank in reports[True]]:
        raise RuntimeError("the two ways loaded different numbers: run pytest tests/grpo/model/test_loading.py")
    peak = {ours: sum(rank["peak_bytes"] for rank in ranks) for ours, ranks in reports.items()}
    seconds = {ours: max(rank["seconds"] for rank in ranks) for ours, ranks in reports.items()}
    return Result(
        what=f"memory of {options.ranks} ranks that load {options.layers} layers of {options.experts} experts "
        f"({sizes['files'] / GB:.2f} GB in files, {sizes['bf16'] / GB:.2f} GB in bf16)",
        unit="GB",
        stock=peak[False] / GB,
        ours=peak[True] / GB,
        higher_is_better=False,
        details={
            "stock_peak_over_bf16_model": peak[False] / sizes["bf16"],
            "ours_peak_over_bf16_model": peak[True] / sizes["bf16"],
            "ours_read_over_files": sum(rank["read_bytes"] for rank in reports[True]) / sizes["files"],
            "stock_s": seconds[False],
            "ours_s": seconds[True],
        },
        extrapolation=_extrapolate(options.ranks, sizes["bf16"], peak, seconds),
    )


def _extrapolate(ranks: int, bf16: int, peak: dict[bool, int], seconds: dict[bool, float]) -> tuple[str, ...]:
    beside = peak[True] / ranks - bf16 / ranks
    stock = EXTRAPOLATED_RANKS * BF16_BYTES
    ours = BF16_BYTES + EXTRAPOLATED_RANKS * beside
    scale = BF16_BYTES / bf16
    return (
        f"gpt-oss-120b on {EXTRAPOLATED_RANKS} ranks: at least {stock / GB:,.0f} GB stock, {ours / GB:,.0f} GB ours "
        f"({ours / BF16_BYTES:.3f} times the bf16 model); {seconds[False] * scale:,.0f} s stock and "
        f"{seconds[True] * scale:,.0f} s ours on this machine",
        f"assumes that stock holds the whole model on every rank and no more, ours {beside / 1e6:,.0f} MB beside its "
        "partition, as here (an expert, Python's own); times in proportion to the model, files in the page cache",
    )
